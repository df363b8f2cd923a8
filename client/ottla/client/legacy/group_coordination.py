"""A connector coordinated by the group protocol of today's Kafka: no ZooKeeper, and members in any language.

Made by `connector`. The group's leader shares partitions out among consumers; each shares its own out among
its streams, by ranges. Offsets are Kafka's. Invariants: in a rebalance nothing that was not given out
before comes out of a stream after; what was given out is committed before partitions go (with
auto.commit.enable).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Sequence

from ottla.client.core.types import TopicPartition
from ottla.client.errors import ClientError
from ottla.client.legacy import range_assignor
from ottla.client.legacy.configs import ConsumerConfig
from ottla.client.legacy.feed import Feed
from ottla.client.legacy.group_nodes import Subscription
from ottla.client.legacy.handlers import ConsumerRebalanceListener, call_listener
from ottla.client.legacy.streams import KafkaStream
from ottla.protocol.grouping import indexes_by_topic

log = logging.getLogger(__name__)


class GroupCoordination:
    def __init__(self, config: ConsumerConfig, consumer: str) -> None:
        self._config = config
        self._consumer = consumer
        self._feed: Feed | None = None
        self.listener: ConsumerRebalanceListener | None = None

    def begin(
        self,
        subscription: Subscription,
        streams: Collection[KafkaStream],
        stream_of: Callable[[str, int], KafkaStream],
    ) -> None:
        self._subscription = subscription
        self._stream_of = stream_of
        settings = {**self._config.properties(), "bootstrap.servers": list(self._config.bootstrap_servers)}
        feed = self._feed = Feed(settings, f"ottla-{self._consumer}", streams)
        feed.run(self._subscribe(feed))

    async def _subscribe(self, feed: Feed) -> None:
        wanted = self._subscription.filter
        feed.consumer.subscribe(
            self._subscription.counts if wanted is None else (),
            pattern=None if wanted is None else re.compile(wanted.as_pattern()),
            on_assigned=self._assigned,
            on_revoked=self._revoked,
            on_lost=self._lost,
        )
        feed.start()

    def close(self, *, commit: bool) -> None:
        feed = self._feed
        if feed is None:
            return
        try:
            feed.hold()
            if commit:
                self.commit()
        except ClientError as problem:
            log.warning("%s: a commit failed: %s", self._consumer, problem)
        finally:
            feed.close()

    def commit(self) -> None:
        """Raises ClientError."""
        if self._feed is not None:
            self._feed.commit(self._feed.consumed())

    # --- rebalances, in the feed's loop ---

    async def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        assert self._feed is not None
        for topic, indexes in indexes_by_topic(partitions).items():
            threads = self._subscription.threads(self._consumer, topic)
            for partition, thread in range_assignor.ranges(indexes, threads).items():
                tp = TopicPartition(topic, partition)
                self._feed.take_on(tp, self._stream_of(topic, thread.number), None)

    async def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        feed = self._feed
        assert feed is not None
        feed.clear()
        if self._config.auto_commit_enable:
            offsets = await feed.consumed_here()
            try:
                if offsets:
                    await feed.consumer.commit(offsets)
            except ClientError as problem:
                log.warning("%s: a commit before a rebalance failed: %s", self._consumer, problem)
        if self.listener is not None:
            # In another thread, where it may block, as commit_offsets does.
            await asyncio.to_thread(call_listener, self.listener, partitions)
        feed.forget_here()

    async def _lost(self, partitions: Sequence[TopicPartition]) -> None:
        assert self._feed is not None
        self._feed.clear()
        self._feed.forget_here()
