"""The parts of a started producer: accumulator, sender, transactions, network; made by `Producer.start`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ottla.client.core.accumulator import Accumulator, BatchResult
from ottla.client.core.cluster import Cluster
from ottla.client.core.config import ProducerConfig
from ottla.client.core.sender import Sender
from ottla.client.core.transactions import Transactions
from ottla.client.network import Network
from ottla.client.network_loop import NetworkLoop
from ottla.environment import environment

WAITS: Final = ("flush", "metadata-wait", "txn-init", "txn-send-offsets", "txn-commit", "txn-abort")
"""Calls that wait for brokers, under the names of Kafka's KafkaProducerMetrics."""


class ProducerRuntime:
    """The request managers of a producer and the network loop that polls them, from `start` to `stop`."""

    def __init__(self, config: ProducerConfig, on_batch_done: Callable[[BatchResult], None]) -> None:
        self.loop = asyncio.get_running_loop()
        uniform = environment.get().random.uniform
        self.cluster = Cluster(
            uniform=uniform,
            metadata_max_age_ms=config.metadata_max_age_ms,
            metadata_max_idle_ms=config.metadata_max_idle_ms,
            retry_backoff_ms=config.retry_backoff_ms,
            retry_backoff_max_ms=config.retry_backoff_max_ms,
        )
        self.network = Network(self.cluster, config, uniform=uniform, changed=self._changed)
        self.network_loop = NetworkLoop(
            self.cluster, self.network, request_timeout_s=config.request_timeout_ms / 1000
        )
        self.accumulator = Accumulator(config, self.cluster, uniform, on_batch_done)
        self.append, self.clock = self.accumulator.append, self.loop.time
        """Attributes that are read for each record."""
        self.wall_ms = environment.get().wall_ms
        self.transactions: Transactions | None = None
        if config.enable_idempotence:
            self.transactions = Transactions(
                config, self.cluster, uniform=uniform, incomplete=lambda: not self.accumulator.empty
            )
            if config.transactional_id is not None:
                self.accumulator.on_partition_added = self.transactions.add
        self.sender = Sender(
            config,
            self.cluster,
            self.accumulator,
            self.transactions,
            uniform=uniform,
            ready=self.network.ready,
            ready_at=self.network.ready_time,
        )

        self.waited_s = dict.fromkeys(WAITS, 0.0)

    def _changed(self) -> None:
        self.network_loop.wake()

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Add the time of a call to `waited_s`."""
        began = self.loop.time()
        try:
            yield
        finally:
            self.waited_s[what] += self.loop.time() - began
