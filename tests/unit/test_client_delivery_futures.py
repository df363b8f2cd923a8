"""Delivery futures behave as the futures of the standard library, also in its own functions."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, Future, as_completed, wait

import pytest

from ottla.client.core.types import RecordMetadata
from ottla.client.deliveries import DeliveryFuture

WRITTEN = RecordMetadata("t", 0, 5, 1)


def some(count: int) -> list[DeliveryFuture]:
    lock = threading.Condition(threading.RLock())
    return [DeliveryFuture(lock) for _ in range(count)]


def resolve_later(futures: list[DeliveryFuture]) -> threading.Timer:
    timer = threading.Timer(0.05, lambda: [future.set_result(WRITTEN) for future in futures])
    timer.start()
    return timer


def test_results_errors_and_time_outs() -> None:
    future, failed, pending = some(3)
    future.set_result(WRITTEN)
    failed.set_exception(ValueError("no"))
    assert future.done()
    assert future.result() == WRITTEN
    assert future.exception() is None
    assert isinstance(failed.exception(), ValueError)
    with pytest.raises(ValueError, match="no"):
        failed.result(1)
    assert not pending.done()
    with pytest.raises(TimeoutError):
        pending.result(0.01)
    with pytest.raises(TimeoutError):
        pending.exception(0.01)
    future.set_exception(ValueError("too late"))
    assert future.result() == WRITTEN


def test_many_wait_for_one_and_one_for_many() -> None:
    futures = some(5)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(futures[3].result(10))) for _ in range(4)]
    for thread in threads:
        thread.start()
    resolve_later(futures[3:4])
    for thread in threads:
        thread.join(10)
    assert found == [WRITTEN] * 4
    resolve_later([*futures[:3], futures[4]])
    assert wait(futures, 10).done == set(futures)
    assert set(as_completed(futures, 10)) == set(futures)
    late: list[Future[RecordMetadata]] = list(some(2))
    resolve_later([future for future in late if isinstance(future, DeliveryFuture)])
    assert set(as_completed(late, 10)) == set(late)


def test_a_delivery_future_calls_back_is_cancelled_and_awaited() -> None:
    future, cancelled, awaited, failed = some(4)
    reported: list[object] = []
    future.add_done_callback(reported.append)
    future.set_result(WRITTEN)
    future.add_done_callback(reported.append)
    assert reported == [future, future]
    threading.Timer(0.05, cancelled.cancel).start()
    with pytest.raises(CancelledError):
        cancelled.result(10)
    cancelled.set_result(WRITTEN)
    assert cancelled.cancelled()
    assert not future.cancel()

    async def wait_for_them() -> None:
        resolve_later([awaited])
        assert await asyncio.wrap_future(awaited) == WRITTEN
        failed.set_exception(ValueError("no"))
        with pytest.raises(ValueError, match="no"):
            await asyncio.wrap_future(failed)

    asyncio.run(wait_for_them())
    assert "DeliveryFuture" in repr(some(1)[0])
