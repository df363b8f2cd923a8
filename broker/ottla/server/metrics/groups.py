"""kafka_exporter's metrics of consumer groups, including lag; each group's coordinator reports them.

The lag needs end offsets of partitions that other brokers may lead. They are fetched before the text is
written, with one request per leader, at most every `REFRESH_S`. Without a response of a leader the lag of its
partitions is missing, which is better than a wrong one. Groups in ZooKeeper have kafka_exporter's metrics for
them; the controller reports them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final

from ottla.coordinators.coordinator import GroupCoordinator
from ottla.coordinators.group import Group, GroupState
from ottla.metadata.cache import MetadataCache
from ottla.metadata.store import StoreError
from ottla.metadata.zookeeper_groups import ZooKeeperGroup
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import ListOffsetsRequest, ListOffsetsResponse
from ottla.replication.manager import ReplicaManager
from ottla.server.metrics.exposition import Family, Sample, gauge
from ottla.wire.connection import BrokerConnection

log = logging.getLogger(__name__)

REFRESH_S: Final = 5.0
ZOOKEEPER_REFRESH_S: Final = 30.0
"""The groups in ZooKeeper are read at most every so many seconds."""
GROUPS_PER_SLICE: Final = 1000
TIMEOUT_S: Final = 2.0
LATEST: Final = -1
_LIST_OFFSETS_VERSION: Final = 5

Key = tuple[str, int]
Connect = Callable[[str, int], Awaitable[BrokerConnection]]


class GroupMetrics:
    """See the module. Call `refresh` before `families`."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        replicas: ReplicaManager,
        cache: MetadataCache,
        connect: Connect,
        zookeeper_groups: Callable[[], Awaitable[list[ZooKeeperGroup]]],
    ) -> None:
        self._coordinator = coordinator
        self._replicas = replicas
        self._cache = cache
        self._connect = connect
        self._read_zookeeper_groups = zookeeper_groups
        self._zookeeper_groups: list[ZooKeeperGroup] = []
        self._zookeeper_read_s = -ZOOKEEPER_REFRESH_S
        self._remote_end_offsets: dict[Key, int] = {}
        self._refreshed_s = -REFRESH_S

    async def refresh(self) -> None:
        """Fetch the end offsets of partitions of other leaders, if they are older than REFRESH_S."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._refreshed_s < REFRESH_S:
            return
        self._refreshed_s = now_s
        await self._read_zookeeper(now_s)
        by_leader: defaultdict[int, set[Key]] = defaultdict(set)
        keys: set[Key] = set()
        for at, group in enumerate(self._coordinator.groups(), 1):
            keys.update(group.offsets.committed)
            if at % GROUPS_PER_SLICE == 0:
                await asyncio.sleep(0)
        for group_in_zookeeper in self._zookeeper_groups:
            keys.update(group_in_zookeeper.offsets)
        for key in keys:
            if self._local_end_offset(key) is None:
                known = self._cache.partition(*key)
                if known is not None:
                    by_leader[known.leader].add(key)
        by_broker = await asyncio.gather(
            *[self._fetch_end_offsets(leader, keys) for leader, keys in by_leader.items()]
        )
        self._remote_end_offsets = {key: end for end_offsets in by_broker for key, end in end_offsets.items()}

    async def _read_zookeeper(self, now_s: float) -> None:
        if now_s - self._zookeeper_read_s < ZOOKEEPER_REFRESH_S:
            return
        self._zookeeper_read_s = now_s
        try:
            async with asyncio.timeout(TIMEOUT_S):
                self._zookeeper_groups = await self._read_zookeeper_groups()
        except (StoreError, TimeoutError) as problem:
            self._zookeeper_groups = []
            log.debug("Cannot read the groups in ZooKeeper: %s", problem)

    def _local_end_offset(self, key: Key) -> int | None:
        partition = self._replicas.find(*key)
        return partition.high_watermark if partition is not None and partition.is_leader else None

    def _end_offset(self, key: Key) -> int | None:
        own = self._local_end_offset(key)
        return self._remote_end_offsets.get(key) if own is None else own

    async def _fetch_end_offsets(self, leader: int, keys: Iterable[Key]) -> dict[Key, int]:
        endpoint = self._cache.broker(leader)
        if endpoint is None:
            return {}
        topics: defaultdict[str, list[ListOffsetsRequest.ListOffsetsPartition]] = defaultdict(list)
        for topic, partition in keys:
            topics[topic].append(
                ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=LATEST)
            )
        request = ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=partitions)
                for topic, partitions in topics.items()
            ],
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                connection = await self._connect(endpoint.host, endpoint.port)
                try:
                    response: ListOffsetsResponse = await connection.request(
                        request, version=_LIST_OFFSETS_VERSION
                    )
                finally:
                    connection.close()
        except (OSError, TimeoutError) as problem:
            log.debug("Cannot fetch end offsets from broker %d: %s", leader, problem)
            return {}
        return {
            (topic.name, partition.partition_index): partition.offset
            for topic in response.topics
            for partition in topic.partitions
            if partition.error_code == ErrorCode.NONE
        }

    def families(self) -> Iterator[Family]:
        groups = self._coordinator.groups()
        yield from _states(groups)
        yield Family(
            "kafka_consumergroup_members",
            "gauge",
            "Members of a group.",
            ("consumergroup",),
            (((group.group_id,), len(group.members)) for group in groups),
        )
        partition = ("consumergroup", "topic", "partition")
        yield Family(
            "kafka_consumergroup_current_offset",
            "gauge",
            "Committed offset of a group.",
            partition,
            (
                ((group.group_id, topic, str(index)), found.offset)
                for group in groups
                for (topic, index), found in list(group.offsets.committed.items())
            ),
        )
        yield Family(
            "kafka_consumergroup_lag",
            "gauge",
            "Lag of a group's committed offset behind the high watermark.",
            partition,
            (
                ((group.group_id, topic, str(index)), lag)
                for group in groups
                for (topic, index), lag in self._lags(group)
            ),
        )
        by_topic = ("consumergroup", "topic")
        yield Family(
            "kafka_consumergroup_current_offset_sum",
            "gauge",
            "Sum of a group's committed offsets over all partitions of a topic.",
            by_topic,
            (sample for group in groups for sample in _sums(group, _committed(group))),
        )
        yield Family(
            "kafka_consumergroup_lag_sum",
            "gauge",
            "Sum of a group's lag over all partitions of a topic.",
            by_topic,
            (sample for group in groups for sample in _sums(group, self._lags(group))),
        )

        yield from self._zookeeper_families()

    def _zookeeper_families(self) -> Iterator[Family]:
        """These groups have families of their own, because a group of the same name may exist in Kafka,
        too."""
        groups = self._zookeeper_groups
        partition = ("consumergroup", "topic", "partition")
        yield Family(
            "kafka_consumergroupzookeeper_members",
            "gauge",
            "Members of a group in ZooKeeper.",
            ("consumergroup",),
            (((group.group_id,), len(group.members)) for group in groups),
        )
        yield Family(
            "kafka_consumergroupzookeeper_current_offset_zookeeper",
            "gauge",
            "Committed offset of a group in ZooKeeper.",
            partition,
            (
                ((group.group_id, topic, str(index)), offset)
                for group in groups
                for (topic, index), offset in group.offsets.items()
            ),
        )
        yield Family(
            "kafka_consumergroupzookeeper_lag_zookeeper",
            "gauge",
            "Lag of a group's offset in ZooKeeper behind the high watermark.",
            partition,
            (
                ((group.group_id, topic, str(index)), max(0, end - offset))
                for group in groups
                for (topic, index), offset in group.offsets.items()
                if (end := self._end_offset((topic, index))) is not None
            ),
        )

    def _lags(self, group: Group) -> Iterator[tuple[Key, int]]:
        for key, offset in _committed(group):
            end = self._end_offset(key)
            if end is not None:
                # The commit may be newer than the end offset.
                yield key, max(0, end - offset)


def _committed(group: Group) -> Iterator[tuple[Key, int]]:
    return ((key, found.offset) for key, found in list(group.offsets.committed.items()))


def _sums(group: Group, numbers: Iterable[tuple[Key, int]]) -> Iterator[Sample]:
    sums: defaultdict[str, int] = defaultdict(int)
    for (topic, _), number in numbers:
        sums[topic] += number
    for topic, total in sums.items():
        yield (group.group_id, topic), total


_STATES = (
    ("numgroupspreparingrebalance", GroupState.PREPARING_REBALANCE),
    ("numgroupscompletingrebalance", GroupState.COMPLETING_REBALANCE),
    ("numgroupsstable", GroupState.STABLE),
    ("numgroupsdead", GroupState.DEAD),
    ("numgroupsempty", GroupState.EMPTY),
)


def _states(groups: list[Group]) -> Iterator[Family]:
    prefix = "kafka_coordinator_group_groupmetadatamanager_"
    yield gauge(f"{prefix}numgroups", "Groups that this broker coordinates.", len(groups))
    yield gauge(
        f"{prefix}numoffsets",
        "Committed offsets of those groups.",
        sum(len(group.offsets.committed) for group in groups),
    )
    for name, state in _STATES:
        yield gauge(f"{prefix}{name}", f"Of those, {state.value}.", sum(g.state is state for g in groups))
