"""Values that the client exchanges with its users, and that its modules exchange with each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from ottla.protocol.types import Message

Header: TypeAlias = tuple[str, bytes | None]

ANY_NODE: Final = -1
"""In place of a broker id: the least loaded broker."""


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Node:
    """A broker and its address."""

    id: int
    host: str
    port: int
    rack: str | None = None


class Leader(NamedTuple):
    """The leader of a partition and its leader epoch, -1 if the broker did not return it."""

    node_id: int
    epoch: int


class ProducerRecord(NamedTuple):
    """A record to send, as interceptors get it."""

    topic: str
    value: Any = None
    key: Any = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Sequence[Header] = ()


RecordFields: TypeAlias = tuple[str, Any, Any, int | None, int | None, Sequence[Header]]
"""The fields of a `ProducerRecord`, as arguments of internal calls."""


class RecordMetadata(NamedTuple):
    """The partition and offset of a written record. `offset` is -1 if the broker did not return it: with
    acks=0, and for a batch that it already had. `timestamp_ms` is the timestamp of the record, or with
    message.timestamp.type=LogAppendTime that of the broker."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class OffsetToCommit(NamedTuple):
    """The offset of the next record that a group reads, with metadata."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    """The leader epoch of the last consumed record; -1 if unknown (KIP-320)."""


class GroupMetadata(NamedTuple):
    """The membership of a consumer in its group, for transactions that commit its offsets (KIP-447)."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class ConsumerRecord(NamedTuple):
    """A consumed record. It is a tuple because tuples are created fastest; `_replace` returns a changed
    copy."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    """0 for CreateTime, 1 for LogAppendTime (KIP-32), -1 for a message of format 0, which has no
    timestamp."""
    key: Any
    value: Any
    headers: Sequence[Header] = ()
    leader_epoch: int = -1


class UnsentRequest(NamedTuple):
    """A request that a request manager wants to send; the response is passed back with its `tag`."""

    node_id: int
    """A broker id, or ANY_NODE."""
    message: Message
    tag: Any
    timeout_s: float
    version_max: int | None = None
    """The highest version to use, if a later version has other semantics."""
    channel: str = ""
    """Requests of different channels use separate connections, so that they do not wait behind a long
    poll."""
    keeps: bool = False
    """Whether the response is used after `on_response` returns; if not, views in it are valid during the call
    only."""
    expects_response: bool = True
    """False for Produce with acks=0, which has no response: `on_response` gets None once it is sent."""
    version_min: int = 0
    """The lowest version to use; `on_response` gets UnsupportedVersionError if the broker does not support
    it."""
    version: int | None = None
    """The version to use, instead of the highest that both sides support."""


class RequestManager(Protocol):
    """A state machine that sends requests, polled by `ottla.client.network_loop`; as Kafka's
    RequestManager."""

    def poll(self, now: float) -> list[UnsentRequest]:
        """The requests to send now."""

    def on_response(self, tag: Any, response: Any, now: float) -> None:
        """The response to a request, or the exception in its place; once for each request that `poll`
        returned."""

    def next_time(self, now: float) -> float:
        """The time of the next poll if nothing happens before; `math.inf` for never."""
