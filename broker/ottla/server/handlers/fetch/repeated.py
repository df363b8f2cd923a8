"""Fetch requests that equal an earlier one in all but correlation id, session epoch and fetch offset: the hot
path of consumers of one partition.

A consumer that reads a partition sends the same header, limits and partition again and again. The fetch
handler remembers these bytes of a request of one partition that had records at once (`remember`). The
dispatcher offers each Fetch request to `serve` first, which compares the bytes in place of parsing and
decoding them, reads the partition as the handler does, and packs the response from a template.

`serve` handles only what succeeds. It leaves a request to the handler, with nothing changed, if the request
is another one, if a client quota is set, if the client may not read the topic, or if there is anything but
enough records: an error, a wait, pages that have to come from the disk, aborted transactions. It is not used
for followers, with a replica selector, and for a request that is to be logged or traced. A session is served
if the partition is the only one that it has.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, TypeAlias

from ottla.metadata.cache import MetadataCache
from ottla.protocol.messages import FetchRequest
from ottla.protocol.types import ZERO_UUID
from ottla.replication.manager import ReplicaManager
from ottla.replication.reads import read as read_replica
from ottla.server.dispatch.counters import TIMED_EVERY, RequestCounters, RequestTimer, TopicCounters
from ottla.server.dispatch.dispatcher import respond_timed
from ottla.server.dispatch.fetch_sessions import CONSUMER, NO_SESSION, TOPIC_IDS_FROM, FetchSessionCache
from ottla.server.handlers.fetch.read import READ_COMMITTED, FetchRead, has_topic_id
from ottla.server.handlers.fetch.response import COPIED_SLICE_MAX_BYTES, INLINE_SLICE_MAX_BYTES, uvarint
from ottla.server.handlers.fetch.sender import FetchQuota
from ottla.server.network.channel import Connection, Part
from ottla.storage.nonblocking_reads import NonblockingReads
from ottla.storage.segment_files import FileSlice

VERSIONS: Final = range(12, 18)
KEPT_MAX: Final = 4096
"""Remembered requests of a broker; all are forgotten when there are more."""
FRAME_BYTES_MAX: Final = 1024
"""Longer requests are not remembered."""
NO_SESSION_EPOCH: Final = -1
"""The session epoch of a request without a session."""

MayRead: TypeAlias = Callable[[Connection, str], bool]
"""Whether the client of the connection may read the topic, and nothing has to be logged about it."""

_HEAD: Final = Struct(">hhih")  # API key, version, correlation id, length of the client id
_VERSION: Final = slice(2, 4)
_KEY_AT: Final = 8  # after the correlation id
_TO_EPOCH: Final = {version: (32 if version < 15 else 28) for version in VERSIONS}
"""Bytes before the session epoch, without the client id: head, tagged fields, replica id (below version 15),
wait, least and most bytes, isolation level, session id."""
_EPOCH: Final = Struct(">iB")  # session epoch, number of topics; the topic is next: its name or its id
_ID_BYTES: Final = 16
_NAME_BYTES_MAX: Final = 126  # of a length in one byte
_PARTITION: Final = Struct(">Biiq")  # number of partitions, index, leader epoch, fetch offset
_OFFSET_BYTES: Final = 8
_ONE: Final = 2  # an element; counts are one more
_NO_ABORTED: Final = b"\1"  # an empty list with read_committed, else null
_NULL: Final = b"\0"
_NO_PREFERRED_REPLICA: Final = b"\xff\xff\xff\xff"
_END: Final = b"\0\0\0"  # no tagged fields of partition, topic and response


class RepeatedFetch:
    """A remembered request, and its response but for what differs."""

    __slots__ = (
        "asked",
        "head_bytes",
        "max_bytes",
        "min_bytes",
        "pack",
        "prefix",
        "read_committed",
        "session_id",
        "suffix",
        "topic",
        "topic_id",
    )

    def __init__(self, version: int, message: FetchRequest, read: FetchRead) -> None:
        """`read` is the result of `message`."""
        wanted = read.fetched[0].wanted
        assert wanted.topic is not None
        self.topic = wanted.topic
        self.topic_id = wanted.topic_id
        self.asked = message.topics[0].partitions[0]
        self.max_bytes = min(self.asked.partition_max_bytes, read.max_bytes)
        self.min_bytes = min(message.min_bytes, read.max_bytes)
        self.read_committed = message.isolation_level == READ_COMMITTED
        self.session_id = message.session_id
        if version < TOPIC_IDS_FROM:
            name = self.topic.encode()
            topic = uvarint(len(name) + 1) + name
        else:
            topic = self.topic_id.bytes
        # no tagged fields, throttle time, error, session id, one topic, one partition: index, error
        start = Struct(f">xihiB{len(topic)}sBih")
        self.prefix = start.pack(0, 0, self.session_id, _ONE, topic, _ONE, self.asked.partition, 0)
        self.suffix = (_NO_ABORTED if self.read_committed else _NULL) + _NO_PREFERRED_REPLICA
        # size, correlation id, prefix, high watermark, last stable offset, log start offset, suffix
        head = Struct(f">ii{len(self.prefix)}sqqq{len(self.suffix)}s")
        self.pack = head.pack
        self.head_bytes = head.size - 4 + len(_END)


class RepeatedFetches:
    """See the module."""

    def __init__(
        self,
        replicas: ReplicaManager,
        sessions: FetchSessionCache,
        cache: MetadataCache,
        clock: Callable[[], int],
        quota: FetchQuota | None,
        counters: TopicCounters,
        requests: RequestCounters,
        may_read: MayRead | None,
    ) -> None:
        """`requests`: the counters of the API. `may_read` None: every client may."""
        self._may_read = may_read
        self._find = replicas.find
        self._sessions = sessions
        self._topic_name = cache.topic_name
        self._clock = clock
        self._quota = quota
        self._counters = counters
        self._requests = requests
        self._kept: dict[bytes, RepeatedFetch] = {}

    def remember(self, frame: memoryview, version: int, message: FetchRequest, read: FetchRead) -> None:
        """Keep a request that has had records at once, if it is a consumer's, of one partition, and `serve`
        can find it again."""
        if (
            version not in VERSIONS
            or not message.replica_id == message.replica_state.replica_id == CONSUMER
            or len(read.fetched) != 1
            or len(message.topics) != 1
            or len(message.topics[0].partitions) != 1
            or message.forgotten_topics_data
            or len(frame) > FRAME_BYTES_MAX
            or (self._quota is not None and self._quota.limits_fetches)
        ):
            return
        if message.session_id == NO_SESSION:
            if message.session_epoch != NO_SESSION_EPOCH:
                return
        elif message.session_epoch <= 0 or len(read.context) != 1:
            return
        places = _places(frame, version, message)
        if places is None:
            return
        key = _key(frame, *places)
        kept = self._kept
        if key not in kept:
            if len(kept) >= KEPT_MAX:
                kept.clear()
            kept[key] = RepeatedFetch(version, message, read)

    def serve(
        self, connection: Connection, frame: memoryview, loop_clock: Callable[[], float] | None
    ) -> bool:
        """Respond to a remembered request with the records that there are. False: nothing was done.
        `loop_clock` measures a sample of the requests; None: they are left to the handler."""
        try:
            _, version, correlation_id, client_bytes = _HEAD.unpack_from(frame)
            epoch_at = client_bytes + _TO_EPOCH[version]
            partition_at = epoch_at + _EPOCH.size
            partition_at += _ID_BYTES if version >= TOPIC_IDS_FROM else frame[partition_at]
            repeated = self._kept.get(_key(frame, epoch_at, partition_at))
            if repeated is None or (self._quota is not None and self._quota.limits_fetches):
                return False
            counts = self._requests.by_version
            number = counts[version] + 1
            timer: RequestTimer | None = None
            if not number % TIMED_EVERY:
                if loop_clock is None:
                    return False
                timer = RequestTimer(loop_clock, connection.active_s, self._requests)
            session_epoch, _ = _EPOCH.unpack_from(frame, epoch_at)
            _, index, leader_epoch, offset = _PARTITION.unpack_from(frame, partition_at)
            topic, topic_id, session_id = repeated.topic, repeated.topic_id, repeated.session_id
            partition = self._find(topic, index)
            if partition is None or offset >= partition.high_watermark:
                return False  # an error, or nothing to read yet
            if topic_id is not ZERO_UUID and not (
                self._topic_name(topic_id) == topic and has_topic_id(partition, topic_id)
            ):
                return False
            may_read = self._may_read
            if may_read is not None and not may_read(connection, topic):
                return False
            wanted = None
            if session_id != NO_SESSION:
                wanted = self._sessions.only_partition(session_id, session_epoch)
                if (
                    wanted is None
                    or wanted.topic != topic
                    or wanted.topic_id.int != topic_id.int
                    or wanted.asked.partition != index
                ):
                    return False
            elif session_epoch != NO_SESSION_EPOCH:
                return False
            now_ms = self._clock()
            with NonblockingReads():
                error, high_watermark, last_stable_offset, log_start_offset, diverging, data, _ = (
                    read_replica(
                        partition,
                        offset,
                        repeated.max_bytes,
                        replica_id=CONSUMER,
                        current_leader_epoch=leader_epoch,
                        last_fetched_epoch=repeated.asked.last_fetched_epoch,
                        read_committed=repeated.read_committed,
                        now_ms=now_ms,
                        leader_only=False,
                    )
                )
                if error or diverging is not None or data is None or data.size < repeated.min_bytes:
                    return False
                if repeated.read_committed and partition.log.aborted_transactions(offset, data):
                    return False
            size = data.size
            length = uvarint(size + 1)
            head = repeated.pack(
                repeated.head_bytes + len(length) + size,
                correlation_id,
                repeated.prefix,
                high_watermark,
                last_stable_offset,
                log_start_offset,
                repeated.suffix,
            )
            parts = _parts(head + length, data.slices[0])
        except Exception:
            return False  # The handler meets the same error, and responds.
        counts[version] = number
        count = self._counters[topic]
        count.fetches += 1
        count.bytes_out += size
        if wanted is not None:
            repeated.asked.fetch_offset = offset
            self._sessions.record_only(wanted, repeated.asked, high_watermark, log_start_offset, now_ms)
        respond_timed(connection, None, parts, timer)
        return True


def _parts(head: bytes, records: FileSlice) -> tuple[Part, ...]:
    """A response, as ottla.server.handlers.fetch.response makes it."""
    length = records.length
    if length <= INLINE_SLICE_MAX_BYTES:
        data = records.file.files.try_pread(records.file.fd, length, records.position)
        if data is not None:
            assert len(data) == length, "a segment ended before its slice"
            if length < COPIED_SLICE_MAX_BYTES:
                return (b"".join((head, data, _END)),)
            return head, data, _END
    return head, records, _END


def _key(frame: memoryview, epoch_at: int, partition_at: int) -> bytes:
    """Version, and all bytes after the correlation id but session epoch and fetch offset, whose places they
    determine."""
    after = partition_at + _PARTITION.size
    return b"".join(
        (
            frame[_VERSION],
            frame[_KEY_AT:epoch_at],
            frame[epoch_at + 4 : after - _OFFSET_BYTES],
            frame[after:],
        )
    )


def _places(frame: memoryview, version: int, message: FetchRequest) -> tuple[int, int] | None:
    """Where the session epoch and the partition are in a request of one partition; None if `serve` would not
    find them there: the header has tagged fields, the topic's name is long, or a count is not in its shortest
    form."""
    _, _, _, client_bytes = _HEAD.unpack_from(frame)
    (topic,) = message.topics
    (asked,) = topic.partitions
    if client_bytes < 0 or frame[_KEY_AT + 2 + client_bytes]:
        return None
    epoch_at = client_bytes + _TO_EPOCH[version]
    partition_at = epoch_at + _EPOCH.size
    if version >= TOPIC_IDS_FROM:
        partition_at += _ID_BYTES
    else:
        name = topic.topic.encode()
        if len(name) > _NAME_BYTES_MAX or frame[partition_at] != len(name) + 1:
            return None
        partition_at += 1 + len(name)
    is_there = _EPOCH.unpack_from(frame, epoch_at) == (message.session_epoch, _ONE)
    fields = (_ONE, asked.partition, asked.current_leader_epoch, asked.fetch_offset)
    if is_there and _PARTITION.unpack_from(frame, partition_at) == fields:
        return epoch_at, partition_at
    return None
