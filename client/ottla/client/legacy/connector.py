"""The ConsumerConnector of Kafka 0.8: streams of messages of topics, whose partitions a group shares.

    with ConsumerConnector(zookeeper_connect="127.0.0.1:2181", group_id="billing") as connector:
        (stream,) = connector.create_message_streams({"orders": 1})["orders"]
        for each in stream:
            print(each.partition, each.offset, each.message)

With zookeeper.connect, ZooKeeper coordinates the group, and Kafka's own consumers of 0.8 to 2.x may be
members. With bootstrap.servers alone, the group protocol coordinates it, and current consumers may be
members. Each stream is for one thread. Invariants: one stream of the group reads a partition; as in 0.8, a
message counts as consumed when the stream has returned it.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from ottla.client.core.consumer_config import ConsumerConfig as CurrentConsumerConfig
from ottla.client.legacy.configs import ConsumerConfig
from ottla.client.legacy.encoders import Decoder, DefaultDecoder
from ottla.client.legacy.errors import MessageStreamsExistError
from ottla.client.legacy.group_coordination import GroupCoordination
from ottla.client.legacy.group_nodes import STATIC, Subscription
from ottla.client.legacy.handlers import ConsumerRebalanceListener
from ottla.client.legacy.streams import KafkaStream
from ottla.client.legacy.topic_filters import TopicFilter

log = logging.getLogger(__name__)


class Coordination(Protocol):
    """Assigns partitions to the streams of a connector, and commits consumed offsets."""

    listener: ConsumerRebalanceListener | None

    def start(
        self,
        subscription: Subscription,
        streams: Collection[KafkaStream],
        stream_of: Callable[[str, int], KafkaStream],
    ) -> None: ...

    def commit(self) -> None: ...

    def close(self, *, commit: bool) -> None: ...


class ConsumerConnector:
    """A consumer of a group. Threads may share it; each of its streams is for one thread."""

    def __init__(
        self, settings: Mapping[str, object] | ConsumerConfig | None = None, /, **keywords: object
    ) -> None:
        """0.8's dotted keys in a mapping, or keywords with underscores. Connects to ZooKeeper, if
        zookeeper.connect is set. Raises ConfigError, ClientError."""
        config = settings if isinstance(settings, ConsumerConfig) else ConsumerConfig.of(settings, **keywords)
        # Reports invalid settings now, although the brokers may not be known yet.
        servers = config.bootstrap_servers or [("127.0.0.1", 9092)]
        CurrentConsumerConfig.of({**config.properties(), "bootstrap.servers": servers})
        self.config = config
        self.consumer_id = f"{config.group_id}_{config.consumer_id or _generate_consumer_id()}"
        self._coordination = self._create_coordination()
        self._created = False
        self._lock = threading.Lock()
        self._shutdown = threading.Event()
        self._streams: list[KafkaStream] = []
        self._committer: threading.Thread | None = None

    def _create_coordination(self) -> Coordination:
        if self.config.zookeeper_connect is None:
            return GroupCoordination(self.config, self.consumer_id)
        # Imports kazoo.
        from ottla.client.legacy.zookeeper_coordination import ZooKeeperCoordination

        return ZooKeeperCoordination(self.config, self.consumer_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def set_consumer_rebalance_listener(self, listener: ConsumerRebalanceListener) -> None:
        """Set the listener that is called in each rebalance, before partitions are released."""
        self._coordination.listener = listener

    # --- streams ---

    def create_message_streams(
        self,
        topic_counts: Mapping[str, int],
        key_decoder: Decoder[Any] | None = None,
        value_decoder: Decoder[Any] | None = None,
    ) -> dict[str, list[KafkaStream]]:
        """Create the given number of streams for each topic; allowed once. Returns after the first assignment
        of partitions. Raises MessageStreamsExistError, ConsumerRebalanceFailedError, ClientError."""
        if not topic_counts or any(count < 1 for count in topic_counts.values()):
            raise ValueError(
                f"{dict(topic_counts)!r}: at least one topic is required, with at least one stream"
            )
        self._check_first_call()
        streams = {
            topic: [self._stream(key_decoder, value_decoder) for _ in range(count)]
            for topic, count in topic_counts.items()
        }
        subscription = Subscription(STATIC, dict(topic_counts))
        self._start(subscription, lambda topic, number: streams[topic][number])
        return streams

    def create_message_streams_by_filter(
        self,
        topic_filter: TopicFilter,
        num_streams: int = 1,
        key_decoder: Decoder[Any] | None = None,
        value_decoder: Decoder[Any] | None = None,
    ) -> list[KafkaStream]:
        """Create `num_streams` streams for all topics that a Whitelist or Blacklist allows, new topics
        included. Otherwise as `create_message_streams`."""
        if num_streams < 1:
            raise ValueError(f"num_streams={num_streams}: must be at least 1")
        self._check_first_call()
        streams = [self._stream(key_decoder, value_decoder) for _ in range(num_streams)]
        subscription = Subscription(topic_filter.pattern, {topic_filter.regex: num_streams})
        self._start(subscription, lambda topic, number: streams[number])
        return streams

    def _stream(self, key_decoder: Decoder[Any] | None, value_decoder: Decoder[Any] | None) -> KafkaStream:
        stream = KafkaStream(
            chunks_max=self.config.queued_max_message_chunks,
            timeout_ms=self.config.consumer_timeout_ms,
            key_decoder=key_decoder or DefaultDecoder(),
            value_decoder=value_decoder or DefaultDecoder(),
        )
        self._streams.append(stream)
        return stream

    def _check_first_call(self) -> None:
        with self._lock:
            if self._created:
                raise MessageStreamsExistError(
                    "this connector has created its streams already: use another connector"
                )
            self._created = True

    def _start(self, subscription: Subscription, stream_of: Callable[[str, int], KafkaStream]) -> None:
        if self.config.auto_commit_enable:
            self._committer = threading.Thread(
                target=self._commit_periodically, name=f"{self.consumer_id}_committer", daemon=True
            )
            self._committer.start()
        self._coordination.start(subscription, self._streams, stream_of)

    # --- commits and shutdown ---

    def commit_offsets(self) -> None:
        """Commit the offsets of all messages that the streams have returned. Raises ClientError, and with
        ZooKeeper KazooException."""
        self._coordination.commit()

    def _commit_periodically(self) -> None:
        while not self._shutdown.wait(self.config.auto_commit_interval_ms / 1000):
            try:
                self._coordination.commit()
            except Exception as problem:
                reason = str(problem) or type(problem).__name__  # kazoo's errors often have no text
                log.warning("%s: an automatic commit failed: %s", self.consumer_id, reason)

    def shutdown(self) -> None:
        """Commit (with auto.commit.enable), leave the group and end the streams. A second call does
        nothing."""
        with self._lock:
            if self._shutdown.is_set():
                return
            self._created = True
            self._shutdown.set()
        if self._committer is not None:
            self._committer.join()
        try:
            self._coordination.close(commit=self.config.auto_commit_enable)
        finally:
            for stream in self._streams:
                stream.end()


class Consumer:
    """Kafka's factory of connectors: `Consumer.create(config)`."""

    @staticmethod
    def create(config: Mapping[str, object] | ConsumerConfig) -> ConsumerConnector:
        """A connector with these settings. Raises ConfigError, ClientError."""
        return ConsumerConnector(config)


def _generate_consumer_id() -> str:
    """A unique id in Kafka's form: host, time and random digits."""
    return f"{socket.gethostname()}-{time.time_ns() // 1_000_000}-{uuid.uuid4().hex[:8]}"
