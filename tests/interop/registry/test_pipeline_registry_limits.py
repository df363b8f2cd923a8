"""What clients send to the schema registry and what it must not cost the others: slow checks, broken
requests."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from typing import Any

import pytest

from ottla.local.processes import wait_until
from ottla_pipeline.registry.checks import Compare, EarlierVersion, Invalid, Parse, Source
from ottla_pipeline.registry.errors import CheckFailed
from ottla_pipeline.registry.worker import WorkerPool
from tests.judges.registries import Registry


def schema_body(schema: Any) -> dict[str, Any]:
    return {"schemaType": "JSON", "schema": json.dumps(schema)}


def branches(count: int, prefix: str) -> str:
    """A schema of which each branch has to be held against each of another one."""
    names = [f"{prefix}{number}" for number in range(count)]
    return json.dumps(
        {"anyOf": [{"type": "object", "properties": {name: {}}, "required": [name]} for name in names]}
    )


SLOW = Compare(
    "BACKWARD",
    Source("JSON", branches(2500, "a")),
    (EarlierVersion(1, "", "JSON", Source("JSON", branches(2500, "b"))),),
)


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(?=a)(a|a)+(?!b)$"])
def test_a_clients_regular_expression_does_not_block_the_registry(registry: Registry, pattern: str) -> None:
    subject = f"pattern-{len(pattern)}"
    versions = f"/subjects/{subject}/versions"
    long = "a" * 60 + "!"
    assert registry.ask("POST", versions, schema_body({"enum": [long]}))[0] == 200
    answers: list[tuple[int, Any]] = []

    def post() -> None:
        answers.append(registry.ask("POST", versions, schema_body({"type": "string", "pattern": pattern})))

    threads = [threading.Thread(target=post) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        # A registry that matches by backtracking takes longer than any time-out.
        assert registry.ask("GET", f"/subjects/{subject}/versions")[0] == 200
    for thread in threads:
        thread.join()
    assert {status for status, _ in answers} == {409}


def test_schemas_with_slow_checks_are_rejected_and_the_next_ones_are_not() -> None:
    async def ask() -> None:
        workers = WorkerPool(1, job_s=3.0)
        await workers.start()
        try:
            with pytest.raises(CheckFailed, match="takes longer than 3 s"):
                await workers.run(SLOW, "here")
            quick = await workers.run(Parse(Source("AVRO", '{"type": "int"}')), "here")
            assert quick == '"int"'
        finally:
            await workers.stop()

    asyncio.run(ask())


def test_one_clients_slow_checks_do_not_block_others() -> None:
    async def ask() -> None:
        workers = WorkerPool(2, job_s=30.0)
        await workers.start()
        try:
            slow = [asyncio.create_task(workers.run(SLOW, "slow")) for _ in range(3)]
            quick = await workers.run(Parse(Source("AVRO", '"int"')), "quick")
            assert quick == '"int"'
            assert not any(each.done() for each in slow)
        finally:
            for each in slow:
                each.cancel()
            await asyncio.gather(*slow, return_exceptions=True)
            await workers.stop()

    asyncio.run(ask())


def test_a_worker_that_dies_is_replaced() -> None:
    async def ask() -> None:
        workers = WorkerPool(1)
        await workers.start()
        try:
            (process,) = workers._running
            process.kill()
            with pytest.raises(CheckFailed):
                await workers.run(Parse(Source("AVRO", '"int"')), "here")
            assert await workers.run(Parse(Source("AVRO", '"int"')), "here") == '"int"'
        finally:
            await workers.stop()

    asyncio.run(ask())


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
@pytest.mark.parametrize("depth", [400, 100_000])
def test_deep_schemas_are_refused(kind: str, depth: int) -> None:
    async def ask() -> None:
        workers = WorkerPool(1)
        await workers.start()
        try:
            item = '{"type": "array", "items": '
            result = await workers.run(Parse(Source(kind, item * depth + '"int"' + "}" * depth)), "here")
            assert isinstance(result, Invalid)
        finally:
            await workers.stop()

    asyncio.run(ask())


def test_schemas_with_infinite_recursion_are_rejected(registry: Registry) -> None:
    versions = "/subjects/circle/versions"
    circle = {"allOf": [{"$ref": "#"}]}
    assert registry.ask("POST", versions, schema_body(circle))[0] in (200, 422)
    registry.ask("POST", versions, schema_body({"type": "string"}))
    status, _ = registry.ask("POST", versions, schema_body({**circle, "type": "string"}))
    assert status in (200, 409, 422)


def test_a_rejected_or_aborted_request_logs_no_traceback(registry: Registry) -> None:
    versions = "/subjects/broken/versions"
    surrogate = {"schemaType": "JSON", "schema": '{"title": "\\ud800"}'}
    assert registry.code("POST", versions, surrogate) == 42201
    assert registry.code("POST", versions, {"schema": '{"type": "\\ud800"}'}) == 42201
    assert registry.code("GET", f"/schemas/ids/{'9' * 5000}") == 404
    assert registry.code("GET", f"/subjects/broken/versions/{'9' * 5000}") == 42202
    assert registry.code("POST", versions, {"schema": "x" * (9 << 20)}) == 413
    host, _, port = registry.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as half:
        half.sendall(f"POST {versions} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
    counted = 'path="/subjects/{subject}/versions",status="499"'
    assert wait_until(lambda: counted in str(registry.ask("GET", "/metrics")[1]), timeout_s=30)
    assert "Traceback" not in registry.log.read_text(), registry.log.read_text()
