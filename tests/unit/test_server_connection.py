"""A connection over a socket pair: one request at a time, answers in order, nobody's memory but its own."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.metadata.config import BrokerConfig
from ottla.ports.files import OS_FILES, OsFiles
from ottla.server.assembly.request_processing import send_buffer_bytes
from ottla.server.network.channel import PENDING_RESPONSES_MAX, SENDFILE_TURN_BYTES
from ottla.server.network.listener import Endpoint
from ottla.storage.segment_files import FileSlice, SegmentFile
from tests.worlds.clocks import StoppedClock
from tests.worlds.connection_harness import Harness, framed


@pytest.fixture
def run() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=StoppedClock) as runner:
        yield runner


def test_pipelined_requests_are_answered_one_by_one_in_order(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            await h.send(framed(b"one") + framed(b"two") + framed(b"three"))
            await h.request(1)
            await h.turns()
            assert h.requests == [b"one"], "the second waits for the first one's answer"
            h.connection.respond((framed(b"1"),))
            await h.request(2)
            assert h.requests == [b"one", b"two"]
            h.connection.skip_response()
            await h.request(3)
            h.connection.respond((framed(b"3"),))
            assert await h.receive(10) == framed(b"1") + framed(b"3")

    run.run(scenario())


PRODUCE, FETCH = (b"\x00\x00", b"\x00\x01")


def test_behind_a_produce_that_waits_others_go_on_and_answers_keep_their_order(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            await h.send(framed(PRODUCE + b"1") + framed(PRODUCE + b"2") + framed(PRODUCE + b"3"))
            await h.request(1)
            first = h.connection.defer_response()
            await h.request(2)
            second = h.connection.defer_response()
            await h.request(3)
            h.connection.respond((framed(b"third"),))
            assert first is not None
            assert second is not None
            h.connection.complete(second, (framed(b"second"),))
            await h.turns()
            h.connection.complete(first, (framed(b"first"),))
            assert await h.receive(28) == framed(b"first") + framed(b"second") + framed(b"third")
            await h.send(framed(FETCH))
            await h.request(4)

    run.run(scenario())


def test_no_other_request_passes_a_produce_that_waits(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            await h.send(framed(PRODUCE) + framed(FETCH) + framed(PRODUCE))
            await h.request(1)
            waiting = h.connection.defer_response()
            await h.turns()
            assert h.requests == [PRODUCE], "what it asks for may depend on the answer"
            assert waiting is not None
            h.connection.complete(waiting, (framed(b"done"),))
            await h.request(2)
            await h.turns()
            assert h.requests == [PRODUCE, FETCH]
            assert await h.receive(8) == framed(b"done")

    run.run(scenario())


def test_so_many_may_wait_and_no_more(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            await h.send(framed(PRODUCE) * (PENDING_RESPONSES_MAX + 1))
            responses = []
            for number in range(1, PENDING_RESPONSES_MAX + 1):
                await h.request(number)
                responses.append(h.connection.defer_response())
            await h.turns()
            assert len(h.requests) == PENDING_RESPONSES_MAX
            assert responses[0] is not None
            h.connection.complete(responses[0], (framed(b""),))
            await h.request(PENDING_RESPONSES_MAX + 1)

    run.run(scenario())


def test_a_client_that_has_closed_its_half_has_the_answers_that_wait(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            await h.send(framed(PRODUCE) + framed(PRODUCE))
            h.client.shutdown(socket.SHUT_WR)
            await h.request(1)
            responses = [h.connection.defer_response()]
            await h.request(2)
            responses.append(h.connection.defer_response())
            await h.turns()
            assert h.connection.idle_for(h.loop.time() + 1000) == 0
            for response in responses:
                assert response is not None
                h.connection.complete(response, (framed(b"done"),))
            assert await h.receive(16) == framed(b"done") * 2
            assert await h.closed_by_server()

    run.run(scenario())


def test_answers_to_requests_that_came_together_leave_together(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness(socket.SOCK_SEQPACKET) as h:  # one receive returns what one send has sent
            h.echo = True
            three = framed(b"one") + framed(b"two") + framed(b"three")
            await h.send(three)
            assert await asyncio.wait_for(h.loop.sock_recv(h.client, 1 << 20), 60) == three

    run.run(scenario())


def test_responses_to_requests_before_one_that_closes_the_connection_are_sent(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            h.echo = True
            await h.send(framed(b"good") + (2_000_000).to_bytes(4, "big"))
            assert await h.receive(8) == framed(b"good")
            assert await h.closed_by_server()

    run.run(scenario())


def test_a_long_row_of_requests_that_came_together_is_answered_to_the_end(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            h.echo = True
            row = b"".join(framed(b"%d" % number) for number in range(1000))
            await h.send(row)
            assert await h.receive(len(row)) == row

    run.run(scenario())


def test_a_request_is_read_whole_however_it_trickles_in(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            h.echo = True
            data = framed(b"x" * 200_000)
            for start in range(0, len(data), 33_333):
                await h.send(data[start : start + 33_333])
                await h.turns(2)
            assert await h.receive(len(data)) == data

    run.run(scenario())


def test_an_answer_of_bytes_and_file_ranges_arrives_as_one(run: asyncio.Runner, tmp_path: Path) -> None:
    async def scenario() -> None:
        with Harness() as h:
            content = os.urandom(3_000_000)
            (tmp_path / "segment").write_bytes(content)
            file = SegmentFile(OS_FILES, tmp_path / "segment")
            await h.send(framed(b"fetch"))
            await h.request(1)
            # More than a socket's buffer holds: the rest goes when the client reads.
            h.connection.respond(
                (
                    b"head",
                    memoryview(b"er"),
                    FileSlice(file, 100, 2_000_000),
                    b"-",
                    FileSlice(file, 0, 50),
                    b"end",
                )
            )
            expected = b"header" + content[100:2_000_100] + b"-" + content[:50] + b"end"
            assert await h.receive(len(expected)) == expected

    run.run(scenario())


def test_others_have_their_turn_while_a_long_file_range_is_sent(
    run: asyncio.Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        calls: list[int] = []
        turns = 0

        def sendfile(out: int, file: int, offset: int, count: int) -> int:
            """A kernel that never has enough: it takes all at once."""
            calls.append(turns)
            return count

        monkeypatch.setattr(OsFiles, "sendfile", staticmethod(sendfile))
        with Harness() as h:
            (tmp_path / "segment").touch()
            file = SegmentFile(OS_FILES, tmp_path / "segment")
            await h.send(framed(b"fetch"))
            await h.request(1)
            h.connection.respond((FileSlice(file, 0, 3 * SENDFILE_TURN_BYTES), FileSlice(file, 0, 10)))
            while len(calls) < 4:
                turns += 1
                await asyncio.sleep(0)
            assert calls == sorted(set(calls)), "never twice in one turn"

    run.run(scenario())


def test_a_client_that_does_not_read_its_answers_is_not_read_either(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            await h.send(framed(b"one") + framed(b"two"))
            await h.request(1)
            big = b"z" * 4_000_000
            h.connection.respond((big,))
            await h.turns()
            assert h.requests == [b"one"], "its answer is still on the way"
            assert await h.receive(len(big)) == big
            await h.request(2)
            h.connection.respond((framed(b"2"),))
            assert await h.receive(5) == framed(b"2")

    run.run(scenario())


def test_requests_behind_a_long_one_wait_in_the_buffer_and_then_in_the_kernel(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            await h.send(framed(b"slow"))
            await h.request(1)
            bodies = [bytes([65 + i % 26]) * 1000 for i in range(200)]
            sending = asyncio.ensure_future(h.send(b"".join(map(framed, bodies))))
            await h.turns(20)
            assert h.requests == [b"slow"]
            h.echo = True
            h.connection.respond((framed(b"done"),))
            expected = framed(b"done") + b"".join(map(framed, bodies))
            assert await h.receive(len(expected)) == expected
            await sending

    run.run(scenario())


def test_a_size_that_cannot_be_closes_the_connection(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            await h.send(b"GET / HTTP/1.1\r\n\r\n")
            assert await h.closed_by_server()
            assert h.requests == []
            assert not h.server.connections

    run.run(scenario())


def test_a_client_that_leaves_between_requests_is_forgotten(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            h.client.close()
            await h.turns(20)
            assert h.connection.closed
            assert not h.server.connections

    run.run(scenario())


def test_a_client_that_has_closed_its_half_has_all_its_answers(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            await h.send(framed(b"slow") + framed(b"two") + framed(b"cut off")[:6])
            await h.request(1)
            h.client.shutdown(socket.SHUT_WR)
            await h.turns(20)
            assert not h.connection.closed
            h.echo = True
            h.connection.respond((framed(b"slow"),))
            assert await h.receive(15) == framed(b"slow") + framed(b"two")
            assert await h.closed_by_server()
            assert h.requests == [b"slow", b"two"]

    run.run(scenario())


def test_a_client_that_left_meanwhile_is_forgotten_with_its_answer(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            await h.send(framed(b"slow"))
            await h.request(1)
            h.client.close()
            await h.turns(20)
            h.connection.respond((framed(b"too late"),))
            assert h.connection.closed
            assert not h.server.connections
            h.connection.respond((framed(b"later still"),))

    run.run(scenario())


def test_a_request_that_waits_detached_keeps_no_buffer(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            await h.send(framed(b"long poll"))
            await h.request(1)
            h.connection.detach()
            assert h.server.buffers.lent_bytes == 0
            await h.send(framed(b"next"))
            await h.turns()
            assert h.requests == [b"long poll"]
            h.connection.respond((framed(b"data"),))
            await h.request(2)

    run.run(scenario())


def test_over_queued_max_request_bytes_clients_are_not_read_until_others_were_answered(
    run: asyncio.Runner,
) -> None:
    async def scenario() -> None:
        with Harness(queued_max_bytes=1000) as h:
            await h.send(framed(b"a" * 2000))
            await h.request(1)
            ours, client = socket.socketpair()
            ours.setblocking(False)
            client.setblocking(False)
            h.server.adopt(ours, "PLAINTEXT", ("10.0.0.8", 1))
            await h.loop.sock_sendall(client, framed(b"second"))
            await h.turns(20)
            assert len(h.requests) == 1
            assert h.server.buffers.lent_bytes == 65_536, "not a byte of the second is read"
            h.echo = True
            h.connection.respond((framed(b"done"),))
            await h.request(2)
            assert await asyncio.wait_for(h.loop.sock_recv(client, 100), 60) == framed(b"second")
            client.close()

    run.run(scenario())


def test_a_request_that_waits_for_memory_while_throttled_is_served_when_both_are_over(
    run: asyncio.Runner,
) -> None:
    async def scenario() -> None:
        with Harness(queued_max_bytes=1000) as h:
            memory = h.server.memory
            assert memory is not None
            assert memory.reserve(1000)
            await h.send(framed(b"one"))
            await h.turns()
            assert h.requests == []
            h.connection.mute(20)
            memory.release(1000)
            await h.turns()
            assert h.requests == []
            await h.advance(0.021)
            await h.request(1)

    run.run(scenario())


def test_idleness_begins_with_the_answer_however_long_that_took(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            await h.send(framed(b"join a group"))
            await h.request(1)
            h.connection.active_s -= 3600
            h.connection.respond((framed(b"joined"),))
            assert await h.receive(10) == framed(b"joined")
            h.server.tick()
            assert not h.connection.closed

    run.run(scenario())


def test_only_idle_connections_are_closed_for_idleness(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            now = h.loop.time()
            h.server.tick()
            assert not h.connection.closed
            assert 0 <= h.connection.idle_for(now + 61) <= 61.5
            await h.send(framed(b"long poll"))
            await h.request(1)
            assert h.connection.idle_for(now + 3600) == 0, "a request is being worked on"

    run.run(scenario())


def test_a_throttled_client_has_its_answer_at_once_and_its_next_request_waits(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            await h.send(framed(b"one") + framed(b"two"))
            await h.request(1)
            h.connection.mute(50)
            h.connection.respond((framed(b"1"),))
            assert await h.receive(5) == framed(b"1")
            await h.send(framed(b"three"))
            await h.turns()
            assert h.requests == [b"one"]
            await h.advance(0.049)
            assert h.requests == [b"one"]
            await h.advance(0.002)
            await h.request(2)
            h.connection.respond((framed(b"2"),))
            await h.request(3)
            assert h.requests == [b"one", b"two", b"three"]

    run.run(scenario())


def test_a_throttle_is_lengthened_and_never_cut_short(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            h.connection.mute(3_600_000)
            h.connection.mute(1)
            muted = h.connection._muted
            assert muted is not None
            assert muted.when() - h.loop.time() > 3000
            h.connection.mute(7_200_000)
            assert muted.cancelled()
            await h.send(framed(b"one"))
            await h.advance(7_199)
            assert h.requests == []
            assert h.connection.idle_for(h.loop.time() + 3600) == 0, "a throttled connection is not idle"
            h.connection.close()

    run.run(scenario())


def test_a_request_without_an_answer_can_be_throttled_too(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            await h.send(framed(b"acks=0") + framed(b"two"))
            await h.request(1)
            h.connection.mute(20)
            h.connection.skip_response()
            await h.turns()
            assert h.requests == [b"acks=0"]
            await h.advance(0.021)
            await h.request(2)

    run.run(scenario())


def test_a_listener_on_port_0_tells_its_real_port_and_serves(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            h.echo = True
            endpoint = h.server.bind(Endpoint("PLAINTEXT", "", 0))
            assert endpoint.port > 0
            h.server.listen()
            h.server.serve()
            reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
            writer.write(framed(b"hello"))
            assert await asyncio.wait_for(reader.readexactly(9), 60) == framed(b"hello")
            peers = {c.peer_host for c in h.server.connections}
            assert peers == {"10.0.0.7", "127.0.0.1"}, "IPv4 in IPv6 clothes shows as IPv4"
            h.server.stop_accepting()
            h.server.close_all()
            assert await asyncio.wait_for(reader.read(), 60) == b""
            writer.close()

    run.run(scenario())


def test_a_port_that_is_taken_is_named(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            first = h.server.bind(Endpoint("PLAINTEXT", "127.0.0.1", 0))
            h.server.listen()
            with pytest.raises(OSError, match=f"cannot listen on OTHER://127.0.0.1:{first.port}"):
                h.server.bind(Endpoint("OTHER", "127.0.0.1", first.port))
            h.server.stop_accepting()

    run.run(scenario())


def test_a_client_that_only_sends_is_stopped_by_its_own_unread_answers(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            await h.send(framed(b"one"))
            await h.request(1)
            big = b"z" * 4_000_000
            h.connection.respond((big,))
            flood = h.loop.create_task(h.send(framed(b"f" * 1000) * 5000))
            await h.turns(200)
            assert not flood.done(), "the kernel's buffers hold it back, not our memory"
            h.echo = True
            received = await h.receive(len(big) + 5000 * 1004)
            assert received[: len(big)] == big
            assert len(received) == len(big) + 5000 * 1004
            await flood

    run.run(scenario())


def test_a_response_is_sent_once_the_kernel_has_all_of_it(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            sent: list[str] = []
            await h.send(framed(b"one"))
            await h.request(1)
            h.connection.respond((b"small",))
            h.connection.when_sent(lambda: sent.append("small"))
            assert sent == ["small"]
            await h.send(framed(b"two"))
            await h.request(2)
            big = b"z" * 4_000_000
            h.connection.respond((big,))
            h.connection.when_sent(lambda: sent.append("big"))
            await h.turns()
            assert sent == ["small"], "the client reads nothing"
            await h.receive(len(b"small" + big))
            await h.turns()
            assert sent == ["small", "big"]

    run.run(scenario())


def test_a_deferred_response_is_sent_after_those_before_it(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            sent: list[str] = []
            await h.send(framed(b"\0\0one"))
            await h.request(1)
            first = h.connection.defer_response()
            await h.send(framed(b"\0\0two"))
            await h.request(2)
            second = h.connection.defer_response()
            h.connection.complete(second, (b"2",))
            h.connection.when_sent(lambda: sent.append("second"), second)
            assert sent == []
            h.connection.complete(first, (b"1",))
            assert await h.receive(2) == b"12"
            assert sent == ["second"]

    run.run(scenario())


def test_a_muted_connection_says_until_when(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        with Harness() as h:
            assert h.connection.muted_until_s == 0
            h.connection.mute(500)
            assert h.connection.muted_until_s == pytest.approx(h.loop.time() + 0.5, abs=0.2)

    run.run(scenario())


def test_the_send_buffer_is_the_systems_unless_it_is_set() -> None:
    settings = {"broker.id": "0"}
    assert send_buffer_bytes(BrokerConfig.from_properties(settings)) == -1
    settings["socket.send.buffer.bytes"] = "102400"
    assert send_buffer_bytes(BrokerConfig.from_properties(settings)) == 102400
