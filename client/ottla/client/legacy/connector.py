"""The ConsumerConnector of Kafka 0.8: topics as streams, shared by the consumers of a group.

    with ConsumerConnector(zookeeper_connect="127.0.0.1:2181", group_id="billing") as connector:
        (stream,) = connector.create_message_streams({"orders": 1})["orders"]
        for each in stream:
            print(each.partition, each.offset, each.message)

ZooKeeper coordinates the group when zookeeper.connect is set, and then Kafka's own consumers of 0.8 to 2.x
may be members; with bootstrap.servers alone the group protocol does, and any consumer of today may be. Each
stream is for one thread. Invariants: a partition is in one stream of the group; as in 0.8, a message counts
as consumed when the stream has given it out.
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

from ottla.client.core.consumer_config import ConsumerConfig as TodaysConfig
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
    """Who reads what."""

    listener: ConsumerRebalanceListener | None

    def begin(
        self,
        subscription: Subscription,
        streams: Collection[KafkaStream],
        stream_of: Callable[[str, int], KafkaStream],
    ) -> None: ...

    def commit(self) -> None: ...

    def close(self, *, commit: bool) -> None: ...


class ConsumerConnector:
    """A consumer of a group. May be shared by threads; each of its streams is for one."""

    def __init__(
        self, settings: Mapping[str, object] | ConsumerConfig | None = None, /, **keywords: object
    ) -> None:
        """0.8's dotted keys in a mapping, or keywords with underscores. Connects to ZooKeeper, if that is to
        coordinate. Raises ConfigError, ClientError."""
        config = settings if isinstance(settings, ConsumerConfig) else ConsumerConfig.of(settings, **keywords)
        # What is wrong with it is found here, and not when brokers are.
        servers = config.bootstrap_servers or [("127.0.0.1", 9092)]
        TodaysConfig.of({**config.properties(), "bootstrap.servers": servers})
        self.config = config
        self.consumer_id = f"{config.group_id}_{config.consumer_id or _made_up_id()}"
        self._coordination = self._coordinated()
        self._begun = False
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._streams: list[KafkaStream] = []
        self._committer: threading.Thread | None = None

    def _coordinated(self) -> Coordination:
        if self.config.zookeeper_connect is None:
            return GroupCoordination(self.config, self.consumer_id)
        # kazoo is loaded by this.
        from ottla.client.legacy.zookeeper_coordination import ZooKeeperCoordination

        return ZooKeeperCoordination(self.config, self.consumer_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def set_consumer_rebalance_listener(self, listener: ConsumerRebalanceListener) -> None:
        """From now on, tell it of each rebalance before partitions are released."""
        self._coordination.listener = listener

    # --- streams ---

    def create_message_streams(
        self,
        topic_counts: Mapping[str, int],
        key_decoder: Decoder[Any] | None = None,
        value_decoder: Decoder[Any] | None = None,
    ) -> dict[str, list[KafkaStream]]:
        """So many streams of each topic; once in a connector's life. Returns when partitions are shared out.
        Raises MessageStreamsExistError, ConsumerRebalanceFailedError, ClientError."""
        if not topic_counts or any(count < 1 for count in topic_counts.values()):
            raise ValueError(f"{dict(topic_counts)!r}: one topic at least, with one stream at least")
        self._begin_once()
        streams = {
            topic: [self._stream(key_decoder, value_decoder) for _ in range(count)]
            for topic, count in topic_counts.items()
        }
        subscription = Subscription(STATIC, dict(topic_counts))
        self._begin(subscription, lambda topic, number: streams[topic][number])
        return streams

    def create_message_streams_by_filter(
        self,
        topic_filter: TopicFilter,
        num_streams: int = 1,
        key_decoder: Decoder[Any] | None = None,
        value_decoder: Decoder[Any] | None = None,
    ) -> list[KafkaStream]:
        """So many streams of all topics that a Whitelist or Blacklist allows, those that are still to come
        included. As `create_message_streams` otherwise."""
        if num_streams < 1:
            raise ValueError(f"num_streams={num_streams}: one at least")
        self._begin_once()
        streams = [self._stream(key_decoder, value_decoder) for _ in range(num_streams)]
        subscription = Subscription(topic_filter.pattern, {topic_filter.regex: num_streams})
        self._begin(subscription, lambda topic, number: streams[number])
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

    def _begin_once(self) -> None:
        with self._lock:
            if self._begun:
                raise MessageStreamsExistError("a connector makes its streams once: use another connector")
            self._begun = True

    def _begin(self, subscription: Subscription, stream_of: Callable[[str, int], KafkaStream]) -> None:
        if self.config.auto_commit_enable:
            self._committer = threading.Thread(
                target=self._commit_now_and_then, name=f"{self.consumer_id}_committer", daemon=True
            )
            self._committer.start()
        self._coordination.begin(subscription, self._streams, stream_of)

    # --- commits, the end ---

    def commit_offsets(self) -> None:
        """Of all messages that the streams have given out so far. Raises ClientError; of ZooKeeper,
        KazooException."""
        self._coordination.commit()

    def _commit_now_and_then(self) -> None:
        while not self._closing.wait(self.config.auto_commit_interval_ms / 1000):
            try:
                self._coordination.commit()
            except Exception as problem:
                told = str(problem) or type(problem).__name__  # kazoo's errors often have no text
                log.warning("%s: an automatic commit failed: %s", self.consumer_id, told)

    def shutdown(self) -> None:
        """Commit (with auto.commit.enable), leave the group, end the streams. A second call does nothing."""
        with self._lock:
            if self._closing.is_set():
                return
            self._begun = True
            self._closing.set()
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


def _made_up_id() -> str:
    """As Kafka's: readable, and no one else's."""
    return f"{socket.gethostname()}-{time.time_ns() // 1_000_000}-{uuid.uuid4().hex[:8]}"
