"""The worker processes of slow appends: they answer, they may die, and they go with the broker."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from ottla.ports.workers import OsWorkers
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import Record, build_batch, parse_batch_header
from ottla.server.logs.deferred_validation import DeferredValidation, ValidationResult
from ottla.storage.log_config import LogConfig
from ottla.storage.record_validation import InvalidRecords
from tests.legacy_messages import message, wrapped
from tests.worlds.storage_logs import NOW_MS, batch


@pytest.fixture
def run() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


async def validate(
    appends: DeferredValidation, data: bytes, config: LogConfig | None = None
) -> ValidationResult:
    verdict: asyncio.Future[ValidationResult] = asyncio.get_running_loop().create_future()
    appends.submit(data, config or LogConfig(), NOW_MS, verdict.set_result)
    return await asyncio.wait_for(verdict, 120)


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_batch_comes_back_ready_and_a_bad_one_with_its_reasons(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        appends = DeferredValidation(OsWorkers())
        assert not appends.pids, "a process nobody needs yet"
        found = await validate(appends, wrapped(1, Codec.GZIP, 0, message(1, 0, b"k", b"v")))
        assert isinstance(found, tuple)
        assert parse_batch_header(found[0]).magic == 2
        keyless = build_batch([Record(0, NOW_MS, None, b"v")])
        refused = await validate(appends, keyless, LogConfig(cleanup_policy="compact"))
        assert isinstance(refused, InvalidRecords)
        assert [each.batch_index for each in refused.record_errors] == [0]
        nothing = await validate(appends, message(0, 0, b"k", b"v")[:-1])
        assert nothing == (b"", -1)
        pids = appends.pids
        assert pids
        await appends.close()
        assert not any(map(is_there, pids))

    run.run(scenario())


def test_a_worker_that_dies_is_replaced(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        appends = DeferredValidation(OsWorkers())
        await validate(appends, batch("a"))
        for pid in appends.pids:
            os.kill(pid, signal.SIGKILL)
        verdicts = [await validate(appends, batch("a")) for _ in range(8)]
        assert isinstance(verdicts[-1], tuple)
        for verdict in verdicts:
            if isinstance(verdict, KafkaError):
                assert verdict.code is ErrorCode.UNKNOWN_SERVER_ERROR
        await appends.close()

    run.run(scenario())


def test_many_at_once_all_come_back(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        appends = DeferredValidation(OsWorkers())
        asked = [batch(str(n)) for n in range(50)]
        found = await asyncio.gather(*[validate(appends, data) for data in asked])
        assert [bytes(each[0]) for each in found if isinstance(each, tuple)] == asked
        await appends.close()

    run.run(scenario())


def test_a_validation_after_the_end_is_refused(run: asyncio.Runner) -> None:
    async def scenario() -> None:
        appends = DeferredValidation(OsWorkers())
        await appends.close()
        refused = await validate(appends, batch("a"))
        assert isinstance(refused, KafkaError)

    run.run(scenario())
