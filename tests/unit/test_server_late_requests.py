"""Late duplicates of the controller's requests: what a broker does when one arrives after its topic was
deleted, or deleted and created again. The controller epoch is the present one, and refuses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from ottla.metadata import znodes
from ottla.metadata.memory import MemoryStore
from ottla.metadata.stored_topics import read_topics
from ottla.metadata.znodes import TopicAssignment
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    DescribeLogDirsResponse,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
)
from ottla.server.handlers.admin.log_dirs import LogDirsHandler
from ottla.server.handlers.cluster.inter_broker_requests import STORE_RETRY_S, InterBrokerRequestsHandler
from ottla.server.logs.lost_logs import LostLogDetector
from ottla.wire.inter_broker import Purpose
from tests.worlds.clocks import run_in_virtual_time
from tests.worlds.replication_brokers import TOPIC, Brokers, error_of, until
from tests.worlds.replication_cluster import batch, values_of

OLD = UUID(int=0xA)
NEW = UUID(int=0xB)
DURING_DELETE = -2
VERSIONS = {"LeaderAndIsrRequest": 7, "StopReplicaRequest": 4, "UpdateMetadataRequest": 8}


class Arrived:
    """A request as the handler gets it."""

    def __init__(self, message: Any, version: int | None = None) -> None:
        self._message = message
        self.version = VERSIONS[type(message).__name__] if version is None else version
        self.abandoned = False

    def decode(self, kind: type) -> Any:
        assert isinstance(self._message, kind)
        return self._message


class LateRequestHarness:
    """Brokers with the handler of the controller's requests, and the store that they verify them with."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self.store = MemoryStore()
        self.group_deletions: list[set[str]] = []
        self.handlers: dict[int, InterBrokerRequestsHandler] = {}
        self.lost_logs: dict[int, LostLogDetector] = {}
        self.silent: set[int] = set()
        """Brokers that do not say what logs they have."""
        self.notifications: list[int] = []

    async def open(self) -> None:
        await self.store.connect()
        for broker_id, broker in self.brokers.all.items():

            async def no_settings(topics: list[str]) -> None:
                return None

            inter_broker: Any = SimpleNamespace(request=self._describe)
            notify = partial(self.notifications.append, broker_id)
            lost_logs = self.lost_logs[broker_id] = LostLogDetector(
                broker.manager, broker.cache, inter_broker, notify
            )
            self.handlers[broker_id] = InterBrokerRequestsHandler(
                broker.manager,
                broker.cache,
                controller=None,  # type: ignore[arg-type]  # for requests to the controller
                broker_epoch=lambda: 5,
                load_topic_configs=no_settings,
                read_topics=partial(read_topics, self.store),
                lost_logs=lost_logs,
                on_topics_deleted=self.group_deletions.append,
            )

    async def close(self) -> None:
        for lost_logs in self.lost_logs.values():
            await lost_logs.stop()

    async def _describe(self, broker_id: int, request: Any, purpose: Purpose) -> DescribeLogDirsResponse:
        await asyncio.sleep(0)
        if broker_id in self.silent:
            raise ConnectionError("connection lost")
        broker, answers = self.brokers[broker_id], list[DescribeLogDirsResponse]()
        arrived: Any = Arrived(request, 4)
        arrived.respond = answers.append
        LogDirsHandler(broker.logs, broker.manager).describe(arrived)
        return answers[0]

    # --- the store, as the controller writes it -----------------------------------------------------

    async def create(
        self, topic_id: UUID | None, replicas: tuple[int, ...] | None = None, removing: tuple[int, ...] = ()
    ) -> None:
        node = TopicAssignment(
            {0: tuple(self.brokers.all) if replicas is None else replicas},
            removing={0: removing} if removing else {},
            topic_id=topic_id,
        )
        path = znodes.topic_path(TOPIC)
        if await self.store.exists(path) is None:
            await self.store.create(path, znodes.encode_topic(node), make_parents=True)
        else:
            await self.store.set(path, znodes.encode_topic(node))

    async def request_deletion(self) -> None:
        await self.store.create(znodes.delete_topic_path(TOPIC), make_parents=True)

    async def forget(self) -> None:
        for path in (znodes.topic_path(TOPIC), znodes.delete_topic_path(TOPIC)):
            if await self.store.exists(path) is not None:
                await self.store.delete(path)

    # --- requests -----------------------------------------------------------------------------------

    async def send_leader_and_isr(self, *receivers: int, **order: Any) -> dict[int, ErrorCode]:
        request = self.brokers.order(**order)
        answers: dict[int, LeaderAndIsrResponse] = {
            b: await self.handlers[b].leader_and_isr(Arrived(request))  # type: ignore[arg-type]
            for b in receivers or self.brokers.all
        }
        return {broker: error_of(answer) for broker, answer in answers.items()}

    async def stop(
        self, broker: int, *, epoch: int = DURING_DELETE, delete: bool = True, version: int = 4
    ) -> ErrorCode:
        row = StopReplicaRequest.StopReplicaPartitionState(
            partition_index=0, leader_epoch=epoch, delete_partition=delete
        )
        topic = StopReplicaRequest.StopReplicaTopicState(topic_name=TOPIC, partition_states=[row])
        request = StopReplicaRequest(controller_id=1, controller_epoch=1, topic_states=[topic])
        if version < 3:
            named = StopReplicaRequest.StopReplicaTopicV1(name=TOPIC, partition_indexes=[0])
            request = StopReplicaRequest(
                controller_id=1, controller_epoch=1, delete_partitions=delete, topics=[named]
            )
        arrived = Arrived(request, version)
        answer: StopReplicaResponse = await self.handlers[broker].stop_replica(arrived)  # type: ignore[arg-type]
        [outcome] = answer.partition_errors
        return ErrorCode(outcome.error_code)

    async def delete_topic(self) -> None:
        """Deletes the topic as a controller does."""
        await self.request_deletion()
        for broker in self.brokers.all:
            assert await self.stop(broker) == ErrorCode.NONE
        await self.forget()

    async def create_and_fill(self, topic_id: UUID, *values: str, leader: int = 1) -> None:
        await self.create(topic_id)
        codes = await self.send_leader_and_isr(leader=leader, epoch=0, topic_id=topic_id, is_new=True)
        assert set(codes.values()) == {ErrorCode.NONE}
        await self.fill(leader, *values)

    async def fill(self, leader: int, *values: str) -> None:
        """Produces with acks=all, and waits until all replicas have the records."""
        self.brokers[leader].produce(*values)
        end = self.brokers[leader].manager.partition(TOPIC, 0).log.log_end_offset
        partitions = [broker.manager.partition(TOPIC, 0) for broker in self.brokers.all.values()]
        await until(lambda: all(p.high_watermark == end for p in partitions), self.brokers)

    def values(self, broker: int) -> list[str]:
        return values_of(self.brokers[broker].manager.partition(TOPIC, 0))

    def topic_id(self, broker: int) -> UUID | None:
        return self.brokers[broker].manager.partition(TOPIC, 0).topic_id


def run_scenario(
    path: Path, scenario: Callable[[LateRequestHarness], Awaitable[None]], count: int = 3
) -> None:
    async def run() -> None:
        brokers = Brokers(path, count)
        harness = LateRequestHarness(brokers)
        await harness.open()
        try:
            await scenario(harness)
        finally:
            await harness.close()
            await brokers.stop()

    run_in_virtual_time(run())


# --- LeaderAndIsr ----------------------------------------------------------------------------------


def test_a_leader_and_isr_of_a_deleted_topic_does_not_bring_its_replica_back(tmp_path: Path) -> None:
    async def scenario(harness: LateRequestHarness) -> None:
        await harness.create_and_fill(OLD, "a")
        await harness.delete_topic()
        assert await harness.send_leader_and_isr(1, leader=1, epoch=0, topic_id=OLD) == {
            1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }
        assert harness.brokers[1].manager.find(TOPIC, 0) is None
        assert harness.brokers[1].logs.get(TOPIC, 0) is None

    run_scenario(tmp_path, scenario)


def test_a_leader_and_isr_during_the_deletion_elsewhere_changes_nothing(tmp_path: Path) -> None:
    async def scenario(harness: LateRequestHarness) -> None:
        await harness.create_and_fill(OLD, "a")
        await harness.request_deletion()
        assert await harness.stop(1) == ErrorCode.NONE
        assert await harness.send_leader_and_isr(1, leader=1, epoch=0, topic_id=OLD) == {
            1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }
        assert harness.brokers[1].logs.get(TOPIC, 0) is None

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("epoch", [0, 5])
def test_a_leader_and_isr_of_a_topic_created_again_since_changes_nothing(tmp_path: Path, epoch: int) -> None:
    async def scenario(harness: LateRequestHarness) -> None:
        await harness.create_and_fill(OLD, "a")
        await harness.delete_topic()
        await harness.create_and_fill(NEW, "b", leader=2)
        assert await harness.send_leader_and_isr(leader=1, epoch=epoch, topic_id=OLD) == dict.fromkeys(
            harness.brokers.all, ErrorCode.INCONSISTENT_TOPIC_ID
        )
        await harness.fill(2, "c")
        assert harness.values(1) == harness.values(2) == ["b", "c"]

    run_scenario(tmp_path, scenario)


def test_a_late_leader_and_isr_before_that_of_the_new_topic_changes_nothing(tmp_path: Path) -> None:
    async def scenario(harness: LateRequestHarness) -> None:
        await harness.create_and_fill(OLD, "a")
        await harness.delete_topic()
        await harness.create(NEW)
        assert await harness.send_leader_and_isr(1, leader=1, epoch=3, topic_id=OLD) == {
            1: ErrorCode.INCONSISTENT_TOPIC_ID
        }
        assert harness.brokers[1].logs.get(TOPIC, 0) is None
        await harness.create_and_fill(NEW, "b")
        assert harness.topic_id(1) == NEW

    run_scenario(tmp_path, scenario)


def test_a_replica_that_was_moved_away_does_not_come_back(tmp_path: Path) -> None:
    async def scenario(harness: LateRequestHarness) -> None:
        await harness.create_and_fill(NEW, "a")
        await harness.create(NEW, replicas=(1, 2))
        assert await harness.stop(3, epoch=1) == ErrorCode.NONE
        assert await harness.send_leader_and_isr(3, leader=1, epoch=0, topic_id=NEW) == {
            3: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }
        assert harness.brokers[3].logs.get(TOPIC, 0) is None

    run_scenario(tmp_path, scenario)


def test_a_stray_replica_of_a_deleted_topic_makes_room_for_the_present_one(tmp_path: Path) -> None:
    """For any origin of the stray replica: acks=all must not block."""

    async def scenario(harness: LateRequestHarness) -> None:
        brokers = harness.brokers
        brokers.leader_and_isr(2, leader=2, epoch=7, topic_id=OLD)  # believed, without a look at the store
        brokers[2].manager.partition(TOPIC, 0).append_as_leader(
            batch("stray"), required_acks=1, now_ms=brokers.now_ms
        )
        await harness.create_and_fill(NEW, "b")
        assert harness.values(2) == ["b"]
        assert harness.topic_id(2) == NEW
        assert ("deleted", 7) in brokers[2].recorder.events

    run_scenario(tmp_path, scenario)


def test_a_stray_log_without_leader_and_isr_is_replaced_too(tmp_path: Path) -> None:
    async def scenario(harness: LateRequestHarness) -> None:
        stray = harness.brokers[2]
        log = stray.logs.get_or_create(TOPIC, 0, stray.manager.log_config(TOPIC))
        log.topic_id = OLD
        await harness.create_and_fill(NEW, "b")
        assert harness.values(2) == ["b"]

    run_scenario(tmp_path, scenario)


def test_a_store_that_does_not_answer_is_waited_for(tmp_path: Path) -> None:
    async def scenario(harness: LateRequestHarness) -> None:
        await harness.create(NEW)
        harness.store.tree.available = False
        sending = asyncio.create_task(harness.send_leader_and_isr(1, leader=1, epoch=0, topic_id=NEW))
        done, _ = await asyncio.wait([sending], timeout=10 * STORE_RETRY_S)
        assert not done
        harness.store.tree.available = True
        assert await sending == {1: ErrorCode.NONE}

    run_scenario(tmp_path, scenario)


# --- StopReplica -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_stop_replica_of_the_former_topic_does_not_delete_the_log(tmp_path: Path, version: int) -> None:
    """And so an orderly restart of another broker, which gives the leader a new epoch, loses nothing."""

    async def scenario(harness: LateRequestHarness) -> None:
        await harness.create_and_fill(OLD, "a")
        await harness.delete_topic()
        await harness.create_and_fill(NEW, *(f"v{n}" for n in range(100)))
        assert await harness.stop(1, version=version) == ErrorCode.FENCED_LEADER_EPOCH
        await harness.send_leader_and_isr(leader=1, epoch=1, isr=[1, 2], topic_id=NEW)
        await harness.fill(1, "last")
        for broker in harness.brokers.all:
            assert harness.values(broker) == [*(f"v{n}" for n in range(100)), "last"]

    run_scenario(tmp_path, scenario)


def test_a_stop_replica_of_the_former_topic_does_not_stop_a_follower(tmp_path: Path) -> None:
    """Kafka's controller stops replicas before it deletes them."""

    async def scenario(harness: LateRequestHarness) -> None:
        await harness.create_and_fill(OLD, "a")
        await harness.delete_topic()
        await harness.create_and_fill(NEW, "b")
        assert await harness.stop(2, delete=False) == ErrorCode.FENCED_LEADER_EPOCH
        await harness.fill(1, "c")

    run_scenario(tmp_path, scenario)


def test_a_move_of_the_former_topic_does_not_delete_the_log(tmp_path: Path) -> None:
    async def scenario(harness: LateRequestHarness) -> None:
        await harness.create_and_fill(NEW, "b")
        assert await harness.stop(2, epoch=9) == ErrorCode.FENCED_LEADER_EPOCH
        assert harness.values(2) == ["b"]

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("removing", [(), (3,)])
def test_a_replica_that_is_moved_away_is_deleted(tmp_path: Path, removing: tuple[int, ...]) -> None:
    """Kafka's controller writes that it is gone after it has been deleted (`removing_replicas`)."""

    async def scenario(harness: LateRequestHarness) -> None:
        await harness.create_and_fill(NEW, "a")
        await harness.create(NEW, replicas=(1, 2, *removing), removing=removing)
        assert await harness.stop(3, epoch=1) == ErrorCode.NONE
        assert harness.brokers[3].logs.get(TOPIC, 0) is None

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("topic_id", [OLD, None])
def test_a_queued_deletion_is_carried_out(tmp_path: Path, topic_id: UUID | None) -> None:
    """Also one from before KIP-516, which has no id."""

    async def scenario(harness: LateRequestHarness) -> None:
        await harness.create(topic_id)
        await harness.send_leader_and_isr(leader=1, epoch=0, topic_id=topic_id or UUID(int=0))
        await harness.delete_topic()
        assert all(broker.logs.get(TOPIC, 0) is None for broker in harness.brokers.all.values())

    run_scenario(tmp_path, scenario)


def test_a_log_whose_topic_cannot_be_read_is_kept(tmp_path: Path) -> None:
    async def scenario(harness: LateRequestHarness) -> None:
        await harness.create_and_fill(NEW, "a")
        await harness.store.set(znodes.topic_path(TOPIC), b"not JSON")
        assert await harness.stop(1) == ErrorCode.FENCED_LEADER_EPOCH
        assert harness.values(1) == ["a"]

    run_scenario(tmp_path, scenario)


def test_nothing_is_looked_up_for_a_stop_that_deletes_nothing(tmp_path: Path) -> None:
    async def scenario(harness: LateRequestHarness) -> None:
        harness.store.tree.available = False
        assert await harness.stop(1) == ErrorCode.NONE

    run_scenario(tmp_path, scenario)


# --- lost logs -------------------------------------------------------------------------------------


def lose_log(harness: LateRequestHarness, broker: int) -> None:
    """Deletes the log, as if the broker had started on another disk."""
    request = StopReplicaRequest(controller_id=1, controller_epoch=1, delete_partitions=True)
    request.topics = [StopReplicaRequest.StopReplicaTopicV1(name=TOPIC, partition_indexes=[0])]
    harness.brokers[broker].manager.apply_stop_replica(request, 1)  # without a look at the store
    assert harness.brokers[broker].logs.get(TOPIC, 0) is None


def test_a_leader_that_has_lost_its_log_is_refused_and_no_follower_truncates(tmp_path: Path) -> None:
    async def scenario(harness: LateRequestHarness) -> None:
        values = [f"v{n}" for n in range(1000)]
        await harness.create_and_fill(NEW, *values)
        lose_log(harness, 1)
        codes = await harness.send_leader_and_isr(leader=1, epoch=1, topic_id=NEW)
        assert codes == {1: ErrorCode.KAFKA_STORAGE_ERROR, 2: ErrorCode.NONE, 3: ErrorCode.NONE}
        # What the controller makes of that answer; the replica starts again outside the ISR.
        assert set(
            (await harness.send_leader_and_isr(2, 3, leader=2, epoch=2, isr=[2, 3], topic_id=NEW)).values()
        ) == {0}
        assert await harness.send_leader_and_isr(1, leader=2, epoch=2, isr=[2, 3], topic_id=NEW) == {
            1: ErrorCode.NONE
        }
        await harness.fill(2, "last")
        for broker in harness.brokers.all:
            assert harness.values(broker) == [*values, "last"]

    run_scenario(tmp_path, scenario)


def test_a_follower_that_has_lost_its_log_does_not_stay_in_the_isr(tmp_path: Path) -> None:
    """Otherwise it might be elected before the leader notices."""

    async def scenario(harness: LateRequestHarness) -> None:
        await harness.create_and_fill(NEW, "a")
        lose_log(harness, 3)
        assert await harness.send_leader_and_isr(3, leader=1, epoch=1, topic_id=NEW) == {
            3: ErrorCode.KAFKA_STORAGE_ERROR
        }
        assert harness.brokers[3].logs.get(TOPIC, 0) is None
        assert await harness.send_leader_and_isr(3, leader=1, epoch=2, isr=[1, 2], topic_id=NEW) == {
            3: ErrorCode.NONE
        }

    run_scenario(tmp_path, scenario)


def test_a_partition_without_any_leader_and_isr_begins_empty(tmp_path: Path) -> None:
    """Its controller crashed before the first LeaderAndIsr; its successor does not know that it is new."""

    async def scenario(harness: LateRequestHarness) -> None:
        await harness.create(NEW)
        codes = await harness.send_leader_and_isr(leader=2, epoch=1, isr=[2, 3], topic_id=NEW)
        assert set(codes.values()) == {ErrorCode.NONE}
        await harness.fill(2, "a")

    run_scenario(tmp_path, scenario)


def test_a_log_counts_as_lost_until_other_replicas_report_empty_logs(tmp_path: Path) -> None:
    async def scenario(harness: LateRequestHarness) -> None:
        await harness.create(NEW)
        harness.silent.add(3)
        assert await harness.send_leader_and_isr(1, leader=1, epoch=1, topic_id=NEW) == {
            1: ErrorCode.KAFKA_STORAGE_ERROR
        }
        harness.silent.clear()
        assert await harness.send_leader_and_isr(1, leader=1, epoch=1, topic_id=NEW) == {1: ErrorCode.NONE}

    run_scenario(tmp_path, scenario)


def test_a_stray_log_is_no_substitute_for_a_lost_one(tmp_path: Path) -> None:
    async def scenario(harness: LateRequestHarness) -> None:
        await harness.create_and_fill(NEW, "a")
        lose_log(harness, 1)
        broker = harness.brokers[1]
        broker.logs.get_or_create(TOPIC, 0, broker.manager.log_config(TOPIC)).topic_id = OLD
        assert await harness.send_leader_and_isr(1, leader=1, epoch=1, topic_id=NEW) == {
            1: ErrorCode.KAFKA_STORAGE_ERROR
        }

    run_scenario(tmp_path, scenario)


def test_the_only_replica_in_sync_starts_with_an_empty_log_as_in_kafka(tmp_path: Path) -> None:
    async def scenario(harness: LateRequestHarness) -> None:
        await harness.create_and_fill(NEW, "a")
        lose_log(harness, 1)
        assert await harness.send_leader_and_isr(1, leader=1, epoch=1, isr=[1], topic_id=NEW) == {
            1: ErrorCode.NONE
        }
        assert harness.values(1) == []

    run_scenario(tmp_path, scenario)


def test_the_controller_is_notified_until_a_lost_replica_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.server.logs.lost_logs.RETRY_S_MIN", 0.001)

    async def scenario(harness: LateRequestHarness) -> None:
        await harness.create_and_fill(NEW, "a")
        await _metadata(harness, NEW, 1)
        lose_log(harness, 1)
        await harness.send_leader_and_isr(1, leader=1, epoch=1, topic_id=NEW)
        await until(lambda: len(harness.notifications) >= 2)
        await harness.send_leader_and_isr(1, leader=2, epoch=2, isr=[2, 3], topic_id=NEW)
        retrying = harness.lost_logs[1]._retrying
        assert retrying is not None
        await asyncio.wait_for(retrying, 60)
        assert set(harness.notifications) == {1}

    run_scenario(tmp_path, scenario)


# --- UpdateMetadata --------------------------------------------------------------------------------


async def _metadata(harness: LateRequestHarness, topic_id: UUID, leader: int) -> None:
    state = UpdateMetadataRequest.UpdateMetadataPartitionState(
        partition_index=0, leader=leader, isr=[1, 2, 3], replicas=[1, 2, 3]
    )
    request = harness.brokers.metadata()
    request.controller_epoch = 1
    request.topic_states = [
        UpdateMetadataRequest.UpdateMetadataTopicState(
            topic_name=TOPIC, topic_id=topic_id, partition_states=[state]
        )
    ]
    arrived: Any = Arrived(request)
    answer = await harness.handlers[1].update_metadata(arrived)
    assert answer.error_code == ErrorCode.NONE


@pytest.mark.parametrize("leader", [DURING_DELETE, 3])
def test_metadata_of_the_former_topic_is_left_out(tmp_path: Path, leader: int) -> None:
    """The coordinator would delete the groups' offsets of the topic that was created again."""

    async def scenario(harness: LateRequestHarness) -> None:
        await harness.create(NEW)
        await _metadata(harness, NEW, 1)
        await _metadata(harness, OLD, leader)
        cache = harness.brokers[1].cache
        assert cache.topic_id(TOPIC) == NEW
        known = cache.partition(TOPIC, 0)
        assert known is not None
        assert known.leader == 1
        assert harness.group_deletions == []

    run_scenario(tmp_path, scenario)


def test_metadata_of_a_topic_that_was_created_again_is_taken(tmp_path: Path) -> None:
    async def scenario(harness: LateRequestHarness) -> None:
        await harness.create(OLD)
        await _metadata(harness, OLD, 1)
        await harness.forget()
        await harness.create(NEW)
        await _metadata(harness, NEW, 2)
        assert harness.brokers[1].cache.topic_id(TOPIC) == NEW

    run_scenario(tmp_path, scenario)
