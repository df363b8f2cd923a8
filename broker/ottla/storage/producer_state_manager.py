"""What a log knows of its producers, across restarts and truncations: state, snapshots, replay.

Owned by `Log`; `loading` feeds it while it recovers segments. `state` is what appends are checked against
and recorded in. It is rebuilt from the newest snapshot at or before the wanted offset and the headers of
the batches after that: after a clean shutdown none. A truncation, which the event loop waits for, takes
back what the lost batches did, and looks at few others; only where that cannot be done (a marker is lost
that was replicated, more than 10,000 batches are, a producer wrote just before that and hardly ever) does
it replay, and at most the segment that the log now ends in, for every roll leaves a snapshot.

Invariant: an aborted transaction is in its segment's index before its end is noted here, so that the last
stable offset never passes an abort that readers cannot be told of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ottla.protocol.records import BatchHeader, decode_batch, parse_control_record
from ottla.storage.log_segment import Segment, scan_headers
from ottla.storage.producer_snapshots import SnapshotFiles
from ottla.storage.producer_state import BatchMetadata, ProducerEntry, ProducerState
from ottla.storage.transaction_index import AbortedTransaction

_SEGMENTS_SNAPSHOT = 2
"""A replay leaves snapshots where this many of the last segments begin: truncations end there."""
_TAIL_MAX = 10_000
"""More batches than these are not taken back one by one."""
_LOOK_BACK_BYTES = (1 << 20, 16 << 20)
"""How far before the end of a truncated log its producers' last batches are looked for: first, and then."""


class ProducerHistory:
    """See the module."""

    __slots__ = ("_state", "snapshots")

    def __init__(self, directory: str, names: Iterable[str]) -> None:
        """`names` are those of the files in the log's directory."""
        self._state: ProducerState | None = None
        self.snapshots = SnapshotFiles(directory, names)

    @property
    def state(self) -> ProducerState:
        """Made when it is first asked for: most logs that nobody uses have no producers."""
        if self._state is None:
            self._state = ProducerState()
        return self._state

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known, and no snapshot is there: as one that is new."""
        return self._state is None and not self.snapshots.offsets

    @property
    def has_producers(self) -> bool:
        return self._state is not None

    def note(self, header: BatchHeader, batch: memoryview | bytes, segment: Segment | None) -> None:
        """A producer's batch is in the log; `batch` is read of markers only. An aborted transaction goes
        into the index of `segment`, unless that is None, for it is there already. Raises OSError."""
        state = self.state
        if not header.is_control:
            state.record_data(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.last_sequence,
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
                header.is_transactional,
            )
            return
        if not header.record_count:
            return  # compaction removed the marker, and with it the whole transaction
        marker = parse_control_record(decode_batch(batch)[0])
        offset = header.last_offset
        if segment is not None:
            first_offset = state.aborted_by(header.producer_id, marker)
            if first_offset is not None:
                next_open = state.first_open_besides(header.producer_id)
                stable = offset + 1 if next_open is None else next_open
                segment.txn_index.append(AbortedTransaction(header.producer_id, first_offset, offset, stable))
        state.record_marker(header.producer_id, header.producer_epoch, marker, offset, header.max_timestamp)

    def take_snapshot(self, offset: int, log_start_offset: int, *, sync: bool) -> None:
        """Write down the state before `offset`, unless that was done or there is nothing before it."""
        latest = self.snapshots.latest
        if offset > (log_start_offset if latest is None else latest):
            self.snapshots.write(offset, {} if self._state is None else self._state.all(), sync=sync)

    def clear(self) -> None:
        """Forget all producers, and remove the snapshots."""
        self._forget()
        for offset in self.snapshots.offsets:
            self.snapshots.remove(offset)

    def _forget(self) -> None:
        if self._state is not None:
            self._state.clear()

    def rebuild(
        self, segments: Sequence[Segment], log_start_offset: int, end_offset: int, *, sync: bool
    ) -> None:
        """Make the state that of all batches before `end_offset`; later snapshots are removed, and one is
        left there."""
        self.snapshots.keep_within(log_start_offset, end_offset)
        self._forget()
        found = self.snapshots.load_newest()
        at = log_start_offset
        if found is not None:
            at, producers = found
            if producers:
                self.state.load(producers)
        for index, segment in enumerate(segments):
            next_base = segments[index + 1].base_offset if index + 1 < len(segments) else end_offset
            if next_base <= at or segment.base_offset >= end_offset:
                continue
            start = max(segment.base_offset, at, log_start_offset)
            if index >= len(segments) - _SEGMENTS_SNAPSHOT:
                self.take_snapshot(start, log_start_offset, sync=sync)
            self._replay(segment, start, end_offset)
        self.take_snapshot(end_offset, log_start_offset, sync=sync)

    def take_back(self, segments: Sequence[Segment], end_offset: int) -> bool:
        """The log is about to be truncated to `end_offset`, within the first of `segments`, its last ones.
        Whether the state is what it was then; if not it is to be rebuilt."""
        if self._state is None or self._state.is_empty:
            return True  # it was empty with the tail, so it is without
        tail: list[BatchHeader] = []
        for segment in segments:
            for _, header in segment.headers(segment.position_of(end_offset)):
                tail.append(header)
                if len(tail) > _TAIL_MAX:
                    return False
        unknown = self.state.take_back(tail, end_offset)
        return unknown is not None and _restore(unknown, segments[0], end_offset)

    def _replay(self, segment: Segment, start: int, end_offset: int) -> None:
        for position, header in segment.headers(segment.position_of(start)):
            if header.base_offset >= end_offset:
                return
            if header.producer_id >= 0:
                batch = segment.read_batch(position) if header.is_control else b""
                self.note(header, batch, None)


def _restore(unknown: Mapping[int, ProducerEntry], segment: Segment, end_offset: int) -> bool:
    """Find the last batches before `end_offset` of producers; whether some were found of each."""
    end = segment.position_of(end_offset)
    for length in _LOOK_BACK_BYTES if unknown else ():
        start = segment.offset_index.position_before(max(end - length, 0))
        found: set[int] = set()
        for _, header in scan_headers(segment.fd, start, end):
            entry = unknown.get(header.producer_id)
            if entry is None:
                continue
            if header.producer_epoch != entry.epoch or header.producer_id not in found:
                entry.epoch = header.producer_epoch
                entry.batches.clear()
            if not header.is_control:
                found.add(header.producer_id)
                entry.batches.append(
                    BatchMetadata(
                        header.base_sequence,
                        header.last_sequence,
                        header.last_offset,
                        header.last_offset_delta,
                        header.max_timestamp,
                    )
                )
                entry.last_timestamp = header.max_timestamp
        if len(found) == len(unknown):
            return True
    return not unknown
