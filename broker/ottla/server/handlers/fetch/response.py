"""Packs a Fetch response as bytes and file slices, versions 4 to 17.

The codec cannot do this: records are file ranges that never pass through Python. Called by
ottla.server.handlers.fetch.sender; tests compare the packed bytes with the codec's.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from struct import Struct
from uuid import UUID

from ottla.metadata.cache import BrokerEndpoint
from ottla.protocol.errors import ErrorCode
from ottla.server.dispatch.fetch_sessions import WantedPartition
from ottla.server.network.channel import Part
from ottla.storage.segment_files import FileSlice

# A smaller slice that is in the page cache is read into the response: one sendmsg is faster than many
# sendfiles.
INLINE_SLICE_MAX_BYTES = 16 * 1024

COPIED_SLICE_MAX_BYTES = 4096
"""A larger slice is a part of its own, which costs less than a copy."""
STEP_PARTS = 1000
PREFERRED_REPLICA_FROM = 11

_I32 = Struct(">i")
_HEADER = Struct(">iii")  # size, correlation id, throttle time
_HEADER_FLEXIBLE = Struct(">iiBi")  # ... with the header's tagged fields before the throttle time
_SESSION = Struct(">hi")  # error code, session id
_PARTITION = Struct(">ihqqq")  # index, error, high watermark, last stable offset, log start offset
_PARTITION_V4 = Struct(">ihqq")  # ... without the log start offset
_ABORTED = Struct(">qq")  # producer id, first offset
_DIVERGING = Struct(">BBiqB")  # tag 0: size 13, epoch, end offset, no tagged fields
_CURRENT_LEADER = Struct(">BBiiB")  # tag 1: size 9, leader, epoch, no tagged fields


AbortedTransactions = Sequence[tuple[int, int]]
"""(producer id, first offset) of each."""


class FetchedPartition:
    """One partition of a response: the result of reading `wanted`."""

    __slots__ = (
        "aborted",
        "caught_up",
        "current_leader",
        "diverging",
        "error",
        "high_watermark",
        "index",
        "last_stable_offset",
        "log_start_offset",
        "preferred",
        "size",
        "slices",
        "wanted",
    )

    def __init__(
        self,
        wanted: WantedPartition,
        error: ErrorCode = ErrorCode.NONE,
        high_watermark: int = -1,
        last_stable_offset: int = -1,
        log_start_offset: int = -1,
        slices: list[FileSlice] | None = None,
        size: int = 0,
        diverging: tuple[int, int] | None = None,
        aborted: AbortedTransactions | None = None,
        caught_up: bool = False,
        preferred: int = -1,
    ) -> None:
        """`preferred` is the broker to read from instead (KIP-392)."""
        self.wanted = wanted
        self.index = wanted.asked.partition
        self.error = error
        self.high_watermark = high_watermark
        self.last_stable_offset = last_stable_offset
        self.log_start_offset = log_start_offset
        self.slices = slices
        self.size = size
        self.diverging = diverging
        self.aborted = aborted
        self.caught_up = caught_up
        self.preferred = preferred
        self.current_leader: tuple[int, int] | None = None


FetchedTopic = tuple[str, UUID, list[FetchedPartition]]


def by_topic(partitions: Iterable[FetchedPartition]) -> list[FetchedTopic]:
    """Group adjacent partitions of one topic, in their order (Kafka does not group the others either)."""
    topics: list[FetchedTopic] = []
    last: WantedPartition | None = None
    for partition in partitions:
        wanted = partition.wanted
        # First by identity, since partitions of one topic mostly have the same objects.
        if last is None or not (
            (wanted.topic is last.topic or wanted.topic == last.topic)
            and (wanted.topic_id is last.topic_id or wanted.topic_id == last.topic_id)
        ):
            rows: list[FetchedPartition] = []
            topics.append((wanted.topic or "", wanted.topic_id, rows))
            last = wanted
        rows.append(partition)
    return topics


def build(
    version: int,
    correlation_id: int,
    topics: list[FetchedTopic],
    *,
    error: ErrorCode = ErrorCode.NONE,
    session_id: int = 0,
    throttle_ms: int = 0,
    endpoints: Iterable[BrokerEndpoint] = (),
) -> list[Part]:
    """The parts of the whole response, size first."""
    flexible = version >= 12
    parts: list[Part] = []
    out = bytearray()
    first = out
    file_bytes = 0
    if flexible:
        out += _HEADER_FLEXIBLE.pack(0, correlation_id, 0, throttle_ms)
    else:
        out += _HEADER.pack(0, correlation_id, throttle_ms)
    if version >= 7:
        out += _SESSION.pack(error, session_id)
    out += _count(len(topics), flexible)
    names_replica = version >= PREFERRED_REPLICA_FROM
    no_replica = b"\xff\xff\xff\xff" if names_replica else b""
    no_list = (b"\x00" if flexible else b"\xff\xff\xff\xff") + no_replica
    pack_partition = _PARTITION.pack
    for name, topic_id, partitions in topics:
        if version >= 13:
            out += topic_id.bytes
        else:
            text = name.encode()
            out += uvarint(len(text) + 1) if flexible else len(text).to_bytes(2, "big")
            out += text
        out += _count(len(partitions), flexible)
        for p in partitions:
            if version >= 5:
                out += pack_partition(
                    p.index, p.error, p.high_watermark, p.last_stable_offset, p.log_start_offset
                )
            else:
                out += _PARTITION_V4.pack(p.index, p.error, p.high_watermark, p.last_stable_offset)
            if p.aborted is None:
                out += no_list
            else:
                _add_aborted(out, p.aborted, flexible)
                out += no_replica
            if p.preferred >= 0:
                assert names_replica
                _I32.pack_into(out, len(out) - 4, p.preferred)
            out += uvarint(p.size + 1) if flexible else _I32.pack(p.size)
            if p.slices:
                for piece in p.slices:
                    data = None
                    length = piece.length
                    if length <= INLINE_SLICE_MAX_BYTES:
                        file = piece.file
                        try:
                            data = file.files.try_pread(file.fd, length, piece.position)
                        except OSError:
                            data = None  # The connection ends when the piece is sent, as in Kafka.
                    if data is None:
                        parts.append(out)
                        parts.append(piece)
                        file_bytes += length
                        out = bytearray()
                        continue
                    assert len(data) == length, "a segment ended before its slice"
                    if length < COPIED_SLICE_MAX_BYTES:
                        out += data
                    else:
                        parts.append(out)
                        parts.append(data)
                        out = bytearray()
            if flexible:
                if p.diverging is None and p.current_leader is None:
                    out.append(0)
                else:
                    _add_tagged(out, p)
        if flexible:
            out += b"\x00"
    if flexible:
        nodes = list(endpoints) if version >= 16 else []
        out += _node_endpoints(nodes) if nodes else b"\x00"
    parts.append(out)
    total = file_bytes + sum([len(part) for part in parts if not isinstance(part, FileSlice)])
    _I32.pack_into(first, 0, total - 4)
    return parts


def build_topics(version: int, topics: list[FetchedTopic]) -> list[Part]:
    """The part of a response with these topics, for `frame`."""
    flexible = version >= 12
    parts = build(version, 0, topics)
    first, last = parts[0], parts[-1]
    assert isinstance(first, bytearray)
    assert isinstance(last, bytearray)
    if flexible:
        del last[-1:]
    head = (_HEADER_FLEXIBLE if flexible else _HEADER).size + (_SESSION.size if version >= 7 else 0)
    del first[: head + len(_count(len(topics), flexible))]
    return parts


def frame(
    version: int,
    correlation_id: int,
    topics: int,
    body: list[Part],
    error: ErrorCode,
    endpoints: list[BrokerEndpoint],
) -> Generator[None, None, list[Part]]:
    """The parts of a whole response with `topics` topics in `body`, as `build` makes them; in time slices."""
    whole = build(version, correlation_id, [], error=error, endpoints=endpoints)
    (empty,) = whole
    assert isinstance(empty, bytearray)
    flexible = version >= 12
    head = (_HEADER_FLEXIBLE if flexible else _HEADER).size + (_SESSION.size if version >= 7 else 0)
    after = head + len(_count(0, flexible))
    first = empty[:head] + _count(topics, flexible)
    total = len(first) + len(empty) - after
    for number, part in enumerate(body):
        total += part.length if isinstance(part, FileSlice) else len(part)
        if number % STEP_PARTS == 0:
            yield
    _I32.pack_into(first, 0, total - 4)
    return [first, *body, empty[after:]]


def size_of(parts: list[Part], version: int) -> int:
    """The bytes that count for a quota: those of the body and the size field, as in Kafka."""
    total = sum(part.length if isinstance(part, FileSlice) else len(part) for part in parts)
    return total - (5 if version >= 12 else 4)


def begin_session(parts: list[Part], version: int, session_id: int) -> None:
    """Write the id of a new session into a packed response (version 7 and later)."""
    first = parts[0]
    assert isinstance(first, bytearray)
    header = _HEADER_FLEXIBLE if version >= 12 else _HEADER
    _SESSION.pack_into(first, header.size, ErrorCode.NONE, session_id)


def _add_aborted(out: bytearray, aborted: AbortedTransactions, flexible: bool) -> None:
    out += _count(len(aborted), flexible)
    for producer_id, first_offset in aborted:
        out += _ABORTED.pack(producer_id, first_offset)
        if flexible:
            out += b"\x00"


def _add_tagged(out: bytearray, p: FetchedPartition) -> None:
    out += bytes(((p.diverging is not None) + (p.current_leader is not None),))
    if p.diverging is not None:
        out += _DIVERGING.pack(0, 13, *p.diverging, 0)
    if p.current_leader is not None:
        out += _CURRENT_LEADER.pack(1, 9, *p.current_leader, 0)


def _node_endpoints(endpoints: list[BrokerEndpoint]) -> bytes:
    """The response's tagged fields: tag 0, the endpoints of the leaders that errors name."""
    body = bytearray(uvarint(len(endpoints) + 1))
    for e in endpoints:
        host = e.host.encode()
        body += _I32.pack(e.id) + uvarint(len(host) + 1) + host + _I32.pack(e.port)
        rack = None if e.rack is None else e.rack.encode()
        body += b"\x00" if rack is None else uvarint(len(rack) + 1) + rack
        body += b"\x00"
    return b"\x01\x00" + uvarint(len(body)) + bytes(body)


def _count(count: int, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else _I32.pack(count)


def uvarint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
