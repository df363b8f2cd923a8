"""The HTTP port over real sockets: its responses, and its limits on slow clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

from ottla.server.dispatch.counters import TopicCounters
from ottla.server.metrics.exposition import SLICE_SAMPLES, Family, counter, gauge, write
from ottla.server.metrics.http_server import CONNECTIONS_MAX, HEAD_BYTES_MAX, HttpServer


@pytest.fixture
def run() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


class Broker:
    phase = "recovering"


@asynccontextmanager
async def serving(broker: Broker) -> AsyncIterator[HttpServer]:
    port = HttpServer("127.0.0.1", 0, lambda: broker.phase)
    await port.start()
    try:
        yield port
    finally:
        await port.stop()


async def ask(port: HttpServer, request: bytes) -> bytes:
    """Everything until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()


async def get(port: HttpServer, path: str) -> tuple[int, bytes]:
    answer = await ask(port, f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    return int(head.split()[1]), body


def test_a_broker_is_alive_before_it_is_ready(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        broker = Broker()
        async with serving(broker) as port:
            assert await get(port, "/healthz") == (200, b"ok\n")
            assert await get(port, "/readyz") == (503, b"recovering\n")
            assert (await get(port, "/metrics"))[0] == 503
            broker.phase = "ready"
            assert await get(port, "/readyz?verbose") == (200, b"ready\n")
            broker.phase = "stopping"
            assert await get(port, "/readyz") == (503, b"stopping\n")

    run.run(scenario())


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET /metrics\r\n\r\n", 400),
        (b"\x00\x00\x00\x10nonsense\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\n" + b"A: b\r\n" * (HEAD_BYTES_MAX // 6) + b"\r\n", None),
        (b"\xff" * (2 * HEAD_BYTES_MAX), None),
    ],
)
def test_an_invalid_request_is_refused(run: asyncio.Runner, request_: bytes, status: int | None) -> None:
    async def scenario() -> None:
        async with serving(Broker()) as port:
            try:
                answer = await ask(port, request_)
            except ConnectionResetError:
                answer = b""
            assert answer[9:12] == (b"" if status is None else str(status).encode())
            assert (await get(port, "/healthz"))[0] == 200

    run.run(scenario())


def test_a_head_has_no_body(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        async with serving(Broker()) as port:
            answer = await ask(port, b"HEAD /healthz HTTP/1.0\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200")
            assert answer.endswith(b"\r\n\r\n")

    run.run(scenario())


async def until_closed(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionResetError):
        assert await reader.read() == b""


@asynccontextmanager
async def connected(port: HttpServer, count: int, sent: bytes) -> AsyncIterator[list[asyncio.StreamReader]]:
    opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    try:
        for _ in range(count):
            opened.append(await asyncio.open_connection("127.0.0.1", port.port))
            opened[-1][1].write(sent)
        yield [reader for reader, _ in opened]
    finally:
        for _, writer in opened:
            writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET /hea"])
def test_silent_connections_do_not_block_others(run: asyncio.Runner, sent: bytes) -> None:
    async def scenario() -> None:
        async with (
            asyncio.timeout(60),
            serving(Broker()) as port,
            connected(port, 2 * CONNECTIONS_MAX, sent) as silent,
        ):
            assert await get(port, "/healthz") == (200, b"ok\n")
            for reader in silent[:CONNECTIONS_MAX]:
                await until_closed(reader)

    run.run(scenario())


def test_a_request_in_progress_is_not_evicted(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def metrics() -> bytes:
            asked.set()
            await go_on.wait()
            return b"m 1\n"

        async with serving(Broker()) as port, asyncio.timeout(60):
            port.metrics = metrics
            scrape = asyncio.get_running_loop().create_task(get(port, "/metrics"))
            await asked.wait()
            async with connected(port, 2 * CONNECTIONS_MAX, b"") as silent:
                assert await get(port, "/healthz") == (200, b"ok\n")
                await until_closed(silent[0])
                go_on.set()
                assert await scrape == (200, b"m 1\n")

    run.run(scenario())


def test_unfinished_requests_do_not_block_others(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        async def metrics() -> bytes:
            await asyncio.Event().wait()
            return b""

        async with serving(Broker()) as port, asyncio.timeout(60):
            port.metrics = metrics
            async with connected(port, CONNECTIONS_MAX, b"GET /metrics HTTP/1.1\r\n\r\n") as stuck:
                assert await get(port, "/healthz") == (200, b"ok\n")
                await until_closed(stuck[0])

    run.run(scenario())


def test_concurrent_scrapes_share_one_text(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        written = 0
        all_have_come = asyncio.Event()

        async def metrics() -> bytes:
            nonlocal written
            written += 1
            await all_have_come.wait()
            return b"m 1\n"

        def look() -> None:
            if port.waiting == 5:
                all_have_come.set()
            else:
                asyncio.get_running_loop().call_later(0.01, look)

        async with serving(Broker()) as port:
            port.metrics = metrics
            look()
            answers = await asyncio.gather(*[get(port, "/metrics") for _ in range(5)])
            assert answers == [(200, b"m 1\n")] * 5
            assert written == 1

    run.run(scenario())


def test_no_port_is_opened_unless_it_is_asked_for(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        port = HttpServer("", -1, lambda: "ready")
        await port.start()
        assert port.port == -1
        await port.stop()

    run.run(scenario())


def test_a_port_that_is_taken_is_named(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        async with serving(Broker()) as port:
            with pytest.raises(OSError, match=r"ottla\.http\.port"):
                await HttpServer("127.0.0.1", port.port, lambda: "ready").start()

    run.run(scenario())


def test_many_samples_are_written_in_slices_with_one_header(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        number = 10 * SLICE_SAMPLES + 1
        many = Family("many", "gauge", "Help.", ("topic",), (((f't"{n}\n',), n) for n in range(number)))
        beside = asyncio.get_running_loop().create_task(others())
        text = (await write([many, counter("c", "C.", 3), gauge("g", "G.", 1)])).decode()
        beside.cancel()
        assert turns >= 10, "nobody else had a turn"
        lines = text.splitlines()
        assert lines[:3] == ["# HELP many Help.", "# TYPE many gauge", r'many{topic="t\"0\n"} 0.0']
        assert sum(line.startswith("# TYPE many") for line in lines) == 1
        assert sum(line.startswith("many{") for line in lines) == number
        assert "c_total 3.0" in lines
        assert "g 1.0" in lines

    run.run(scenario())


def test_the_sum_of_all_topics_never_decreases() -> None:
    counters = TopicCounters()
    counters["a"].bytes_in += 5
    counters["b"].bytes_in += 7
    counters.forget(lambda topic: topic == "b")
    assert list(counters) == ["b"]
    assert counters.total().bytes_in == 12
