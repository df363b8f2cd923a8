"""What a consumer is made of: its cores, and how they are driven.

The base of `Consumer`; nothing here is the user's business.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from ottla.client import errors
from ottla.client.consumer_records import PrefetchedRecords, deserializing
from ottla.client.core.assigned import Assigned, AssignedPartition
from ottla.client.core.baseline import Baseline
from ottla.client.core.cluster import Cluster
from ottla.client.core.consumer_config import ConsumerConfig
from ottla.client.core.consumer_stats import FetchStats, PollStats
from ottla.client.core.coordinator import Coordinator
from ottla.client.core.ephemeral import EphemeralGroup
from ottla.client.core.fetch_buffer import FetchBuffer
from ottla.client.core.fetcher import Fetcher
from ottla.client.core.membership import GroupMember
from ottla.client.core.offsets import OffsetManager
from ottla.client.core.positions import Positions
from ottla.client.core.rebalancing import Rebalancing
from ottla.client.core.types import ConsumerRecord, Outgoing, TopicPartition
from ottla.client.interceptors import ConsumerInterceptors, made_of
from ottla.client.measurements import of_consumer
from ottla.client.metrics import Metric, Reporting, of_client
from ottla.client.network import Network
from ottla.client.network_loop import NetworkLoop
from ottla.client.rebalance_listener import Listener
from ottla.environment import environment

Records: TypeAlias = dict[TopicPartition, list[ConsumerRecord]]


class WakeEvent:
    """The last of the cores: rings in every turn of the network loop, since something may have changed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def poll(self, now: float) -> list[Outgoing]:
        self._event.set()
        return []

    def answered(self, tag: object, response: object, now: float) -> None:
        raise AssertionError("nothing was asked")

    def next_time(self, now: float) -> float:
        return math.inf

    async def wait(self, until: float) -> bool:
        """Until it rings after this call; False when it did not before `until`."""
        self._event.clear()
        try:
            async with asyncio.timeout_at(until):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


class ConsumerParts:
    """Settings are Kafka's, as keywords or as a mapping of dotted keys; see `ConsumerConfig`."""

    def __init__(self, settings: Mapping[str, object] | None = None, /, **keywords: object) -> None:
        """Raises ConfigError."""
        self.config = ConsumerConfig.of(settings, **keywords)
        self._uniform = environment.get().random.uniform
        config = self.config
        self._cluster = Cluster(
            uniform=self._uniform,
            metadata_max_age_ms=config.metadata_max_age_ms,
            retry_backoff_ms=config.retry_backoff_ms,
            retry_backoff_max_ms=config.retry_backoff_max_ms,
            allow_auto_topic_creation=config.allow_auto_create_topics,
        )
        self._cluster.want(())
        self._assigned = Assigned()
        self._baseline = Baseline(self._cluster)
        self._positions = Positions(config, self._cluster, self._assigned, self._uniform, self._baseline)
        self._fetch_stats = FetchStats(config.window)
        self._poll_stats = PollStats(config.window)
        self._buffer = FetchBuffer(self._assigned, deserializing(config))
        self._fetcher = Fetcher(
            config,
            self._cluster,
            self._assigned,
            self._positions,
            self._uniform,
            self._buffer,
            self._fetch_stats,
        )
        self._coordinator = Coordinator(config, self._cluster, self._uniform)
        self._rebalancing = Rebalancing(config, self._cluster, self._assigned, self._baseline)
        self._member = GroupMember(config, self._coordinator, self._rebalancing.decide, self._uniform)
        self._offsets = OffsetManager(config, self._coordinator, self._member, self._uniform)
        self._ephemeral = EphemeralGroup(
            config, self._coordinator, lambda: self._member.leaving, self._uniform
        )
        if config.group_id is not None:
            self._rebalancing.member = self._member
        self._interceptors: ConsumerInterceptors[Records] = ConsumerInterceptors(made_of(config))
        self._reporting = Reporting(
            config.client_id, config.metric_reporters, config.window.window_s, self.measurements
        )
        self._listener = Listener()
        self._prefetched = PrefetchedRecords()
        self._problems: list[Exception] = []
        self._looking_for_committed: set[TopicPartition] = set()
        self._next_auto_commit = -math.inf
        self._polling = False
        self._closing = self._closed = False
        self._network: Network | None = None
        self._network_loop: NetworkLoop | None = None
        self._wake_event: WakeEvent | None = None

    def _start(self) -> None:
        if self._network_loop is not None or self._closed:
            raise errors.IllegalStateError("a consumer is started once")
        self._network = Network(self._cluster, self.config, uniform=self._uniform, changed=self._wake)
        self._wake_event = WakeEvent()
        timeout_s = self.config.request_timeout_ms / 1000
        self._network_loop = NetworkLoop(self._cluster, self._network, request_timeout_s=timeout_s)
        group = (self._coordinator, self._member, self._offsets, self._ephemeral)
        self._network_loop.start((*group, self._positions, self._fetcher, self._wake_event))
        self._reporting.start()

    async def _shut(self) -> None:
        if self._network is not None and self._network_loop is not None:
            self._reporting.stop()
            for outgoing in self._fetcher.close():
                self._network.send(outgoing, lambda response: None)
            self._network_loop.stop()
            await self._network.close()
        self._interceptors.close()

    # --- figures ---

    def metrics(self) -> dict[str, float]:
        """Figures of the whole consumer by Kafka's names: totals since `start`; rates, averages and maxima
        over metrics.num.samples × metrics.sample.window.ms."""
        return of_client(self.measurements())

    def measurements(self) -> list[Metric]:
        """All figures, also those of each topic, partition and broker; none before `start`."""
        network = self._network
        if network is None:
            return []
        return list(
            of_consumer(
                self._assigned,
                self._fetcher.lags,
                self._fetch_stats,
                self._poll_stats,
                network,
                network.now(),
                in_group=self.config.group_id is not None,
            )
        )

    # --- the shell ---

    def _wake(self) -> None:
        if self._network_loop is not None:
            self._network_loop.wake()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _check(self) -> tuple[NetworkLoop, WakeEvent]:
        if self._closed or self._network_loop is None or self._wake_event is None:
            state = "closed" if self._closed else "not started"
            raise errors.IllegalStateError(f"the consumer is {state}: use `async with`, or call start()")
        return self._network_loop, self._wake_event

    def _state(self, partition: tuple[str, int]) -> AssignedPartition:
        state = self._assigned.get(TopicPartition(*partition))
        if state is None:
            raise errors.IllegalStateError(f"{TopicPartition(*partition)} is not assigned to this consumer")
        return state

    async def _until(self, done: Callable[[], bool], timeout_s: float) -> bool:
        assert self._wake_event is not None
        until = self._now() + timeout_s
        self._wake()
        while not done():
            if not await self._wake_event.wait(until):
                return done()
        return True
