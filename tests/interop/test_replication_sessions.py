"""Three brokers in this process that follow each other by fetch sessions, through what happens to topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ottla.client.admin import AdminClient
from ottla.client.admin_types import TopicPartition
from ottla.metadata.config import BrokerConfig
from ottla.metadata.memory import MemoryStore, MemoryTree
from ottla.ports import OsClock, Ports
from ottla.protocol.records import Record, build_batch
from ottla.replication.partition import Partition
from ottla.server.assembly.broker import Broker, new_event_loop
from ottla.server.dispatch.fetch_sessions import FetchSession

pytestmark = pytest.mark.timeout(200)

SETTINGS = {
    "zookeeper.session.timeout.ms": "1000",
    "controlled.shutdown.retry.backoff.ms": "100",
    "replica.fetch.wait.max.ms": "50",
    "replica.lag.time.max.ms": "4000",
    "log.segment.delete.delay.ms": "100",
}
BATCH = build_batch([Record(0, 1_700_000_000_000, None, b"value")])


CLOCK = OsClock()


class SteppedClock(OsClock):
    """A clock whose wall time is set ahead."""

    ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


class Brokers:
    """Brokers 1 to 3, and what is to be seen of them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tree = MemoryTree()
        self.running: dict[int, Broker] = {}
        self.clock = SteppedClock()

    async def start(self, broker_id: int) -> None:
        settings = {
            "broker.id": str(broker_id),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(self._directory / str(broker_id)),
            **SETTINGS,
        }
        broker = Broker(
            BrokerConfig.from_properties(settings),
            store=MemoryStore(self._tree),
            ports=Ports(clock=self.clock),
        )
        await broker.start()
        self.running[broker_id] = broker

    async def stop(self, broker_id: int) -> None:
        await self.running.pop(broker_id).stop()

    def admin(self) -> AdminClient:
        at = [("127.0.0.1", broker.endpoints[0].port) for broker in self.running.values()]
        return AdminClient(bootstrap_servers=at)

    def leader(self, topic: str, index: int) -> Partition | None:
        found = [broker.replication.replicas.find(topic, index) for broker in self.running.values()]
        return next((p for p in found if p is not None and p.is_leader), None)

    def append(self, topic: str, partitions: int) -> None:
        for index in range(partitions):
            leader = self.leader(topic, index)
            assert leader is not None
            leader.append_as_leader(BATCH, required_acks=1, now_ms=1_700_000_000_000)

    def replicated(self, topic: str, partitions: int, *, replicas: int, end: int) -> bool:
        """Whether all replicas are in sync, have `end` records, and know that they are committed."""
        for index in range(partitions):
            leader = self.leader(topic, index)
            if leader is None or len(leader.isr) != replicas:
                return False
            for broker_id in leader.isr:
                replica = self.running[broker_id].replication.replicas.find(topic, index)
                if replica is None or replica.log.log_end_offset != end or replica.high_watermark != end:
                    return False
        return True

    def sessions(self, leader_id: int, follower_id: int) -> list[FetchSession]:
        cached = self.running[leader_id].replication.purgatory.sessions._sessions.values()
        return [session for session in cached if session.replica_id == follower_id]

    def in_step(self) -> bool:
        """Whether each follower has one session with each leader, of just what it follows there."""
        for leader_id, leader in self.running.items():
            for follower_id in self.running.keys() - {leader_id}:
                wanted = {
                    (p.topic_id, p.partition)
                    for p in leader.replication.replicas.partitions()
                    if p.is_leader and follower_id in p.replicas
                }
                sessions = self.sessions(leader_id, follower_id)
                seen = [{(w.topic_id, w.asked.partition) for w in s.partitions.values()} for s in sessions]
                if (seen or [set()]) != [wanted]:
                    return False
        return True

    def idle(self) -> bool:
        """Whether no session has anything to look at."""
        caches = [broker.replication.purgatory.sessions for broker in self.running.values()]
        every = [session for cache in caches for session in cache._sessions.values()]
        return not any(session.dirty for session in every)


async def until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 (other tasks of this loop bring it about)
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"never came true: {what}")


@asynccontextmanager
async def three(directory: Path) -> AsyncIterator[Brokers]:
    brokers = Brokers(directory)
    try:
        for broker_id in (1, 2, 3):
            await brokers.start(broker_id)
        yield brokers
    finally:
        for broker_id in list(brokers.running):
            await brokers.stop(broker_id)


def run_scenario(directory: Path, scenario: Callable[[Brokers], Awaitable[None]]) -> None:
    async def main() -> None:
        async with three(directory) as brokers:
            await scenario(brokers)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())


async def make(brokers: Brokers, topic: str, partitions: int) -> None:
    admin = brokers.admin()
    try:
        await admin.create_topic(topic, partitions=partitions, replication_factor=3)
    finally:
        await admin.close()
    await until(
        lambda: all(brokers.leader(topic, index) for index in range(partitions)), f"{topic} has leaders"
    )


def test_a_topic_deleted_and_made_again_is_followed_anew(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        await make(brokers, "stays", 3)
        for _ in range(2):
            await make(brokers, "t", 6)
            brokers.append("t", 6)
            brokers.append("t", 6)
            await until(lambda: brokers.replicated("t", 6, replicas=3, end=2), "all have the records")
            await until(brokers.in_step, "sessions are what is followed")
            await until(brokers.idle, "nothing is left to look at")
            admin = brokers.admin()
            await admin.delete_topic("t")
            await admin.close()
            await until(lambda: brokers.leader("t", 0) is None, "the topic is gone")
            await until(
                lambda: not any(b.replication.cache.partitions("t") for b in brokers.running.values()),
                "and forgotten",
            )
            await until(brokers.in_step, "the sessions have forgotten it")
        brokers.append("stays", 3)
        await until(lambda: brokers.replicated("stays", 3, replicas=3, end=1), "the other is followed still")

    run_scenario(tmp_path, scenario)


def test_leaders_and_replicas_may_move(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        await make(brokers, "t", 6)
        brokers.append("t", 6)
        await until(lambda: brokers.replicated("t", 6, replicas=3, end=1), "all have the records")
        await until(brokers.in_step, "sessions are what is followed")
        await brokers.stop(3)
        await until(
            lambda: not brokers.sessions(1, 3) + brokers.sessions(2, 3),
            "a broker that stops closes its sessions",
        )
        await until(lambda: brokers.replicated("t", 6, replicas=2, end=1), "two are left")
        brokers.append("t", 6)
        await until(lambda: brokers.replicated("t", 6, replicas=2, end=2), "and go on")
        await brokers.start(3)
        await until(lambda: brokers.replicated("t", 6, replicas=3, end=2), "the third is back in sync")
        admin = brokers.admin()
        moves = {TopicPartition("t", index): [1 + index % 3] for index in range(6)}
        (await admin.alter_partition_reassignments(moves)).raise_first()
        await admin.close()
        await until(lambda: brokers.replicated("t", 6, replicas=1, end=2), "one replica of each is left")
        await until(brokers.in_step, "nobody follows")
        brokers.append("t", 6)
        admin = brokers.admin()
        moves = {TopicPartition("t", index): [1 + index % 3, 1 + (index + 1) % 3] for index in range(6)}
        (await admin.alter_partition_reassignments(moves)).raise_first()
        await admin.close()
        await until(lambda: brokers.replicated("t", 6, replicas=2, end=3), "and a second one has come")
        await until(brokers.in_step, "sessions are what is followed")

    run_scenario(tmp_path, scenario)


def test_an_idle_follower_is_in_sync_when_the_next_record_comes(tmp_path: Path) -> None:
    """Its polls did not look at the partition for longer than replica.lag.time.max.ms."""

    async def scenario(brokers: Brokers) -> None:
        await make(brokers, "t", 1)
        brokers.append("t", 1)
        await until(lambda: brokers.replicated("t", 1, replicas=3, end=1), "all have the record")
        await until(brokers.idle, "nothing is left to look at")
        leader = brokers.leader("t", 0)
        assert leader is not None
        end_ms = CLOCK.monotonic_ms() + 2 * int(SETTINGS["replica.lag.time.max.ms"])
        await until(lambda: CLOCK.monotonic_ms() > end_ms, "time passed")
        # Each has asked once more since: should the machine have held this process up, they had no turn.
        sessions = [s for each in leader.isr for s in brokers.sessions(leader.broker_id, each)]
        assert len(sessions) == 2
        epochs = [session.epoch for session in sessions]
        await until(
            lambda: all(s.epoch > before for s, before in zip(sessions, epochs, strict=True)),
            "both have asked again",
        )
        assert brokers.idle()
        brokers.append("t", 1)
        leader.maybe_shrink_isr(CLOCK.monotonic_ms())
        assert leader.isr_change is None
        assert len(leader.isr) == 3
        await until(lambda: brokers.replicated("t", 1, replicas=3, end=2), "all have that one too")

    run_scenario(tmp_path, scenario)


def test_a_follower_that_lost_its_session_begins_another(tmp_path: Path) -> None:
    async def scenario(brokers: Brokers) -> None:
        await make(brokers, "t", 3)
        await until(brokers.in_step, "sessions are what is followed")
        for broker in brokers.running.values():
            cache = broker.replication.purgatory.sessions
            for session in list(cache._sessions.values()):
                cache._remove(session)
        brokers.append("t", 3)
        await until(lambda: brokers.replicated("t", 3, replicas=3, end=1), "all have the records")
        await until(brokers.in_step, "there are sessions again")

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000], ids=["forth", "back"])
def test_the_clock_is_set_by_an_hour(tmp_path: Path, step_ms: int) -> None:
    """Nobody leaves the ISR for that; and who stops fetching afterwards does, as soon as ever."""

    async def scenario(brokers: Brokers) -> None:
        await make(brokers, "t", 1)
        brokers.append("t", 1)
        await until(lambda: brokers.replicated("t", 1, replicas=3, end=1), "all have the record")
        leader = brokers.leader("t", 0)
        assert leader is not None
        epoch = leader.partition_epoch
        brokers.clock.ahead_ms += step_ms
        brokers.append("t", 1)
        brokers.running[leader.broker_id].replication.replicas.tick(CLOCK.monotonic_ms())
        await until(lambda: brokers.replicated("t", 1, replicas=3, end=2), "all have another")
        assert leader.partition_epoch == epoch

        away = next(broker for broker in leader.isr if broker != leader.broker_id)
        for fetcher in list(brokers.running[away].replication.replicas._fetchers.values()):
            await fetcher.stop()
        brokers.append("t", 1)
        await until(lambda: away not in leader.isr, "the ISR is smaller")

    run_scenario(tmp_path, scenario)
