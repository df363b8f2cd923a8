"""Nothing of a broker outlives its stop: no task, no timer, no thread, no worker process."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from pathlib import Path
from typing import Any, Final

import pytest

from ottla.client import Consumer, Producer
from ottla.client.admin import AdminClient
from ottla.metadata.config import BrokerConfig
from ottla.metadata.memory import MemoryStore, MemoryTree
from ottla.server.assembly.broker import Broker

WAIT_S: Final = 120.0
OF_BROKER: Final[ContextVar[bool]] = ContextVar("of_broker", default=False)
"""Inherited by all tasks and callbacks that a broker creates."""
SETTINGS: Final = {
    "broker.id": "1",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.cleaner.backoff.ms": "100",
    "controlled.shutdown.retry.backoff.ms": "100",
    "zookeeper.session.timeout.ms": "1000",
}


class RecordingLoop(asyncio.SelectorEventLoop):
    """Records the timers and tasks that brokers create."""

    def __init__(self) -> None:
        super().__init__()
        self.timers: dict[asyncio.TimerHandle, str] = {}
        self.tasks: list[asyncio.Task[Any]] = []
        self.set_task_factory(self._make_task)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        def run() -> None:
            self.timers.pop(timer, None)
            callback(*args)

        timer = super().call_at(when, run, context=context)
        if (context or contextvars.copy_context()).get(OF_BROKER, False):
            self.timers[timer] = repr(callback)
        return timer

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Any, context: Context | None = None, **settings: Any
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context, **settings)
        if (context or contextvars.copy_context()).get(OF_BROKER, False):
            self.tasks.append(task)
        return task

    @property
    def left(self) -> list[str]:
        """What of a broker is still to run."""
        timers = [name for timer, name in self.timers.items() if not timer.cancelled()]
        return timers + [repr(task) for task in self.tasks if not task.done() and task is not self._current()]

    def _current(self) -> asyncio.Task[Any] | None:
        return asyncio.current_task(self)


class Running:
    def __init__(self, path: Path, tree: MemoryTree, **settings: str) -> None:
        given = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(path), **SETTINGS, **settings}
        self.broker = Broker(BrokerConfig.from_properties(given), store=MemoryStore(tree))

    async def of_broker(self, work: Coroutine[Any, Any, None]) -> None:
        context = contextvars.copy_context()
        context.run(OF_BROKER.set, True)
        await asyncio.get_running_loop().create_task(work, context=context)

    @property
    def bootstrap(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", self.broker.endpoints[0].port)]


Scenario = Callable[[Running], Coroutine[Any, Any, Any]]


async def nothing(running: Running) -> None:
    pass


async def requests_that_wait(running: Running) -> list[object]:
    """A consumer group, a transaction that is open, a compacted topic, and a Fetch that waits."""
    bootstrap = running.bootstrap
    async with AdminClient(bootstrap_servers=bootstrap) as admin:
        await admin.create_topic("t", partitions=3, replication_factor=1)
        await admin.create_topic(
            "c",
            partitions=1,
            replication_factor=1,
            config={"cleanup.policy": "compact", "segment.bytes": "2000"},
        )
    producer = Producer(bootstrap_servers=bootstrap, transactional_id="a transaction")
    await producer.start()
    producer.begin_transaction()
    for number in range(40):
        await producer.send_and_wait("c", b"%d" % number, key=b"k")
        await producer.send_and_wait("t", b"%d" % number)
    consumer = Consumer(bootstrap_servers=bootstrap, group_id="a group", fetch_max_wait_ms=20_000)
    consumer.subscribe(["t"])
    await consumer.start()
    await consumer.poll(1.0)
    return [producer, consumer]


@pytest.mark.parametrize("scenario", [nothing, requests_that_wait], ids=lambda each: each.__name__)
def test_nothing_outlives_the_stop_of_a_broker(tmp_path: Path, scenario: Scenario) -> None:
    threads_before = threading.active_count()

    async def whole() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, RecordingLoop)
        running = Running(tmp_path, MemoryTree())
        await running.of_broker(running.broker.start())
        clients: Any = await scenario(running)
        assert loop.left
        await running.of_broker(running.broker.stop())
        left = loop.left
        for client in clients or ():
            await client.stop(timeout_s=0)
        assert left == []

    with asyncio.Runner(loop_factory=RecordingLoop) as runner:
        runner.run(asyncio.wait_for(whole(), WAIT_S))
    assert threading.active_count() == threads_before
