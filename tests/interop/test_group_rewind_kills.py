"""The coordinator is killed while it rewinds a group: the offsets of all partitions have changed, or of none.

Which of the two is in the log of the next coordinator: the rewind is there if its batch was replicated.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rewound_groups import BETWEEN, PARTITIONS, TO, RunningGroup, written_topic

from ottla.coordinators.records import OffsetRecordKey, parse_key, parse_offset_value
from ottla.local.brokers import BrokerProcess
from ottla.local.cluster import LocalCluster
from ottla.local.processes import wait_until
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import OffsetCommitRequest, OffsetCommitResponse
from ottla.protocol.records import decode_records
from ottla.wire.connection import BrokerConnection, ConnectionLost

pytestmark = pytest.mark.timeout(300)
CLUSTER = {
    "group.initial.rebalance.delay.ms": "1000",
    "offsets.topic.replication.factor": "3",
    "zookeeper.session.timeout.ms": "4000",
    "replica.lag.time.max.ms": "4000",
}
FETCH_WAIT_S = 0.5
"""replica.fetch.wait.max.ms: a leader answers a follower's fetch by then."""
ALL = set(range(PARTITIONS))


class KillScenario:
    """A group that reads, and its coordinator, which is to be killed."""

    def __init__(self, cluster: LocalCluster, group: RunningGroup) -> None:
        self._cluster = cluster
        self.group = group
        self.coordinator = self.current_coordinator()
        self.others = [broker for broker in cluster.brokers.values() if broker is not self.coordinator]

    def current_coordinator(self) -> BrokerProcess:
        found = self.group.admin(lambda admin: admin.describe_group(self.group.name)).coordinator
        return self._cluster.brokers[found.id]

    def rewinds_in_log_of(self, broker: BrokerProcess) -> set[int]:
        """Partitions whose rewind is in the broker's files. Members commit TO + 1 at the least."""
        found: set[int] = set()
        for file in broker.data_dir.glob("__consumer_offsets-*/*.log"):
            for record in decode_records(file.read_bytes()):
                key = parse_key(record.key or b"")
                if isinstance(key, OffsetRecordKey) and key.group_id == self.group.name:
                    assert record.value is not None
                    if parse_offset_value(bytes(record.value)).offset == TO:
                        found.add(key.partition[1])
        return found

    def ask(
        self, act: Callable[[], None], *, before: Callable[[], None] = lambda: None
    ) -> OffsetCommitResponse | None:
        """Send a rewind, once, `act` while it is under way; None: the connection ended without an answer."""
        row = OffsetCommitRequest.OffsetCommitRequestPartition
        rows = [row(partition_index=tp.partition, committed_offset=TO) for tp in self.group.partitions]
        topic = OffsetCommitRequest.OffsetCommitRequestTopic(name=self.group.topic, partitions=rows)
        request = OffsetCommitRequest(group_id=self.group.name, topics=[topic], remove_members=True)

        async def run() -> OffsetCommitResponse | None:
            broker = self.coordinator
            connection = await BrokerConnection.open(broker.host, broker.port, timeout_s=60)
            try:
                before()
                asking = asyncio.create_task(connection.request(request))
                await asyncio.sleep(0)
                await asyncio.to_thread(act)
                response: OffsetCommitResponse = await asking
            except ConnectionLost:
                return None
            finally:
                connection.close()
            return response

        return asyncio.run(run())

    def wait_for_failover(self) -> None:
        self._cluster.wait_until(
            lambda: self.current_coordinator() is not self.coordinator,
            "another broker to be the group's coordinator",
        )

    def bring_back(self) -> None:
        """Start the broker that was killed, and wait until all replicas are in sync."""
        if not self.coordinator.running:
            self.coordinator.start()

        def all_in_sync() -> bool:
            found = self._cluster.admin(lambda admin: admin.describe_topics())
            partitions = [p for topic in found.values() for p in topic.partitions]
            return all(len(p.isr) == len(p.replicas) for p in partitions)

        self._cluster.wait_until(all_in_sync, "the broker that was killed to be in sync")

    def check_all_changed(self) -> None:
        assert all(offset < BETWEEN for offset in self.group.committed().values())
        self.group.wait_for_new()
        self.group.check_nothing_old()

    def check_nothing_changed(self) -> None:
        """The members read on from where they were."""

        def counts() -> list[int]:
            return [len(member.got) for member in self.group.members]

        before = counts()
        self.group.wait(
            lambda: all(now > then + 30 for now, then in zip(counts(), before, strict=True)),
            "both to read on",
        )
        assert all(member.after == [] for member in self.group.members)
        committed = self.group.committed()
        assert committed.keys() == set(self.group.partitions)
        assert all(offset > BETWEEN for offset in committed.values())

    def check_logs(self, rewound: set[int]) -> None:
        """Of all replicas, once they are in sync."""
        for broker in (self.coordinator, *self.others):
            assert self.rewinds_in_log_of(broker) == rewound, f"broker {broker.broker_id}"


@pytest.fixture
def scenario(cluster: LocalCluster, tmp_path: Path) -> Iterator[KillScenario]:
    with (
        written_topic(cluster.bootstrap, 3) as topic,
        RunningGroup(
            cluster.bootstrap, topic, tmp_path, "librdkafka", "cooperative-sticky", static=False
        ) as group,
    ):
        group.wait_for_old()
        scenario = KillScenario(cluster, group)
        yield scenario
    scenario.bring_back()


def is_stopped(broker: BrokerProcess) -> bool:
    """Each of its threads."""
    stats = Path(f"/proc/{broker.pid}/task").glob("*/stat")
    return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in stats)


def stop(broker: BrokerProcess) -> None:
    broker.signal(signal.SIGSTOP)
    assert wait_until(lambda: is_stopped(broker), timeout_s=10, poll_s=0.001)


@contextmanager
def stopped(brokers: list[BrokerProcess]) -> Iterator[None]:
    try:
        for broker in brokers:
            stop(broker)
        yield
    finally:
        for broker in brokers:
            broker.signal(signal.SIGCONT)


def test_killed_before_it_reads_the_request(scenario: KillScenario) -> None:
    assert scenario.ask(scenario.coordinator.kill, before=lambda: stop(scenario.coordinator)) is None
    scenario.wait_for_failover()
    scenario.check_nothing_changed()
    scenario.bring_back()
    scenario.check_logs(set())
    scenario.check_nothing_changed()


def test_killed_when_the_batch_is_written_and_not_replicated(scenario: KillScenario) -> None:
    def kill_once_written() -> None:
        written = wait_until(
            lambda: scenario.rewinds_in_log_of(scenario.coordinator) == ALL, timeout_s=10, poll_s=0.001
        )
        scenario.coordinator.kill()
        assert written

    with stopped(scenario.others):
        # The followers' fetches that were there have been answered, and none follows.
        time.sleep(2 * FETCH_WAIT_S)
        assert scenario.ask(kill_once_written) is None
    assert scenario.rewinds_in_log_of(scenario.coordinator) == ALL
    scenario.wait_for_failover()
    scenario.check_nothing_changed()
    scenario.bring_back()
    scenario.check_logs(set())
    scenario.check_nothing_changed()


@pytest.mark.parametrize("delay_ms", [0, 3, 8])
def test_killed_at_any_time_between(scenario: KillScenario, delay_ms: int) -> None:
    def kill() -> None:
        time.sleep(delay_ms / 1000)
        scenario.coordinator.kill()

    response = scenario.ask(kill)
    scenario.wait_for_failover()
    rewound = scenario.rewinds_in_log_of(scenario.current_coordinator())
    assert rewound in (set(), ALL), "it is one batch"
    assert rewound == ALL or response is None
    if rewound:
        scenario.check_all_changed()
    else:
        scenario.check_nothing_changed()
    scenario.bring_back()
    scenario.check_logs(rewound)


def test_killed_when_it_has_answered(scenario: KillScenario) -> None:
    response = scenario.ask(lambda: None)
    scenario.coordinator.kill()
    assert response is not None
    assert [row.error_code for topic in response.topics for row in topic.partitions] == [ErrorCode.NONE] * 2
    scenario.wait_for_failover()
    scenario.check_all_changed()
    scenario.bring_back()
    scenario.check_logs(ALL)


def test_the_admin_client_asks_the_next_coordinator(scenario: KillScenario) -> None:
    killer = threading.Timer(0.02, scenario.coordinator.kill)
    killer.start()
    scenario.group.rewind()
    killer.join()
    scenario.check_all_changed()
