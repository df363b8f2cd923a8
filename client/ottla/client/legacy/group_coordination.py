"""Coordination of a connector by Kafka's current group protocol, without ZooKeeper.

Created by `connector`. The group's leader assigns partitions to consumers; each consumer assigns its own to
its streams by ranges. Offsets are committed to Kafka. Invariants: messages that a stream has queued before a
rebalance are not returned after it; consumed messages are committed before their partitions are revoked (with
auto.commit.enable).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Sequence

from ottla.client.core.types import TopicPartition
from ottla.client.errors import ClientError
from ottla.client.legacy import partition_assignor
from ottla.client.legacy.configs import ConsumerConfig
from ottla.client.legacy.consumer_fetcher import ConsumerFetcher
from ottla.client.legacy.group_nodes import Subscription
from ottla.client.legacy.handlers import ConsumerRebalanceListener, call_listener
from ottla.client.legacy.streams import KafkaStream
from ottla.protocol.topics import indexes_by_topic

log = logging.getLogger(__name__)


class GroupCoordination:
    """Implements `connector.Coordination` with a consumer that subscribes as a group member."""

    def __init__(self, config: ConsumerConfig, consumer: str) -> None:
        self._config = config
        self._consumer = consumer
        self._fetcher: ConsumerFetcher | None = None
        self.listener: ConsumerRebalanceListener | None = None

    def start(
        self,
        subscription: Subscription,
        streams: Collection[KafkaStream],
        stream_of: Callable[[str, int], KafkaStream],
    ) -> None:
        self._subscription = subscription
        self._stream_of = stream_of
        settings = {**self._config.properties(), "bootstrap.servers": list(self._config.bootstrap_servers)}
        fetcher = self._fetcher = ConsumerFetcher(settings, f"ottla-{self._consumer}", streams)
        fetcher.run(self._subscribe(fetcher))

    async def _subscribe(self, fetcher: ConsumerFetcher) -> None:
        topic_filter = self._subscription.filter
        fetcher.consumer.subscribe(
            self._subscription.counts if topic_filter is None else (),
            pattern=None if topic_filter is None else re.compile(topic_filter.as_pattern()),
            on_assigned=self._on_assigned,
            on_revoked=self._on_revoked,
            on_lost=self._on_lost,
        )
        fetcher.start()

    def close(self, *, commit: bool) -> None:
        fetcher = self._fetcher
        if fetcher is None:
            return
        try:
            fetcher.suspend()
            if commit:
                self.commit()
        except ClientError as problem:
            log.warning("%s: a commit failed: %s", self._consumer, problem)
        finally:
            fetcher.close()

    def commit(self) -> None:
        """Commit the consumed offsets. Raises ClientError."""
        if self._fetcher is not None:
            self._fetcher.commit(self._fetcher.consumed_offsets())

    # --- rebalance listeners, in the fetcher's event loop ---

    async def _on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        assert self._fetcher is not None
        for topic, indexes in indexes_by_topic(partitions).items():
            threads = self._subscription.threads(self._consumer, topic)
            for partition, thread in partition_assignor.assign_ranges(indexes, threads).items():
                tp = TopicPartition(topic, partition)
                self._fetcher.add_partition(tp, self._stream_of(topic, thread.number), None)

    async def _on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        fetcher = self._fetcher
        assert fetcher is not None
        fetcher.clear()
        if self._config.auto_commit_enable:
            offsets = await fetcher.consumed_in_loop()
            try:
                if offsets:
                    await fetcher.consumer.commit(offsets)
            except ClientError as problem:
                log.warning("%s: a commit before a rebalance failed: %s", self._consumer, problem)
        if self.listener is not None:
            # In another thread, since it may block, for instance in commit_offsets.
            await asyncio.to_thread(call_listener, self.listener, partitions)
        fetcher.drop_offsets_in_loop()

    async def _on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        assert self._fetcher is not None
        self._fetcher.clear()
        self._fetcher.drop_offsets_in_loop()
