"""The parts of a consumer: the request managers of `ottla.client.core`, the network loop that polls them,
metrics.

Made by `Consumer`; `OffsetCommitter` and `PositionInitializer` use it, too. Runs in one event loop.
Invariant: the network exists from `start` to `close` only.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TypeAlias

from ottla.client import errors
from ottla.client.consumer_records import deserializing
from ottla.client.core.assigned import Assigned, AssignedPartition
from ottla.client.core.baseline import Baseline
from ottla.client.core.cluster import Cluster
from ottla.client.core.consumer_config import ConsumerConfig
from ottla.client.core.coordinator import Coordinator
from ottla.client.core.ephemeral import EphemeralGroup
from ottla.client.core.fetch_buffer import FetchBuffer
from ottla.client.core.fetcher import Fetcher
from ottla.client.core.membership import GroupMember
from ottla.client.core.offsets import OffsetManager
from ottla.client.core.positions import Positions
from ottla.client.core.rebalancing import Rebalancing
from ottla.client.core.stats import FetchStats, PollStats
from ottla.client.core.types import ConsumerRecord, TopicPartition, UnsentRequest
from ottla.client.measurements import of_consumer
from ottla.client.metrics import Metric, Reporting
from ottla.client.network import Network
from ottla.client.network_loop import NetworkLoop
from ottla.environment import environment

Records: TypeAlias = dict[TopicPartition, list[ConsumerRecord]]


class WakeEvent:
    """A request manager without requests, which wakes waiting callers after each turn of the network loop.

    It is the last one in the loop's list, so that callers see the state that the others have reached.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def poll(self, now: float) -> list[UnsentRequest]:
        self._event.set()
        return []

    def on_response(self, tag: object, response: object, now: float) -> None:
        raise AssertionError("it sends no requests")

    def next_time(self, now: float) -> float:
        return math.inf

    async def wait(self, until: float) -> bool:
        """Wait for the next turn of the network loop; False if there was none before `until`."""
        self._event.clear()
        try:
            async with asyncio.timeout_at(until):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


class ConsumerRuntime:
    """The state of a consumer, and the calls that wait for it to change."""

    def __init__(self, config: ConsumerConfig) -> None:
        """Raises ConfigError."""
        self.config = config
        self._uniform = environment.get().random.uniform
        self.cluster = Cluster(
            uniform=self._uniform,
            metadata_max_age_ms=config.metadata_max_age_ms,
            retry_backoff_ms=config.retry_backoff_ms,
            retry_backoff_max_ms=config.retry_backoff_max_ms,
            allow_auto_topic_creation=config.allow_auto_create_topics,
        )
        self.cluster.want(())
        self.assigned = Assigned()
        self.baseline = Baseline(self.cluster)
        self.positions = Positions(config, self.cluster, self.assigned, self._uniform, self.baseline)
        self.fetch_stats = FetchStats(config.window)
        self.poll_stats = PollStats(config.window)
        self.buffer = FetchBuffer(self.assigned, deserializing(config))
        self.fetcher = Fetcher(
            config,
            self.cluster,
            self.assigned,
            self.positions,
            self._uniform,
            self.buffer,
            self.fetch_stats,
        )
        self.coordinator = Coordinator(config, self.cluster, self._uniform)
        self.rebalancing = Rebalancing(config, self.cluster, self.assigned, self.baseline)
        self.member = GroupMember(
            config, self.coordinator, self.rebalancing.perform_assignment, self._uniform
        )
        self.offsets = OffsetManager(config, self.coordinator, self.member, self._uniform)
        self.ephemeral = EphemeralGroup(config, self.coordinator, lambda: self.member.leaving, self._uniform)
        if config.group_id is not None:
            self.rebalancing.member = self.member
        self._reporting = Reporting(
            config.client_id, config.metric_reporters, config.window.window_s, self.measurements
        )
        self.problems: list[Exception] = []
        """Errors of the position initializer that the next `poll` raises."""
        self._closed = False
        self._network: Network | None = None
        self._network_loop: NetworkLoop | None = None
        self._wake_event: WakeEvent | None = None

    # --- life ---

    def start(self) -> None:
        """Start the network loop. Raises IllegalStateError at a second call."""
        if self._network_loop is not None or self._closed:
            raise errors.IllegalStateError("a consumer can be started only once")
        self._network = Network(self.cluster, self.config, uniform=self._uniform, changed=self.wake)
        self._wake_event = WakeEvent()
        timeout_s = self.config.request_timeout_ms / 1000
        self._network_loop = NetworkLoop(self.cluster, self._network, request_timeout_s=timeout_s)
        group = (self.coordinator, self.member, self.offsets, self.ephemeral)
        self._network_loop.start((*group, self.positions, self.fetcher, self._wake_event))
        self._reporting.start()

    @property
    def started(self) -> bool:
        return self._network_loop is not None

    async def close(self) -> None:
        """End the fetch sessions and close all connections."""
        self._closed = True
        if self._network is not None and self._network_loop is not None:
            self._reporting.stop()
            for unsent in self.fetcher.close():
                self._network.send(unsent, lambda response: None)
            self._network_loop.stop()
            await self._network.close()

    def check_started(self) -> tuple[NetworkLoop, WakeEvent]:
        """Raises IllegalStateError unless the consumer is started and not closed."""
        if self._closed or self._network_loop is None or self._wake_event is None:
            state = "closed" if self._closed else "not started"
            raise errors.IllegalStateError(f"the consumer is {state}: use `async with`, or call start()")
        return self._network_loop, self._wake_event

    def check_group(self) -> None:
        """Raises IllegalStateError unless the consumer has a group that stores offsets."""
        if self.config.group_id is None:
            raise errors.IllegalStateError("offsets are stored by groups: this consumer has no group.id")
        if self.config.group_ephemeral:
            raise errors.IllegalStateError(f"group {self.config.group_id} is ephemeral: it stores no offsets")

    # --- waiting ---

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def api_deadline(self) -> float:
        """Now plus default.api.timeout.ms."""
        return self.now() + self.config.default_api_timeout_ms / 1000

    def wake(self) -> None:
        """Let the network loop poll the request managers in the next turn of the event loop."""
        if self._network_loop is not None:
            self._network_loop.wake()

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until the condition holds, which is checked after each turn of the network loop; False if it
        does not hold after the timeout."""
        assert self._wake_event is not None
        until = self.now() + timeout_s
        self.wake()
        while not condition():
            if not await self._wake_event.wait(until):
                return condition()
        return True

    # --- state ---

    def partition_state(self, partition: tuple[str, int]) -> AssignedPartition:
        """The state of an assigned partition. Raises IllegalStateError if it is not assigned."""
        state = self.assigned.get(TopicPartition(*partition))
        if state is None:
            raise errors.IllegalStateError(f"{TopicPartition(*partition)} is not assigned to this consumer")
        return state

    def raise_problems(self) -> None:
        """Raise the oldest error of the position initializer, the group membership, or the offset
        look-ups."""
        for problems in (self.problems, self.member.problems, self.positions.problems):
            if problems:
                raise problems.pop(0)

    def measurements(self) -> list[Metric]:
        """All metrics, those of each topic, partition and broker included; none before `start`."""
        network = self._network
        if network is None:
            return []
        return list(
            of_consumer(
                self.assigned,
                self.fetcher.lags,
                self.fetch_stats,
                self.poll_stats,
                network,
                network.now(),
                in_group=self.config.group_id is not None,
            )
        )
