"""Settings of the legacy clients: names, defaults and units of Kafka 0.8.2.

    ProducerConfig.of({"metadata.broker.list": "127.0.0.1:9092", "producer.type": "async"})
    ConsumerConfig.of(zookeeper_connect="127.0.0.1:2181", group_id="billing", auto_offset_reset="smallest")

Also allowed: security.protocol, ssl.* and sasl.*, as of current clients. Invariant: the settings of a
configuration object are consistent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from ottla.client.core.settings import (
    INT64_MAX,
    ConfigError,
    Settings,
    addresses,
    anything,
    boolean,
    integer,
    items,
    one_of,
    optional_text,
    setting,
    text,
)

_IGNORED: Final = frozenset(
    {
        "num.consumer.fetchers",
        "offsets.channel.backoff.ms",
        "offsets.channel.socket.timeout.ms",
        "send.buffer.bytes",
        "socket.receive.buffer.bytes",
    }
)
"""Settings of 0.8.2 without effect: accepted, so that existing files can be used."""
_NAMES_OF_07: Final = {
    "batch.size": "batch.num.messages",
    "broker.list": "metadata.broker.list",
    "queue.size": "queue.buffering.max.messages",
    "queue.time": "queue.buffering.max.ms",
    "zk.connect": "zookeeper.connect",
    "zk.connectiontimeout.ms": "zookeeper.connection.timeout.ms",
    "zk.sessiontimeout.ms": "zookeeper.session.timeout.ms",
}
"""Names of Kafka 0.7 -> names of 0.8."""
_CONSUMER_NAMES_OF_07: Final = {
    "groupid": "group.id",
    "zk.connect": "zookeeper.connect",
    "zk.connectiontimeout.ms": "zookeeper.connection.timeout.ms",
    "zk.sessiontimeout.ms": "zookeeper.session.timeout.ms",
    "zk.synctime.ms": "zookeeper.sync.time.ms",
}
_BROKER_WITH_ID: Final = re.compile(r"\d+:([^:\[\]]+|\[[^\]]+\]):(\d+)")
"""The form of a broker in 0.7: id:host:port."""
_CODECS: Final = ("none", "gzip", "snappy", "lz4")
_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]*")


def _codec(value: object) -> str:
    """Parse a codec: its name, or its number in messages."""
    given = str(value).strip().lower()
    if given in ("0", "1", "2", "3"):
        return _CODECS[int(given)]
    if given not in _CODECS:
        raise ValueError(f"must be one of {', '.join(_CODECS)}, or 0 to 3")
    return given


def _brokers(value: object) -> tuple[tuple[str, int], ...]:
    """Parse brokers: 0.8's host:port, or 0.7's id:host:port without the id, which the metadata have."""
    found: list[object] = []
    for item in items(value):
        with_id = _BROKER_WITH_ID.fullmatch(item) if isinstance(item, str) else None
        found.append(item if with_id is None else f"{with_id[1]}:{with_id[2]}")
    return addresses(found)


def _legal_name(value: object) -> str:
    if not isinstance(value, str) or not _LEGAL_NAME.fullmatch(value):
        raise ValueError("must have only ASCII letters, digits, '.', '_' and '-'")
    return value


def _names(settings: Mapping[str, object] | None, keywords: Mapping[str, object]) -> dict[str, object]:
    written = {**(settings or {}), **{name.replace("_", "."): value for name, value in keywords.items()}}
    return {key: value for key, value in written.items() if key not in _IGNORED}


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(Settings):
    """The settings of `Producer`, created by `of`."""

    metadata_broker_list: tuple[tuple[str, int], ...] = setting((), _brokers)
    """host:port,host:port; also as Kafka 0.7's broker.list, id:host:port."""
    zookeeper_connect: str | None = setting(None, optional_text)
    """As in Kafka 0.7: the ZooKeeper with the registered brokers, instead of metadata.broker.list."""
    zookeeper_session_timeout_ms: int = setting(6_000, integer(1))
    zookeeper_connection_timeout_ms: int = setting(6_000, integer(1))
    producer_type: str = setting("sync", one_of("sync", "async"))
    serializer_class: Any = setting("kafka.serializer.DefaultEncoder", anything)
    """An Encoder, its class, the class's name (0.8's own included), or a function of the value."""
    key_serializer_class: Any = setting(None, anything)
    """Default: as serializer.class."""
    partitioner_class: Any = setting("kafka.producer.DefaultPartitioner", anything)
    compression_codec: str = setting("none", _codec)
    compressed_topics: tuple[str, ...] = setting((), items)
    """Only these topics are compressed; empty: all topics."""
    request_required_acks: int = setting(0, integer(-1, 1))
    request_timeout_ms: int = setting(10_000, integer(1))
    message_send_max_retries: int = setting(3, integer())
    retry_backoff_ms: int = setting(100, integer())
    topic_metadata_refresh_interval_ms: int = setting(600_000, integer(-1))
    """Also the time that messages without a key go to one partition. -1: only after a failure."""
    queue_buffering_max_ms: int = setting(5_000, integer())
    queue_buffering_max_messages: int = setting(10_000, integer(1))
    queue_enqueue_timeout_ms: int = setting(-1, integer(-1))
    """0: raise QueueFullError at once; -1: wait without a limit."""
    batch_num_messages: int = setting(200, integer(1))
    event_handler: Any = setting(None, anything)
    """An EventHandler or its class, instead of the default."""
    callback_handler: Any = setting(None, anything)
    """A CallbackHandler or its class, for async mode."""
    client_id: str = setting("", _legal_name)

    @classmethod
    def of(cls, settings: Mapping[str, object] | None = None, /, **keywords: object) -> Self:
        """From 0.8's dotted names, or keywords with underscores. Raises ConfigError."""
        given = _names(settings, keywords)
        return super().of({_NAMES_OF_07.get(key, key): value for key, value in given.items()})

    def __post_init__(self) -> None:
        if self.metadata_broker_list and self.zookeeper_connect is not None:
            allowed = "cannot be set together with metadata.broker.list (broker.list)"
            raise ConfigError("zookeeper.connect", self.zookeeper_connect, allowed)
        if not self.metadata_broker_list and self.zookeeper_connect is None:
            allowed = "must have at least one host:port, or zookeeper.connect must be set"
            raise ConfigError("metadata.broker.list", "", allowed)
        if self.batch_num_messages > self.queue_buffering_max_messages:
            allowed = f"must not be above queue.buffering.max.messages={self.queue_buffering_max_messages}"
            raise ConfigError("batch.num.messages", self.batch_num_messages, allowed)

    def properties(self) -> dict[str, object]:
        """The settings of the current producer that the legacy producer uses."""
        attempts = self.message_send_max_retries + 1
        refresh_ms = self.topic_metadata_refresh_interval_ms
        delivery_timeout_ms = attempts * (self.request_timeout_ms + self.retry_backoff_ms) + _LINGER_MS
        return {
            "bootstrap.servers": list(self.metadata_broker_list),
            "client.id": self.client_id,
            "acks": self.request_required_acks,
            "enable.idempotence": False,
            # One request in flight to a broker, so that retries keep the order.
            "max.in.flight.requests.per.connection": 1,
            "request.timeout.ms": self.request_timeout_ms,
            "retries": self.message_send_max_retries,
            "retry.backoff.ms": self.retry_backoff_ms,
            "retry.backoff.max.ms": self.retry_backoff_ms,
            "delivery.timeout.ms": min(delivery_timeout_ms, 2**31 - 1),
            "max.block.ms": delivery_timeout_ms,
            "metadata.max.age.ms": INT64_MAX if refresh_ms < 0 else max(refresh_ms, 1_000),
            # The caller flushes after each batch.
            "linger.ms": _LINGER_MS,
            "batch.size": _BATCH_BYTES,
            # The brokers limit the size of messages.
            "max.request.size": 2**31 - 1,
            "security.protocol": self.security_protocol,
            **self.security_settings,
        }


_LINGER_MS: Final = 1_000
_BATCH_BYTES: Final = 900_000
"""Less than the default of message.max.bytes, so that brokers do not reject large batches."""


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(Settings):
    """The settings of `ConsumerConnector`, created by `of`."""

    group_id: str = setting("", _legal_name)
    zookeeper_connect: str | None = setting(None, optional_text)
    """host:port,host:port/chroot of the coordinating ZooKeeper; without it, the group protocol is used."""
    bootstrap_servers: tuple[tuple[str, int], ...] = setting((), addresses)
    """Not in 0.8: the brokers, which are otherwise read from ZooKeeper."""
    consumer_id: str | None = setting(None, optional_text)
    """Default: host, time and random digits."""
    client_id: str | None = setting(None, _legal_name)
    """Default: as group.id."""
    auto_commit_enable: bool = setting(True, boolean)
    auto_commit_interval_ms: int = setting(60_000, integer(1))
    auto_offset_reset: str = setting("largest", one_of("smallest", "largest"))
    consumer_timeout_ms: int = setting(-1, integer(-1))
    """The time without a message until ConsumerTimeoutError; -1: no limit."""
    offsets_storage: str = setting("zookeeper", one_of("zookeeper", "kafka"))
    """Without ZooKeeper always kafka."""
    dual_commit_enabled: bool = setting(True, boolean)
    """With offsets.storage=kafka and ZooKeeper: commit to both, and start from the higher offset."""
    offsets_commit_max_retries: int = setting(5, integer())
    partition_assignment_strategy: str = setting("range", one_of("range", "roundrobin"))
    exclude_internal_topics: bool = setting(True, boolean)
    socket_timeout_ms: int = setting(30_000, integer(1))
    fetch_message_max_bytes: int = setting(1024 * 1024, integer(1))
    fetch_min_bytes: int = setting(1, integer())
    fetch_wait_max_ms: int = setting(100, integer())
    queued_max_message_chunks: int = setting(2, integer(1))
    rebalance_max_retries: int = setting(4, integer(1))
    rebalance_backoff_ms: int | None = setting(None, integer())
    """Default: as zookeeper.sync.time.ms."""
    refresh_leader_backoff_ms: int = setting(200, integer())
    zookeeper_session_timeout_ms: int = setting(6_000, integer(1))
    zookeeper_connection_timeout_ms: int | None = setting(None, integer(1))
    """Default: as zookeeper.session.timeout.ms."""
    zookeeper_sync_time_ms: int = setting(2_000, integer())
    session_timeout_ms: int = setting(45_000, integer(1))
    """Not in 0.8: session.timeout.ms of the group protocol."""
    isolation_level: str = setting("read_uncommitted", text)
    """Not in 0.8: read_committed skips aborted transactions."""

    @classmethod
    def of(cls, settings: Mapping[str, object] | None = None, /, **keywords: object) -> Self:
        """From 0.8's dotted names, or keywords with underscores. Raises ConfigError."""
        given = _names(settings, keywords)
        return super().of({_CONSUMER_NAMES_OF_07.get(key, key): value for key, value in given.items()})

    def __post_init__(self) -> None:
        if not self.group_id:
            raise ConfigError("group.id", self.group_id, "must be set")
        if self.client_id is None:
            object.__setattr__(self, "client_id", self.group_id)
        if self.rebalance_backoff_ms is None:
            object.__setattr__(self, "rebalance_backoff_ms", self.zookeeper_sync_time_ms)
        if self.zookeeper_connection_timeout_ms is None:
            object.__setattr__(self, "zookeeper_connection_timeout_ms", self.zookeeper_session_timeout_ms)
        if self.fetch_wait_max_ms > self.socket_timeout_ms:
            allowed = f"must not be above socket.timeout.ms={self.socket_timeout_ms}"
            raise ConfigError("fetch.wait.max.ms", self.fetch_wait_max_ms, allowed)
        if self.zookeeper_connect is None:
            self._check_group_protocol()
        elif self.offsets_storage == "zookeeper":
            object.__setattr__(self, "dual_commit_enabled", False)

    def _check_group_protocol(self) -> None:
        if not self.bootstrap_servers:
            allowed = "must be set, or bootstrap.servers for a group without ZooKeeper"
            raise ConfigError("zookeeper.connect", None, allowed)
        for key, value in (("offsets.storage", "zookeeper"), ("dual.commit.enabled", True)):
            if self.has(key) and getattr(self, key.replace(".", "_")) == value:
                raise ConfigError(key, value, "needs zookeeper.connect")
        object.__setattr__(self, "offsets_storage", "kafka")
        object.__setattr__(self, "dual_commit_enabled", False)

    def properties(self) -> dict[str, object]:
        """The settings of the current consumer that the connector uses, without its brokers."""
        return {
            "client.id": self.client_id,
            "group.id": self.group_id,
            "enable.auto.commit": False,
            "auto.offset.reset": {"smallest": "earliest", "largest": "latest"}[self.auto_offset_reset],
            "allow.auto.create.topics": False,
            "exclude.internal.topics": self.exclude_internal_topics,
            "request.timeout.ms": max(self.socket_timeout_ms, self.fetch_wait_max_ms + 1),
            "default.api.timeout.ms": self.socket_timeout_ms,
            "retry.backoff.ms": min(self.refresh_leader_backoff_ms, 1_000),
            "max.partition.fetch.bytes": self.fetch_message_max_bytes,
            "fetch.min.bytes": self.fetch_min_bytes,
            "fetch.max.wait.ms": self.fetch_wait_max_ms,
            "isolation.level": self.isolation_level,
            "partition.assignment.strategy": [self.partition_assignment_strategy],
            "session.timeout.ms": self.session_timeout_ms,
            "heartbeat.interval.ms": max(1, min(3_000, self.session_timeout_ms // 3)),
            "security.protocol": self.security_protocol,
            **self.security_settings,
        }
