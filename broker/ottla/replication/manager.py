"""The replicas of this broker (ReplicaManager): requests of the controller, fetchers, periodic tasks.

Created by the server; called by its handlers (produce, fetch, offsets, cluster) and by the coordinators'
logs. Everything runs on the event loop; the server calls `tick` about once a second for periodic tasks.

Invariants: a request of an older controller, or with an older leader epoch, changes nothing; a follower
partition is in exactly one fetcher, a leader partition in none. Epochs cannot distinguish a request from a
late duplicate after its topic was deleted, and maybe created again. Such requests are verified with the
metadata store: `states_to_verify` and `stops_to_verify` return their topics, which the caller reads first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Final
from uuid import UUID

from ottla.metadata.cache import BrokerEndpoint, MetadataCache
from ottla.metadata.config import BrokerConfig
from ottla.metadata.stored_topics import StoredTopics
from ottla.ports.tasks import TaskSet
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.topics import is_legal_topic_name
from ottla.quotas.broker import ReplicationQuota
from ottla.quotas.rates import Windows
from ottla.replication.alter_log_dirs import ReplicaAlterLogDirsManager
from ottla.replication.alter_partition import AlterPartitionManager, IsrChanges, SendAlterPartition
from ottla.replication.fetcher import FetchSettings, ReplicaFetcher
from ottla.replication.isr import IsrChange
from ottla.replication.maintenance import ReplicaMaintenance
from ottla.replication.partition import Partition, ReplicationListener
from ottla.replication.requests import (
    EPOCH_DURING_DELETE,
    NO_LEADER_EPOCH,
    TYPE_FULL,
    PartitionKey,
    PartitionState,
    StopState,
    leader_and_isr_response,
    partition_states,
    stop_replica_response,
    stop_states,
)
from ottla.storage.log_config import LogConfig
from ottla.storage.log_manager import LogManager
from ottla.wire.inter_broker import InterBrokerClient, Node

_logger = logging.getLogger(__name__)

_NONE: Final = ErrorCode.NONE


class ReplicaManager:
    """All replicas of this broker, by topic and partition."""

    def __init__(
        self,
        *,
        broker_id: int,
        config: BrokerConfig,
        logs: LogManager,
        cache: MetadataCache,
        clock: Callable[[], int],
        monotonic_clock: Callable[[], int],
        inter_broker: InterBrokerClient,
        alter_partition: SendAlterPartition,
        listener: ReplicationListener,
    ) -> None:
        """`clock` gives wall time in ms, for logs; `monotonic_clock` measures durations in ms.
        `alter_partition` sends a request to the active controller; `listener` is notified of appends and high
        watermarks."""
        self.broker_id = broker_id
        self.broker_epoch = -1
        """Set by the server after each registration."""
        self.controller_epoch = 0
        self._topic_configs: dict[str, Mapping[str, str]] = {}
        self._logs = logs
        self._cache = cache
        self._clock = clock
        self._monotonic_clock = monotonic_clock
        self._inter_broker = inter_broker
        self._listener = listener
        self._partitions: dict[PartitionKey, Partition] = {}
        self._by_topic: dict[str, list[Partition]] = {}
        self._offline: set[PartitionKey] = set()
        self.verifies = False
        """Whether logs require verification guards for transactions: see `verify_transactions`."""
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._leaders: dict[int, BrokerEndpoint] = {}
        """The leaders in LeaderAndIsr requests, for those that are not in the metadata cache yet."""
        self._closing = TaskSet()
        self.leader_quota = ReplicationQuota(Windows())
        self.follower_quota = ReplicationQuota(Windows())
        """The throttles of KIP-73; the server replaces them."""
        self.moves = ReplicaAlterLogDirsManager(
            logs, clock, self.partition, config.get_int("replica.fetch.max.bytes")
        )
        self._fetch_settings = FetchSettings.of(config)
        self._lag_ms_max = config.get_int("replica.lag.time.max.ms")
        self._sender = AlterPartitionManager(
            broker_id, lambda: self.broker_epoch, alter_partition, monotonic_clock
        )
        # Bound once: a bound method costs 64 bytes, and every partition has both.
        self._propose = self._propose_isr
        self._eligible = self._is_eligible
        self._maintenance = ReplicaMaintenance(self.partitions, config, logs, self.notify_log_starts)
        self._alive = cache.alive()
        cache.on_update.append(self._on_brokers_left)

    # --- lookup -------------------------------------------------------------------------------------

    def find(self, topic: str, partition: int) -> Partition | None:
        return self._partitions.get((topic, partition))

    def partition(self, topic: str, partition: int) -> Partition:
        """The replica on this broker. Raises NOT_LEADER_OR_FOLLOWER if the partition exists on other brokers,
        UNKNOWN_TOPIC_OR_PARTITION if it does not exist, KAFKA_STORAGE_ERROR if its log directory failed."""
        found = self._partitions.get((topic, partition))
        if found is not None:
            return found
        if (topic, partition) in self._offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {topic}-{partition} is offline")
        if partition in (self._cache.partitions(topic) or ()):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{partition} has no replica here")
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition} is not known")

    @property
    def offline_count(self) -> int:
        """The number of replicas in failed log directories."""
        return len(self._offline)

    @property
    def isr_changes(self) -> IsrChanges:
        return self._sender.changes

    def partitions(self) -> Iterator[Partition]:
        """All online replicas, leaders and followers."""
        return iter(list(self._partitions.values()))

    # --- start, periodic tasks, stop ----------------------------------------------------------------

    def start(self) -> None:
        """Call after the logs are loaded, before the controller's first request."""
        self.drop_failed_directories()
        self._maintenance.start(self._monotonic_clock())

    def tick(self, monotonic_ms: int) -> None:
        """Run the tasks that are due: shrink ISRs, write checkpoints, delete old segments."""
        self._maintenance.tick(monotonic_ms, self._clock())

    async def stop(self) -> None:
        """Stop fetchers and ISR changes, and write the high watermarks. The logs stay open."""
        await asyncio.gather(*[fetcher.stop() for fetcher in self._fetchers.values()])
        self._fetchers.clear()
        await self.moves.stop()
        await self._sender.stop()
        await self._closing.wait()
        await self._maintenance.stop()

    # --- requests of the controller -----------------------------------------------------------------

    def is_stale_controller(self, controller_epoch: int) -> bool:
        """Whether a newer controller epoch is known."""
        return controller_epoch < self.controller_epoch

    def update_controller_epoch(self, epoch: int) -> bool:
        """Set the controller epoch of a request. False if a newer one is known."""
        if self.is_stale_controller(epoch):
            return False
        self.controller_epoch = epoch
        return True

    def states_to_verify(self, request: m.LeaderAndIsrRequest, version: int) -> set[str]:
        """The topics of the request that must be read from the store before it is applied: it would create a
        replica, or its topic id is not that of the existing replica. And those of replicas that it lacks."""
        unnamed = {topic for topic, _ in self._unnamed(request, version)}
        return unnamed.union(s.topic for s in partition_states(request, version) if self._must_verify(s))

    def _unnamed(self, request: m.LeaderAndIsrRequest, version: int) -> list[PartitionKey]:
        """The replicas that a request with all replicas of this broker does not name: they were removed while
        its session had ended, so that it got no StopReplica. Kafka's brokers keep such replicas."""
        if request.type != TYPE_FULL:
            return []
        named = {state.key for state in partition_states(request, version)}
        return [key for key in self._partitions if key not in named]

    def _must_verify(self, state: PartitionState) -> bool:
        log = self._logs.get(*state.key)
        return log is None or _ids_differ(log.topic_id, state.topic_id)

    def missing_logs(
        self, request: m.LeaderAndIsrRequest, version: int, stored: StoredTopics
    ) -> list[PartitionState]:
        """The replicas of the request that are assigned to this broker, in sync besides others, in partitions
        that are not new, and have no log here. The other replicas show whether it was lost."""
        return [
            s
            for s in partition_states(request, version)
            if not s.is_new
            and self.broker_id in s.isr
            and len(s.isr) > 1
            and s.key not in self._offline
            and self._must_verify(s)
            and (found := stored.get(s.topic)) is not None
            and found.assigns(s.topic_id, s.partition, self.broker_id)
        ]

    def stops_to_verify(self, request: m.StopReplicaRequest, version: int) -> set[str]:
        """The topics of the request that must be read from the store before it is applied: it would delete a
        log, or stop a replica with any leader epoch."""
        return {
            s.topic
            for s in stop_states(request, version)
            if (s.delete or s.leader_epoch == EPOCH_DURING_DELETE)
            and self._logs.get(s.topic, s.partition) is not None
        }

    def apply_leader_and_isr(
        self,
        request: m.LeaderAndIsrRequest,
        version: int,
        stored: StoredTopics | None = None,
        lost: Collection[PartitionKey] = (),
    ) -> m.LeaderAndIsrResponse:
        """Make partitions leaders or followers. The caller has checked the broker epoch, and has read the
        `states_to_verify` from the store (`stored`; None to skip that check). `lost` are in-sync replicas
        whose logs are lost: they get KAFKA_STORAGE_ERROR."""
        if not self.update_controller_epoch(request.controller_epoch):
            _logger.warning(
                "Ignoring LeaderAndIsr from controller %d: its epoch %d is stale, the latest is %d",
                request.controller_id, request.controller_epoch, self.controller_epoch,
            )  # fmt: skip
            return m.LeaderAndIsrResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)
        for leader in request.live_leaders:
            self._leaders[leader.broker_id] = BrokerEndpoint(leader.broker_id, leader.host_name, leader.port)
        errors: dict[PartitionKey, ErrorCode] = {}
        accepted: list[tuple[Partition, PartitionState]] = []
        for state in partition_states(request, version):
            if state.key in lost:
                errors[state.key] = ErrorCode.KAFKA_STORAGE_ERROR
                continue
            try:
                errors[state.key], partition = self._accept(state, stored)
            except (OSError, KafkaError) as error:
                errors[state.key] = self._take_offline(state.key, error)
                continue
            if partition is not None:
                accepted.append((partition, state))
        self._apply_states(accepted, errors)
        if stored is not None:
            for topic, number in self._unnamed(request, version):
                self._stop(StopState(topic, number, NO_LEADER_EPOCH, delete=True), stored)
        return leader_and_isr_response(request, version, errors)

    def _accept(
        self, state: PartitionState, stored: StoredTopics | None
    ) -> tuple[ErrorCode, Partition | None]:
        """An error, or the replica to which the state applies, created if necessary. Raises OSError and
        KafkaError if the log directory fails."""
        if state.key in self._offline:
            return ErrorCode.KAFKA_STORAGE_ERROR, None
        if stored is not None and state.topic in stored and self._must_verify(state):
            error = self._check_stored(state, stored)
            if error is not _NONE:
                return error, None
        partition = self._partitions.get(state.key)
        if partition is None:
            if self.broker_id not in state.replicas:
                _logger.warning("%s-%d has replicas %s, not this broker", *state.key, state.replicas)
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
            if not is_legal_topic_name(state.topic) or state.partition < 0:
                _logger.error("Ignoring %r-%d in LeaderAndIsr: not a legal topic partition", *state.key)
                return ErrorCode.INVALID_TOPIC_EXCEPTION, None
            partition = self._create(state)
        known_id = partition.topic_id
        if _ids_differ(known_id, state.topic_id):
            _logger.error("%r has topic id %s, not %s", partition, known_id, state.topic_id)
            return ErrorCode.INCONSISTENT_TOPIC_ID, None
        if state.leader_epoch < partition.leader_epoch:
            _logger.info("%r: ignoring the stale leader epoch %d", partition, state.leader_epoch)
            return ErrorCode.STALE_CONTROLLER_EPOCH, None
        if state.leader_epoch == partition.leader_epoch:
            if known_id is None and state.topic_id is not None:
                # A controller that introduces topic ids sends them with the current leader epochs.
                partition.topic_id = state.topic_id
                return _NONE, None
            return ErrorCode.STALE_CONTROLLER_EPOCH, None
        if self.broker_id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        if known_id is None and state.topic_id is not None:
            partition.topic_id = state.topic_id
        return _NONE, partition

    def _check_stored(self, state: PartitionState, stored: StoredTopics) -> ErrorCode:
        """The error of a state whose replica the store does not assign to this broker. Otherwise deletes a
        stray replica of another topic with the same name."""
        found = stored[state.topic]
        if found is None or not found.assigns(state.topic_id, state.partition, self.broker_id):
            _logger.warning(
                "Ignoring the state of %s-%d (topic %s, leader epoch %d): the metadata store assigns no such "
                "replica to this broker", *state.key, state.topic_id, state.leader_epoch,
            )  # fmt: skip
            is_of = found is None or found.is_of(state.topic_id)
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_of else ErrorCode.INCONSISTENT_TOPIC_ID
        log = self._logs.get(*state.key)
        if log is not None:
            _logger.error(
                "Deleting stray replica %s-%d of topic %s: the metadata store has topic %s",
                *state.key, log.topic_id, state.topic_id,
            )  # fmt: skip
            partition = self._partitions.get(state.key)
            if partition is not None:
                self._stop_fetching(partition)
            self.moves.end(state.key)
            self._delete(state.key, partition)
            if partition is not None:
                self._listener.stopped(partition, True)
        return _NONE

    def _create(self, state: PartitionState) -> Partition:
        config = self.log_config(state.topic)
        log = self._logs.get_or_create(
            state.topic, state.partition, config, self._clock(), is_new=state.is_new
        )
        if self.knows_config(state.topic):
            # A log that was loaded at the start has the configuration of that time.
            log.config = config
        log.verifies = self.verifies
        partition = Partition(
            state.topic,
            state.partition,
            self.broker_id,
            log,
            listener=self._listener,
            propose_isr=self._propose,
            is_eligible=self._eligible,
            lag_ms_max=self._lag_ms_max,
            # After a power loss, records beyond the recovery point may be those that a truncation dropped.
            high_watermark=min(self._maintenance.pop_checkpointed(state.key), log.recovery_point),
        )
        self._partitions[partition.key] = partition
        self._by_topic.setdefault(state.topic, []).append(partition)
        return partition

    def _drop(self, key: PartitionKey) -> Partition | None:
        partition = self._partitions.pop(key, None)
        if partition is not None:
            of_topic = self._by_topic[partition.topic]
            of_topic.remove(partition)
            if not of_topic:
                del self._by_topic[partition.topic]
        return partition

    def _take_offline(self, key: PartitionKey, problem: Exception) -> ErrorCode:
        """Take a replica with a failed log offline until a restart. The error code is for the controller."""
        _logger.error("Taking %s-%d offline, its log failed: %s", *key, problem)
        self._offline.add(key)
        partition = self._drop(key)
        if partition is not None:
            self._maintenance.keep_checkpointed(partition)
            self._stop_fetching(partition)
            self.moves.end(key)
            partition.retire(ErrorCode.KAFKA_STORAGE_ERROR)
            self._listener.stopped(partition, False)
        return ErrorCode.KAFKA_STORAGE_ERROR

    def drop_failed_directories(self) -> None:
        """Take the replicas in failed log directories offline, and end moves to these directories."""
        for log_dir in self._logs.failed_dirs():
            for partition in self.partitions():
                if partition.log.log_dir is log_dir:
                    self._take_offline(partition.key, OSError(log_dir.failure))
            self._logs.take_offline(log_dir.path)
        self.moves.directory_failed()
        self._close_idle_fetchers()

    def _apply_states(
        self, accepted: list[tuple[Partition, PartitionState]], errors: dict[PartitionKey, ErrorCode]
    ) -> None:
        now_ms = self._monotonic_clock()
        for partition, state in accepted:
            self._stop_fetching(partition)
            try:
                self._apply_state(partition, state, now_ms)
            except (OSError, KafkaError) as error:
                errors[state.key] = self._take_offline(state.key, error)
        for partition, _ in accepted:
            if not partition.is_leader and partition.leader_id >= 0:
                self._fetch(partition)
            self.moves.begin(partition)
        self._close_idle_fetchers()

    def _apply_state(self, partition: Partition, state: PartitionState, now_ms: int) -> None:
        if state.leader == self.broker_id:
            if partition.become_leader(state, now_ms):
                _logger.info(
                    "Leader %s-%d starts at leader epoch %d from offset %d with partition epoch %d, "
                    "high watermark %d, ISR %s",
                    *state.key, partition.leader_epoch, partition.leader_epoch_start,
                    partition.partition_epoch, partition.high_watermark, sorted(partition.isr),
                )  # fmt: skip
                self._listener.became_leader(partition)
            else:
                self._listener.changed(partition)
        elif partition.become_follower(state):
            _logger.info(
                "Follower %s-%d starts at leader epoch %d from offset %d with partition epoch %d and "
                "high watermark %d. Current leader is %d.",
                *state.key, partition.leader_epoch, partition.log.log_end_offset, partition.partition_epoch,
                partition.high_watermark, partition.leader_id,
            )  # fmt: skip
            self._listener.became_follower(partition)

    def apply_stop_replica(
        self, request: m.StopReplicaRequest, version: int, stored: StoredTopics | None = None
    ) -> m.StopReplicaResponse:
        """Stop replicas, and delete their logs if the request says so, also logs without a partition.
        `stored` has the `stops_to_verify` of the store; None to skip that check."""
        if not self.update_controller_epoch(request.controller_epoch):
            _logger.warning(
                "Ignoring StopReplica with the stale controller epoch %d", request.controller_epoch
            )
            return m.StopReplicaResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)
        errors = [
            ((state.topic, state.partition), self._stop(state, stored))
            for state in stop_states(request, version)
        ]
        self._close_idle_fetchers()
        return stop_replica_response(errors)

    def _stop(self, state: StopState, stored: StoredTopics | None) -> ErrorCode:
        key = (state.topic, state.partition)
        if key in self._offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        partition = self._partitions.get(key)
        if (
            partition is not None
            and state.leader_epoch not in (EPOCH_DURING_DELETE, NO_LEADER_EPOCH)
            and state.leader_epoch < partition.leader_epoch
        ):
            _logger.info("%r: ignoring StopReplica with leader epoch %d", partition, state.leader_epoch)
            return ErrorCode.FENCED_LEADER_EPOCH
        if stored is not None and self._is_kept(state, stored):
            _logger.warning(
                "Ignoring StopReplica (leader epoch %d) of %s-%d: the metadata store assigns the replica to "
                "this broker", state.leader_epoch, *key,
            )  # fmt: skip
            return ErrorCode.FENCED_LEADER_EPOCH
        if partition is not None:
            self._stop_fetching(partition)
        self.moves.end(key)
        if state.delete:
            try:
                self._delete(key, partition)
            except (OSError, KafkaError) as error:
                _logger.error("Cannot delete the log of %s-%d: %s", *key, error)
                return ErrorCode.KAFKA_STORAGE_ERROR
        if partition is not None:
            self._listener.stopped(partition, state.delete)
        return _NONE

    def _is_kept(self, state: StopState, stored: StoredTopics) -> bool:
        """Whether a StopReplica must be verified, and the store assigns the replica to this broker."""
        log = self._logs.get(state.topic, state.partition)
        if log is None or not (state.delete or state.leader_epoch == EPOCH_DURING_DELETE):
            return False
        if state.topic not in stored:
            return True  # its node cannot be read
        found = stored[state.topic]
        return found is not None and found.keeps(log.topic_id, state.partition, self.broker_id)

    def _delete(self, key: PartitionKey, partition: Partition | None) -> None:
        """Remove the replica, and delete its log. Raises OSError, KafkaError."""
        if partition is not None:
            self._drop(key)
            partition.retire()
        self._maintenance.forget(key)
        if self._logs.get(*key) is not None:
            self._logs.delete(*key)

    def verify_transactions(self, enabled: bool) -> None:
        """Set whether logs require a verification guard for a transaction's first batch (KIP-890)."""
        self.verifies = enabled
        for partition in self._partitions.values():
            partition.log.verifies = enabled

    # --- topic configs ------------------------------------------------------------------------------

    def knows_config(self, topic: str) -> bool:
        """Whether `topic_config_changed` has been called for the topic. The server loads a topic's config
        before it passes on the first LeaderAndIsr that names the topic."""
        return topic in self._topic_configs

    def log_config(self, topic: str) -> LogConfig:
        return self._logs.config_for(self._topic_configs.get(topic, {}))

    def topic_config_changed(self, topic: str, props: Mapping[str, str]) -> None:
        """The topic's overrides are now `props` (validated)."""
        self._topic_configs[topic] = dict(props)
        log_config = self.log_config(topic)
        now_ms = self._monotonic_clock()
        for partition in self._by_topic.get(topic, ()):
            partition.config_changed(log_config, now_ms)

    # --- fetchers and ISR changes -------------------------------------------------------------------

    def _fetch(self, partition: Partition) -> None:
        fetcher = self._fetchers.get(partition.leader_id)
        if fetcher is None:
            fetcher = self._fetchers[partition.leader_id] = ReplicaFetcher(
                partition.leader_id,
                broker_id=self.broker_id,
                broker_epoch=lambda: self.broker_epoch,
                connection=self._inter_broker.connection(partial(self._find_leader, partition.leader_id)),
                clock=self._clock,
                monotonic_clock=self._monotonic_clock,
                settings=self._fetch_settings,
                quota=lambda: self.follower_quota,
            )
        fetcher.add(partition)

    def _stop_fetching(self, partition: Partition) -> None:
        fetcher = self._fetchers.get(partition.leader_id)
        if fetcher is not None:
            fetcher.remove(partition.key)

    def notify_log_starts(self, partitions: Iterable[Partition]) -> None:
        """Handle changed log start offsets after retention: notify waiting fetches and the leaders."""
        for partition in partitions:
            if partition.maybe_notify_log_start():
                fetcher = self._fetchers.get(partition.leader_id)
                if fetcher is not None:
                    fetcher.log_start_changed(partition.key)

    def _close_idle_fetchers(self) -> None:
        for leader_id in [leader for leader, fetcher in self._fetchers.items() if not len(fetcher)]:
            self._closing.start(self._fetchers.pop(leader_id).stop())

    def follower_lags(self) -> Iterator[tuple[int, PartitionKey, int]]:
        """Of each partition that this broker follows: the leader's id, the partition, and the lag."""
        for leader_id, fetcher in list(self._fetchers.items()):
            for key, lag in fetcher.lags():
                yield leader_id, key, lag

    def _find_leader(self, broker_id: int) -> Node:
        node = self._cache.broker(broker_id) or self._leaders.get(broker_id)
        if node is None:
            raise ConnectionError(f"the address of broker {broker_id} is not known")
        return node

    def _on_brokers_left(self) -> None:
        """Advance high watermarks after brokers have left the cluster.

        A follower in controlled shutdown leaves the ISR first, continues to fetch, and holds back the high
        watermark like a follower that can join the ISR. Without this, producers would wait for their timeout.
        """
        alive = self._cache.alive()
        left, self._alive = self._alive - alive, alive
        for partition in self._partitions.values() if left else ():
            if any(partition.follower(broker_id) for broker_id in left):
                partition.broker_left(self._monotonic_clock())

    def _is_eligible(self, broker_id: int) -> bool:
        return self._cache.is_alive(broker_id)

    def _propose_isr(self, partition: Partition, change: IsrChange) -> None:
        self._sender.submit(partition, change)


def _ids_differ(one: UUID | None, other: UUID | None) -> bool:
    """Whether the ids are of different topics; a topic from before KIP-516 has no id."""
    return one is not None and other is not None and one != other
