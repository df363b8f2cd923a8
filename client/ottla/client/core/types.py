"""The values that users of the client and its rooms hand to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from ottla.protocol.types import Message

Header: TypeAlias = tuple[str, bytes | None]

ANY_NODE: Final = -1
"""In place of a broker's id: whichever broker is least busy."""


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Node:
    id: int
    host: str
    port: int
    rack: str | None = None


class Leader(NamedTuple):
    """Who leads a partition, and since which epoch (-1: the broker did not say)."""

    node_id: int
    epoch: int


class ProducerRecord(NamedTuple):
    """A record on its way out, as interceptors see it."""

    topic: str
    value: Any = None
    key: Any = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Sequence[Header] = ()


class RecordMetadata(NamedTuple):
    """Where a record was written. `offset` is -1 where the broker does not say: acks=0, and a batch that it
    had already; `timestamp_ms` is the record's, with message.timestamp.type=LogAppendTime the broker's."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class OffsetToCommit(NamedTuple):
    """The next offset that a group is to read, and what goes with it."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    """Of the record before it; -1 for unknown (KIP-320)."""


class GroupMetadata(NamedTuple):
    """Who a consumer is in its group, for transactions that commit its offsets (KIP-447)."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class ConsumerRecord(NamedTuple):
    """A record as it was read. A tuple, since nothing is made as fast; `_replace` gives a changed one."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    """0 for CreateTime, 1 for LogAppendTime (KIP-32), -1 for a message of format 0, which has none."""
    key: Any
    value: Any
    headers: Sequence[Header] = ()
    leader_epoch: int = -1


class UnsentRequest(NamedTuple):
    """A request that a core wants sent; the answer comes back under its `tag`."""

    node_id: int
    """A broker's id, or ANY_NODE."""
    message: Message
    tag: Any
    timeout_s: float
    version_max: int | None = None
    """No version above this, where a later one says things otherwise."""
    channel: str = ""
    """Requests of different channels have connections of their own: what must not wait behind a long poll."""
    keeps: bool = False
    """Whether the response outlives `answered`; else views in it are valid during the call only."""
    expects_response: bool = True
    """False for Produce with acks=0, which no response follows: `answered` gets None once it is sent."""
    version_min: int = 0
    """No version below this, where an earlier one cannot say it: the answer is UnsupportedVersionError."""
    version: int | None = None
    """This version and no other."""


class RequestManager(Protocol):
    """What the shell drives (`ottla.client.network_loop`)."""

    def poll(self, now: float) -> list[UnsentRequest]:
        """The requests to send now."""

    def on_response(self, tag: Any, response: Any, now: float) -> None:
        """The response to a request, or the exception in its place; once for each that `poll` gave."""

    def next_time(self, now: float) -> float:
        """When to poll again at the latest, if nothing happens before; `math.inf` for never."""
