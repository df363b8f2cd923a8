"""The configurations of clients: Kafka's names, defaults and units (KIP-19, 91, 580, 679, 794, 899).

    ProducerConfig.of(bootstrap_servers="127.0.0.1:9092", linger_ms=5)
    ProducerConfig.of({"bootstrap.servers": "127.0.0.1:9092", "linger.ms": "5"})

Invariant: an existing configuration is consistent, so that users of it need no checks.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final

from ottla.client.core.backoff import Uniform, backoff_s
from ottla.client.core.partitioners import BY_JAVA_CLASS
from ottla.client.core.settings import (
    INT64_MAX,
    Settings,
    addresses,
    anything,
    boolean,
    integer,
    items,
    one_of,
    optional_text,
    plugin,
    plugins,
    setting,
    text,
)
from ottla.client.core.settings import ConfigError as ConfigError
from ottla.client.core.stats import Window
from ottla.protocol.compression import CODEC_BY_NAME, DEFAULT_LEVEL, Codec
from ottla.security.clients import ClientSecurity
from ottla.security.stores import StoreProblem

log = logging.getLogger(__name__)

IN_FLIGHT_IDEMPOTENT_MAX: Final = 5
"""The number of batches of a producer that a broker remembers for each partition (KIP-98)."""
ACKS_ALL: Final = -1

_milliseconds = integer(0, INT64_MAX)
_positive = integer(1)


def _token_provider(value: object) -> object:
    if value is not None and not callable(value) and not callable(getattr(value, "token", None)):
        raise ValueError("must be a function without arguments, or an object with a method token()")
    return value


@dataclass(frozen=True, kw_only=True)
class ClientConfig(Settings):
    """Settings of all clients."""

    bootstrap_servers: tuple[tuple[str, int], ...] = setting((), addresses)
    """host:port of some brokers, from which the client learns the others."""
    client_id: str = setting("", text)
    """The name of this client in quotas, metrics and logs of brokers."""
    request_timeout_ms: int = setting(30_000, integer())
    """How long to wait for a response before the request counts as failed."""
    retry_backoff_ms: int = setting(100, _milliseconds)
    """First pause before a request is repeated; it doubles with each failure."""
    retry_backoff_max_ms: int = setting(1_000, _milliseconds)
    """Longest pause before a request is repeated."""
    reconnect_backoff_ms: int = setting(50, _milliseconds)
    """First pause before a new connection to the same broker; it doubles with each failure."""
    reconnect_backoff_max_ms: int = setting(1_000, _milliseconds)
    """Longest pause before a new connection to the same broker."""
    socket_connection_setup_timeout_ms: int = setting(10_000, _milliseconds)
    """First time-out of a connection attempt; it doubles with each failure."""
    socket_connection_setup_timeout_max_ms: int = setting(30_000, _milliseconds)
    """Longest time-out of a connection attempt."""
    client_dns_lookup: str = setting(
        "use_all_dns_ips", one_of("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")
    )
    """Whether all addresses of a name are tried, or a bootstrap name is replaced by its canonical names."""
    send_buffer_bytes: int = setting(-1, integer(-1))
    """SO_SNDBUF of connections; -1 for the default of the operating system."""
    receive_buffer_bytes: int = setting(-1, integer(-1))
    """-1 for the default of the operating system, which is better than those of Kafka, 128 and 64 KiB."""
    connections_max_idle_ms: int = setting(540_000, integer(-1, INT64_MAX))
    """A connection that was idle this long is closed."""
    metadata_max_age_ms: int = setting(300_000, _milliseconds)
    """Age at which metadata is requested again without a cause."""
    metadata_recovery_strategy: str = setting("none", one_of("none", "rebootstrap"))
    """Whether the client begins with bootstrap.servers again when no known broker is reachable."""
    default_api_timeout_ms: int = setting(60_000, integer())
    """Time-out of calls that have none of their own."""
    metric_reporters: tuple[Any, ...] = setting((), items)
    """MetricsReporter objects; names of Java classes are ignored."""
    metrics_num_samples: int = setting(2, _positive)
    """The number of windows of a rate."""
    metrics_sample_window_ms: int = setting(30_000, _positive)
    """The length of a window."""

    sasl_oauth_token_provider: Any = setting(None, _token_provider)
    """Ours, not Kafka's: the application's own tokens for OAUTHBEARER, as a function or a coroutine function
    without arguments that returns one as text, or an object with such a method `token`."""

    def __post_init__(self) -> None:
        if not self.bootstrap_servers:
            raise ConfigError("bootstrap.servers", "", "must have at least one broker, as host:port")
        self.security()

    def retry_pause_s(self, attempt: int, uniform: Uniform) -> float:
        """Seconds to wait after failure number `attempt`, counted from 0."""
        return backoff_s(attempt, self.retry_backoff_ms, self.retry_backoff_max_ms, uniform)

    @property
    def window(self) -> Window:
        """The sample windows of metrics."""
        return Window(self.metrics_sample_window_ms / 1000, self.metrics_num_samples)

    def security(self) -> ClientSecurity | None:
        """The TLS and SASL settings; None for PLAINTEXT. Raises ConfigError."""
        if self.security_protocol == "PLAINTEXT":
            return None
        properties = {**self.security_settings, "security.protocol": self.security_protocol}
        try:
            return ClientSecurity.of_properties(properties, self.sasl_oauth_token_provider)
        except (ValueError, StoreProblem) as problem:
            raise ConfigError("security.protocol", self.security_protocol, str(problem)) from None


@dataclass(frozen=True, kw_only=True)
class AdminConfig(ClientConfig):
    """Settings of the admin client."""

    client_id: str = setting("adminclient-ottla", text)
    """The name of this client in quotas, metrics and logs of brokers."""
    retries: int = setting(2**31 - 1, integer())
    """The number of retries of an item, within default.api.timeout.ms."""


def _gzip_level(value: object) -> int:
    level: int = integer(-1, 9)(value)
    if level == 0:
        raise ValueError("must be -1 (zlib's default), or from 1 to 9")
    return level


def _acks(value: object) -> int:
    known = {"all": ACKS_ALL, "-1": ACKS_ALL, "0": 0, "1": 1}
    try:
        return known[str(value).strip().lower()]
    except KeyError:
        raise ValueError("must be one of all, -1, 0, 1") from None


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Settings of the producer."""

    acks: int = setting(ACKS_ALL, _acks)
    """-1 (all in-sync replicas), 0 or 1."""
    enable_idempotence: bool = setting(True, boolean)
    """Each record is written once and in order, though requests are repeated."""
    retries: int = setting(2**31 - 1, integer())
    """How often a batch is sent again, within delivery.timeout.ms."""
    max_in_flight_requests_per_connection: int = setting(5, _positive)
    """Requests to a broker that wait for their responses at a time; at most 5 with idempotence."""
    delivery_timeout_ms: int = setting(120_000, integer())
    """Time from `send` until a record is acknowledged or fails."""
    max_block_ms: int = setting(60_000, _milliseconds)
    """How long `send` waits for metadata and for memory."""
    linger_ms: int = setting(0, _milliseconds)
    """How long a batch waits for further records."""
    batch_size: int = setting(16_384, integer())
    """Bytes, before compression."""
    buffer_memory: int = setting(32 * 1024 * 1024, integer(0, INT64_MAX))
    """Bytes of records that wait to be sent."""
    buffer_memory_per_topic: int = setting(-1, integer(-1, INT64_MAX))
    """Ours, not Kafka's: bytes of buffer.memory that the records of one topic may take. -1: no more than is
    free, so that topics that stand still always leave room for another one: half of buffer.memory for one of
    them, a third each for two. buffer.memory, or more, is no bound, as in Kafka. A topic that holds nothing
    may always begin."""
    block_on_topic_full: bool = setting(True, boolean)
    """Ours: whether `send` to a topic that holds all it may waits for max.block.ms, or raises
    BufferExhaustedError at once. Sends to other topics continue in both cases."""
    max_request_size: int = setting(1024 * 1024, integer())
    """Largest request, and so largest record, in bytes before compression."""
    compression_type: str = setting("none", one_of("none", "gzip", "snappy", "lz4", "zstd"))
    """Codec of batches."""
    compression_gzip_level: int = setting(DEFAULT_LEVEL[Codec.GZIP], _gzip_level)
    """Level of gzip."""
    compression_lz4_level: int = setting(DEFAULT_LEVEL[Codec.LZ4], integer(1, 17))
    """Level of lz4."""
    compression_zstd_level: int = setting(DEFAULT_LEVEL[Codec.ZSTD], integer(-131_072, 22))
    """Level of zstd."""
    partitioner: Any = setting(None, anything)
    """A name of `partitioners.BY_NAME`, or a function of (topic, key, value, number of partitions)."""
    partitioner_class: Any = setting(None, plugin("partition", known=BY_JAVA_CLASS, functions=True))
    """In its place: an object whose `partition` is such a function, its class, or the class's dotted name; or
    the name of one of Java's own partitioners. `close`, if it has one, is called when the producer stops."""
    partitioner_ignore_keys: bool = setting(False, boolean)
    """The default partitioner does not place records by their keys."""
    partitioner_adaptive_partitioning_enable: bool = setting(True, boolean)
    """The default partitioner prefers partitions of brokers that respond fast."""
    partitioner_availability_timeout_ms: int = setting(0, _milliseconds)
    """A partition whose broker has not responded for this long gets no records without key; 0: never."""
    metadata_max_idle_ms: int = setting(300_000, integer(5_000, INT64_MAX))
    """A topic that was unused for this long is forgotten."""
    transactional_id: str | None = setting(None, optional_text)
    """Makes the producer transactional, and fences an older producer of this id."""
    transaction_timeout_ms: int = setting(60_000, integer())
    """After this time the coordinator aborts an open transaction."""
    key_serializer: Any = setting(None, anything)
    """A function or a Serializer that makes bytes of keys."""
    value_serializer: Any = setting(None, anything)
    """The same for values."""
    interceptor_classes: tuple[Any, ...] = setting((), plugins("on_send", "on_acknowledgement"))
    """Each is a `ProducerInterceptor`, the class of one, or its dotted name."""
    interceptors: tuple[Any, ...] = setting((), items)
    """Objects that are called after those of interceptor.classes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.client_id:
            self._refine("client_id", f"producer-{self.transactional_id or 'ottla'}")
        self._check_idempotence()
        if self.partitioner is not None and self.partitioner_class is not None:
            raise ConfigError("partitioner.class", self.partitioner_class, "cannot be set with partitioner")
        if self.transactional_id is not None and not self.enable_idempotence:
            raise ConfigError("transactional.id", self.transactional_id, "needs enable.idempotence=true")
        least_ms = min(self.linger_ms + self.request_timeout_ms, 2**31 - 1)
        if self.delivery_timeout_ms < least_ms:
            if self.has("delivery.timeout.ms"):
                allowed = f"must be at least linger.ms + request.timeout.ms, which is {least_ms}"
                raise ConfigError("delivery.timeout.ms", self.delivery_timeout_ms, allowed)
            self._refine("delivery_timeout_ms", least_ms)

    def _check_idempotence(self) -> None:
        """Settings that exclude idempotence: an error if the user enabled it, else it is disabled."""
        if not self.enable_idempotence:
            return
        for key, value, allowed, holds in (
            ("retries", self.retries, "above 0", self.retries > 0),
            ("acks", self.acks, "all", self.acks == ACKS_ALL),
            (
                "max.in.flight.requests.per.connection",
                self.max_in_flight_requests_per_connection,
                f"at most {IN_FLIGHT_IDEMPOTENT_MAX}",
                self.max_in_flight_requests_per_connection <= IN_FLIGHT_IDEMPOTENT_MAX,
            ),
        ):
            if not holds:
                if self.has("enable.idempotence"):
                    raise ConfigError(key, value, f"must be {allowed} with enable.idempotence=true")
                log.warning("%s=%s: idempotence is disabled, because it needs %s", key, value, allowed)
                self._refine("enable_idempotence", False)

    def _refine(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def codec(self) -> Codec:
        return CODEC_BY_NAME[self.compression_type]

    @property
    def compression_level(self) -> int | None:
        """The level of the codec in use; None if it has no levels."""
        levels = {
            Codec.GZIP: self.compression_gzip_level,
            Codec.LZ4: self.compression_lz4_level,
            Codec.ZSTD: self.compression_zstd_level,
        }
        return levels.get(self.codec)
