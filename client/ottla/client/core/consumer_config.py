"""The configuration of a consumer: Kafka's names, defaults and units (KIP-41, 62, 74, 98, 345, 392, 429).

    ConsumerConfig.of(bootstrap_servers="127.0.0.1:9092", group_id="readers", auto_offset_reset="earliest")

Created by `Consumer`, read by its parts. Invariant: an existing configuration is consistent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ottla.client.core.assignors import BY_NAME
from ottla.client.core.config import ClientConfig
from ottla.client.core.settings import (
    ConfigError,
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

_positive = integer(1)

ISOLATION_LEVELS: Final = {"read_uncommitted": 0, "read_committed": 1}
_JAVA_PACKAGE: Final = "org.apache.kafka.clients.consumer."
_BY_JAVA_CLASS: Final = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}


_user_assignor = plugin("assign")


def _strategies(value: object) -> tuple[Any, ...]:
    """Names of assignors, or of the Java classes for them, and assignors of users."""
    strategies: list[Any] = []
    for item in items(value) if isinstance(value, str | list | tuple) else (value,):
        name = item.removeprefix(_JAVA_PACKAGE) if isinstance(item, str) else ""
        name = _BY_JAVA_CLASS.get(name, name)
        if name in BY_NAME:
            strategies.append(name)
            continue
        try:
            found = _user_assignor(item)
        except ValueError as problem:
            known = ", ".join(sorted(BY_NAME))
            raise ValueError(f"{item!r} {problem}; or one of {known}") from problem
        if not isinstance(getattr(found, "name", None), str):
            raise ValueError(f"{item!r} has no name, by which the members of a group agree on it")
        strategies.append(found)
    if not strategies:
        raise ValueError(f"must be a list of {', '.join(sorted(BY_NAME))}, or of assignors of your own")
    return tuple(dict.fromkeys(strategies))


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """Settings of the consumer."""

    group_id: str | None = setting(None, optional_text)
    """The consumer group. Without one, partitions are assigned by the application."""
    group_instance_id: str | None = setting(None, optional_text)
    """Makes the consumer a static member, which keeps its partitions through a restart."""
    group_ephemeral: bool = setting(False, boolean)
    """Not in Kafka: a group that assigns partitions, stores no offsets, and is deleted with its last member.
    Assigned partitions are read from auto.offset.reset."""
    group_protocol: str = setting("classic", one_of("classic"))
    """The group protocol; `consumer` (KIP-848) needs KRaft."""
    session_timeout_ms: int = setting(45_000, _positive)
    """A member that sends no heartbeat for this long is removed from the group."""
    heartbeat_interval_ms: int = setting(3_000, _positive)
    """Interval of heartbeats."""
    max_poll_interval_ms: int = setting(300_000, _positive)
    """A member that does not poll for this long leaves the group."""
    max_poll_records: int = setting(500, _positive)
    """The most records that one poll returns."""
    partition_assignment_strategy: tuple[Any, ...] = setting(("range", "cooperative-sticky"), _strategies)
    """Names in `assignors.BY_NAME`, and assignors of users: objects, classes, or dotted names of classes."""
    enable_auto_commit: bool = setting(True, boolean)
    """Disabled without a group.id; enabling it then is an error."""
    auto_commit_interval_ms: int = setting(5_000, integer())
    """Interval of automatic commits."""
    auto_offset_reset: str = setting("latest", one_of("latest", "earliest", "none"))
    """Where to start without a committed offset, or if it is out of range."""
    auto_offset_reset_new_partitions: str = setting("earliest", one_of("earliest", "latest", "none"))
    """Where to start in partitions and topics that were created after the consumer, or its group, subscribed,
    and that have no committed offset (KIP-842; the name is that of KIP-1327). Kafka 3.9 uses
    auto.offset.reset there: with latest, records that were written before the consumer discovered the
    partition are skipped. If auto.offset.reset is none, the default is none."""
    isolation_level: str = setting("read_uncommitted", one_of(*ISOLATION_LEVELS))
    """Whether records of open and aborted transactions are returned."""
    client_rack: str = setting("", text)
    """The rack of this client: it reads from a replica there, if the brokers select so."""
    fetch_min_bytes: int = setting(1, integer())
    """The broker waits for this many bytes, within fetch.max.wait.ms."""
    fetch_max_bytes: int = setting(50 * 1024 * 1024, integer())
    """Limits one response together with the buffered records of that broker. A larger batch is still
    returned, alone."""
    fetch_max_wait_ms: int = setting(500, integer())
    """How long the broker waits for fetch.min.bytes."""
    max_partition_fetch_bytes: int = setting(1024 * 1024, integer())
    """Bytes of one partition in a response; a larger batch is still returned."""
    check_crcs: bool = setting(True, boolean)
    """Verify the checksum of batches."""
    exclude_internal_topics: bool = setting(True, boolean)
    """A pattern does not select internal topics."""
    allow_auto_create_topics: bool = setting(True, boolean)
    """Brokers may create a missing topic that is subscribed to."""
    key_deserializer: Any = setting(None, anything)
    """A function or a Deserializer that makes keys of bytes."""
    value_deserializer: Any = setting(None, anything)
    """The same for values."""
    interceptor_classes: tuple[Any, ...] = setting((), plugins("on_consume", "on_commit"))
    """Each is a `ConsumerInterceptor`, the class of one, or its dotted name."""
    interceptors: tuple[Any, ...] = setting((), items)
    """Objects that are called after those of interceptor.classes."""
    leave_group_on_close: bool = setting(True, boolean)
    """A member that is closed leaves the group at once; static members never do."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.client_id:
            object.__setattr__(self, "client_id", f"consumer-{self.group_id or 'ottla'}")
        if self.group_id is None:
            if self.has("enable.auto.commit") and self.enable_auto_commit:
                raise ConfigError("enable.auto.commit", True, "cannot be true without a group.id")
            object.__setattr__(self, "enable_auto_commit", False)
            if self.group_instance_id is not None:
                raise ConfigError("group.instance.id", self.group_instance_id, "needs a group.id")
        if self.auto_offset_reset == "none" and not self.has("auto.offset.reset.new.partitions"):
            object.__setattr__(self, "auto_offset_reset_new_partitions", "none")
        if self.group_ephemeral:
            self._check_ephemeral()
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            allowed = f"must be lower than session.timeout.ms, which is {self.session_timeout_ms}"
            raise ConfigError("heartbeat.interval.ms", self.heartbeat_interval_ms, allowed)
        if self.fetch_max_wait_ms >= self.request_timeout_ms:
            allowed = f"must be lower than request.timeout.ms, which is {self.request_timeout_ms}"
            raise ConfigError("fetch.max.wait.ms", self.fetch_max_wait_ms, allowed)

    def _check_ephemeral(self) -> None:
        if self.group_id is None:
            raise ConfigError("group.ephemeral", True, "needs a group.id")
        if self.group_instance_id is not None:
            allowed = "cannot be set with group.ephemeral: a static member never leaves"
            raise ConfigError("group.instance.id", self.group_instance_id, allowed)
        if self.has("enable.auto.commit") and self.enable_auto_commit:
            raise ConfigError("enable.auto.commit", True, "cannot be true with group.ephemeral")
        object.__setattr__(self, "enable_auto_commit", False)
        if self.auto_offset_reset == "none":
            raise ConfigError("auto.offset.reset", "none", "must be latest or earliest with group.ephemeral")

    @property
    def isolation(self) -> int:
        """The value in requests."""
        return ISOLATION_LEVELS[self.isolation_level]
