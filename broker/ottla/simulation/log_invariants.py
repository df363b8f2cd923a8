"""What must hold of each log: what a broker knows of it follows from its batches, and what a broker counts on
after a power loss is on the disk.

Called by `invariants.Monitor`. Batches are read from the simulated disk, each once, and from the log's start
again after a restart, a truncation or a compaction. Checked, in each replica of each broker:

- *whole batches*: the batches of a log have valid checksums, follow each other, and end at the log end
  offset;
- *producer state*: the broker knows of each producer the epoch, the last batches and the open transaction
  that the batches tell, and nothing of batches that were removed; the last stable offset is theirs;
- *leader epochs*: the epoch of each batch is that of its offset in the leader epoch cache, and no epoch
  begins after the log end;
- *indexes*: the last entries of the active segment's offset and time index, and all after a restart or a
  truncation, point to batches of the log; the transaction index has the log's aborted transactions;
- *durable*: what is below the recovery point is on the disk, with its indexes and names, and so are
  checkpoints;
- *recovery keeps records*: a broker that starts has all whole batches that its disk had before the start.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from ottla.protocol.records import (
    BATCH_HEADER,
    CRC_START,
    LOG_OVERHEAD,
    BatchHeader,
    ControlType,
    decode_batch,
    parse_control_record,
)
from ottla.replication.partition import Partition
from ottla.simulation.cluster import Cluster, Machine, Violation
from ottla.simulation.disk import File
from ottla.storage.checkpoints import LOG_START_FILE, RECOVERY_POINT_FILE, REPLICATION_FILE
from ottla.storage.log import Log
from ottla.storage.log_dir import PARTITION_METADATA_FILE, parse_partition_directory
from ottla.storage.segment_files import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_name,
)

_OFFSET: Final = struct.Struct(">q")
_ABORTED: Final = struct.Struct(">hqqqq")
_BATCHES_KEPT: Final = 5
_NEAR_END_BYTES: Final = 1 << 15
"""After a restart or a truncation, the last batches of a producer are known so near to the log's end."""
_CHECKPOINTS: Final = (RECOVERY_POINT_FILE, LOG_START_FILE, REPLICATION_FILE)
_BESIDE_LOGS: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)
_DAY_MS: Final = 86_400_000


@dataclass
class _Producer:
    """The state of a producer by its batches."""

    epoch: int
    batches: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_BATCHES_KEPT))
    """(first sequence, last offset)."""
    transaction_start: int | None = None
    last: int = -1
    """The last offset of a batch or marker."""
    timestamp: int = -1


@dataclass
class _Run:
    """Neighbouring batches of one leader epoch."""

    epoch: int
    first: int
    last: int


class LogContent:
    """The state of one log by its batches, read in the order of their offsets."""

    def __init__(self, start: int, *, compacts: bool) -> None:
        self.start = self.end = start
        self.compacts = compacts
        self.producers: dict[int, _Producer] = {}
        self.epochs: list[_Run] = []
        self.aborted: list[tuple[int, int, int]] = []
        """(producer, first offset, offset of the marker)."""
        self.ended: list[tuple[int, int]] = []
        """(first offset, offset of the marker) of transactions that have ended."""
        self.has_empty_markers = False
        """The cleaner has removed markers, and what they tell."""

    def read(self, data: bytearray, position: int, end: int) -> tuple[int, str]:
        """Read the batches of a segment's file from a position on. Returns where the first batch begins that
        is not whole, and what is wrong with it, empty if it is only cut off."""
        while position + BATCH_HEADER.size <= end:
            header = BatchHeader(*BATCH_HEADER.unpack_from(data, position))
            if header.magic != 2 or header.size < BATCH_HEADER.size or header.last_offset_delta < 0:
                return position, "no batch begins there"
            if position + header.size > end:
                break
            batch = bytes(data[position : position + header.size])
            if crc32c(batch[CRC_START:]) != header.crc:
                return position, "the checksum is wrong"
            if header.base_offset < self.end or (header.base_offset > self.end and not self.compacts):
                return position, f"offset {header.base_offset} follows {self.end - 1}"
            self._add(header, batch)
            position += header.size
        return position, ""

    def _add(self, header: BatchHeader, batch: bytes) -> None:
        self.end = header.last_offset + 1
        if self.epochs and self.epochs[-1].epoch == header.partition_leader_epoch:
            self.epochs[-1].last = header.last_offset
        else:
            self.epochs.append(_Run(header.partition_leader_epoch, header.base_offset, header.last_offset))
        if header.producer_id < 0:
            return
        if header.is_control and not header.record_count:
            self.has_empty_markers = True
            return
        producer = self.producers.setdefault(header.producer_id, _Producer(header.producer_epoch))
        if producer.epoch != header.producer_epoch:
            producer.epoch = header.producer_epoch
            producer.batches.clear()
        producer.last, producer.timestamp = header.last_offset, header.max_timestamp
        if not header.is_control:
            producer.batches.append((header.base_sequence, header.last_offset))
            if header.is_transactional and producer.transaction_start is None:
                producer.transaction_start = header.base_offset
            return
        start, producer.transaction_start = producer.transaction_start, None
        # The cleaner may have removed the first batches of the transaction, or all.
        first = self.start if self.compacts else start
        if first is not None:
            self.ended.append((first, header.base_offset))
        if start is not None and parse_control_record(decode_batch(batch)[0]).type == ControlType.ABORT:
            self.aborted.append((header.producer_id, start, header.base_offset))

    def open_start(self) -> int | None:
        """Where the first open transaction begins."""
        starts = [
            each.transaction_start for each in self.producers.values() if each.transaction_start is not None
        ]
        return min(starts, default=None)


class _Replica:
    """One replica of one broker's start, with what was read of it."""

    def __init__(self, log: Log) -> None:
        self.truncations = log.truncations
        self.segments = log.segments
        self.content = LogContent(log.segments[0].base_offset, compacts=log.config.compacts)
        self.known_from = 0
        """The broker must know the batches of producers that end here or later, of the last five."""
        self.at = 0
        """The segment that is read next, and the position in it."""
        self.position = 0
        self.is_new = True
        self.aborted = 0
        """How many aborted transactions were compared."""
        self.recovery_point = -1
        self.epochs: Sequence[tuple[int, int]] = ()
        self.opened_at = log.segments[-1].base_offset
        """Segments before this may have been sealed by the broker's former process, which was killed then."""

    def goes_on(self, log: Log) -> bool:
        """Whether what was read is still in the log."""
        segments = log.segments
        if segments is self.segments:
            return log.truncations == self.truncations
        if log.truncations != self.truncations:
            return False
        # Retention removes the first segments, and appends add some.
        dropped = 0
        while dropped <= self.at and self.segments[dropped] is not segments[0]:
            dropped += 1
        read = self.segments[dropped : self.at + 1]
        if not read or any(mine is not other for mine, other in zip(read, segments, strict=False)):
            return False
        self.at -= dropped
        self.segments = segments
        return True


class LogInvariants:
    """See the module."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._replicas: dict[tuple[int, int, str], _Replica] = {}
        """By broker, its start, and directory."""
        self._left: dict[tuple[int, int], dict[str, tuple[int, bytes]]] = {}
        """(broker, its last start) -> by directory, the end of the whole batches on the disk of a broker
        that is down, and the file with the topic id."""
        self._first_seen: set[tuple[int, int]] = set()
        self._found: dict[int, dict[str, File]] = {}
        """By broker, the files that its present process found: a former one may have been killed before it
        synced their names."""

    def check(self, machine: Machine) -> None:
        """Raises Violation."""
        if machine.has_flipped_bit or machine.disk.failed:
            return
        if not machine.is_running:
            self._look_at_disk(machine)
            return
        if not machine.is_serving or machine.process is None or machine.process.paused:
            return
        assert machine.broker is not None
        start = (machine.id, machine.starts)
        is_first = start not in self._first_seen
        for partition in machine.broker.replication.replicas.partitions():
            if not partition.log.closed:
                self._check_log(machine, partition, is_first=is_first)
        if is_first:
            self._first_seen.add(start)
            self._found[machine.id] = {
                path: file for path, file in machine.disk.names.items() if path.count("/") == 2
            }
        self._check_checkpoints(machine)

    # --- the batches ---

    def _check_log(self, machine: Machine, partition: Partition, *, is_first: bool) -> None:
        log = partition.log
        directory = log._local.directory_str
        key = (machine.id, machine.starts, directory)
        where = f"{partition.topic}-{partition.partition} on broker {machine.id}"
        replica = self._replicas.get(key)
        if replica is None or not replica.goes_on(log):
            replica = self._replicas[key] = _Replica(log)
        if is_first and not log.truncations:
            self._check_recovered(machine, where, directory, log)
        before = replica.content.end
        self._read(machine, where, directory, log, replica)
        content = replica.content
        if content.end != before or replica.is_new:
            self._check_producers(where, log, replica)
            self._check_aborted(machine, where, directory, log, replica)
            self._check_indexes(machine, where, directory, log, replica)
            replica.is_new = False
        entries = log.epochs()
        if entries != replica.epochs or content.end != before:
            self._check_epochs(where, log, content, entries)
            replica.epochs = entries
        self._check_stable(where, partition, content)
        self._check_durable(machine, where, directory, log, replica)

    def _read(self, machine: Machine, where: str, directory: str, log: Log, replica: _Replica) -> None:
        content, segments = replica.content, log.segments
        replica.segments = segments
        while True:
            segment = segments[replica.at]
            path = f"{directory}/{segment_name(segment.base_offset)}{LOG_SUFFIX}"
            file = machine.disk.names.get(path)
            if file is None:
                raise Violation(f"whole batches: {where}: {path} is not there")
            position, problem = content.read(file.data, replica.position, segment.size)
            is_last = replica.at == len(segments) - 1
            following = log.log_end_offset if is_last else segments[replica.at + 1].base_offset
            if not problem and position != segment.size:
                problem = "the batch is cut off"
            elif not problem and content.end != following and not log.config.compacts:
                problem = f"offset {content.end} follows, and not {following}"
            elif not problem and content.end > following:
                problem = f"offset {content.end} follows, after {following}"
            if problem:
                raise Violation(f"whole batches: {where}: {path}, byte {position}: {problem}")
            if replica.is_new and segment.size:
                # A truncation takes some of the five.
                replica.known_from = (
                    log.log_end_offset if log.truncations else self._known_from(file.data, segment.size)
                )
            replica.position = position
            if is_last:
                return
            replica.at += 1
            replica.position = 0
            content.end = max(content.end, following)

    @staticmethod
    def _known_from(data: bytearray, size: int) -> int:
        """The first offset of a segment's last bytes."""
        position, found = 0, 0
        while position + BATCH_HEADER.size <= size:
            offset, length = struct.unpack_from(">qi", data, position)
            found = offset
            if position >= size - _NEAR_END_BYTES:
                return int(offset)
            position += LOG_OVERHEAD + length
        return int(found)

    # --- what the broker knows ---

    def _check_producers(self, where: str, log: Log, replica: _Replica) -> None:
        content = replica.content
        entries = {} if log._producers is None else log._producers.all()
        for producer_id, producer in content.producers.items():
            entry = entries.get(producer_id)
            if entry is None:
                if log.log_start_offset > producer.last or self._has_expired(producer):
                    continue  # as in Kafka, a restart forgets producers without records
                raise Violation(f"producer state: {where} does not know producer {producer_id}: {producer}")
            known = [(batch.first_sequence, batch.last_offset) for batch in entry.batches]
            expected = list(producer.batches)
            if content.start > 0 or content.compacts:  # batches are missing
                known, expected = known[-1:], expected[-1:]
                is_known = known and (not expected or known[0][1] > expected[-1][1])
                if content.compacts and log.truncations and is_known:
                    continue  # the cleaner has removed this batch while a later one was the producer's last
            first = max(replica.known_from, log.log_start_offset)  # a restart forgets what was deleted
            required = [batch for batch in expected if batch[1] >= first] or expected[-1:]
            is_same = entry.epoch == producer.epoch and entry.transaction_start == producer.transaction_start
            if content.has_empty_markers and entry.epoch > producer.epoch:
                continue
            if not is_same or known != expected[len(expected) - len(known) :] or len(known) < len(required):
                raise Violation(
                    f"producer state: {where} has for producer {producer_id} (epoch, sequences and offsets, "
                    f"transaction) {(entry.epoch, known, entry.transaction_start)}, and its batches have "
                    f"{(producer.epoch, expected, producer.transaction_start)}"
                )
        if content.start == 0 and not content.compacts:
            for producer_id, entry in entries.items():
                if producer_id not in content.producers:
                    raise Violation(
                        f"producer state: {where} knows producer {producer_id} of epoch {entry.epoch} with "
                        f"{list(entry.batches)}, which has no batch"
                    )

    def _has_expired(self, producer: _Producer) -> bool:
        """Whether it may have: clocks step."""
        return abs(self._cluster.clock.wall_ms() - producer.timestamp) > _DAY_MS / 2

    def _check_stable(self, where: str, partition: Partition, content: LogContent) -> None:
        high_watermark = partition.high_watermark
        stable = partition.log.last_stable_offset(high_watermark)
        start = content.open_start()
        while content.ended and content.ended[0][1] < high_watermark:
            content.ended.pop(0)
        highest = high_watermark if start is None else min(high_watermark, start)
        lowest = min((highest, *(first for first, _ in content.ended)))
        if not lowest <= max(stable, partition.log.log_start_offset) or stable > max(
            highest, partition.log.log_start_offset
        ):
            raise Violation(
                f"last stable offset: that of {where} is {stable}, with high watermark {high_watermark} and "
                f"an open transaction from {start} on"
            )

    @staticmethod
    def _check_epochs(where: str, log: Log, content: LogContent, entries: Sequence[tuple[int, int]]) -> None:
        starts = [start for _, start in entries]
        if starts and starts[-1] > log.log_end_offset:
            raise Violation(
                f"leader epochs: {where} ends at {log.log_end_offset}, and has an epoch after it: {entries}"
            )
        first = log.log_start_offset
        for run in content.epochs:
            if run.last < first:
                continue
            at = bisect_right(starts, max(run.first, first)) - 1
            if at < 0 or entries[at][0] != run.epoch or bisect_right(starts, run.last) - 1 != at:
                raise Violation(
                    f"leader epochs: {where} has those of epoch {run.epoch} from {run.first} to {run.last}, "
                    f"and knows the epochs {entries}"
                )

    def _check_indexes(
        self, machine: Machine, where: str, directory: str, log: Log, replica: _Replica
    ) -> None:
        segment = log.segments[-1]
        base = segment.base_offset
        data = machine.disk.names[f"{directory}/{segment_name(base)}{LOG_SUFFIX}"].data
        offsets, times = segment._offset_index, segment._time_index
        found = [] if offsets is None else list(zip(offsets._first, offsets._second, strict=True))
        for relative, position in found if replica.is_new else found[-1:]:
            last = -1
            if position + BATCH_HEADER.size <= segment.size:
                header = BatchHeader(*BATCH_HEADER.unpack_from(data, position))
                last = header.last_offset
            if last != base + relative:
                raise Violation(
                    f"indexes: the offset index of segment {base} of {where} has offset {base + relative} at "
                    f"byte {position} of {segment.size}, where a batch ends with {last}"
                )
        found = [] if times is None else list(zip(times._first, times._second, strict=True))
        for timestamp, relative in found[-1:]:
            if base + relative >= log.log_end_offset:
                raise Violation(
                    f"indexes: the time index of segment {base} of {where} has {timestamp} at offset "
                    f"{base + relative}, and the log ends at {log.log_end_offset}"
                )

    def _check_aborted(
        self, machine: Machine, where: str, directory: str, log: Log, replica: _Replica
    ) -> None:
        content = replica.content
        if replica.aborted == len(content.aborted) and not replica.is_new:
            return
        replica.aborted = len(content.aborted)
        bases = [segment.base_offset for segment in log.segments]
        # The cleaner moves the first offset of a transaction.
        expected = {_key(entry, log) for entry in content.aborted if entry[2] >= bases[0]}
        found = set()
        for base in bases:
            file = machine.disk.names.get(f"{directory}/{segment_name(base)}{TXN_INDEX_SUFFIX}")
            for _, producer_id, first, last, _ in _ABORTED.iter_unpack(file.data) if file is not None else ():
                found.add(_key((producer_id, first, last), log))
        if expected - found or (found - expected and content.start == 0 and not content.compacts):
            raise Violation(
                f"indexes: the transaction index of {where} lacks the aborted transactions "
                f"{sorted(expected - found)}, and has {sorted(found - expected)}, which are not in the log"
            )

    # --- the disk ---

    def _check_durable(
        self, machine: Machine, where: str, directory: str, log: Log, replica: _Replica
    ) -> None:
        point = log.recovery_point
        if point == replica.recovery_point:
            return
        replica.recovery_point = point
        segments = log.segments
        for at, segment in enumerate(segments):
            if segment.base_offset >= point:
                break
            if at + 1 < len(segments) and segments[at + 1].base_offset <= log.log_start_offset:
                continue
            is_old = segment.base_offset < replica.opened_at
            prefix = f"{directory}/{segment_name(segment.base_offset)}"
            is_sealed = at + 1 < len(segments) and segments[at + 1].base_offset <= point
            for suffix in (LOG_SUFFIX, *_BESIDE_LOGS) if is_sealed and not is_old else (LOG_SUFFIX,):
                file = machine.disk.names.get(prefix + suffix)
                if file is None:
                    continue
                offsets = (log.log_start_offset, point) if suffix == LOG_SUFFIX else None
                lost = _first_unsynced(machine, prefix + suffix, file, offsets)
                if lost:
                    raise Violation(
                        f"durable: the recovery point of {where} is {point}, and {prefix}{suffix} {lost}"
                    )

    def _check_checkpoints(self, machine: Machine) -> None:
        for name in _CHECKPOINTS:
            path = f"{machine.log_dir}/{name}"
            file = machine.disk.names.get(path)
            if file is None or self._found[machine.id].get(path) is file:
                continue
            lost = _first_unsynced(machine, path, file, None)
            if lost:
                raise Violation(f"durable: on broker {machine.id}, the checkpoint {path} {lost}")

    # --- restarts ---

    def _look_at_disk(self, machine: Machine) -> None:
        """Remember what a broker that is down has."""
        start = (machine.id, machine.starts)
        if start in self._left:
            return
        left = self._left[start] = {}
        prefix = f"{machine.log_dir}/"
        bases: dict[str, list[int]] = {}
        for name in machine.disk.names:
            directory, _, file = name[len(prefix) :].partition("/")
            stem = file.removesuffix(LOG_SUFFIX)
            is_log = name.startswith(prefix) and stem != file and stem.isdigit()
            if is_log and parse_partition_directory(directory) is not None:
                bases.setdefault(prefix + directory, []).append(int(stem))
        for directory, found in bases.items():
            found.sort()
            content = LogContent(found[0], compacts=False)
            for base in found:
                if base != content.end:
                    break
                data = machine.disk.names[f"{directory}/{segment_name(base)}{LOG_SUFFIX}"].data
                position, _ = content.read(data, 0, len(data))
                if position != len(data):
                    break
            left[directory] = (content.end, _metadata(machine, directory))

    def _check_recovered(self, machine: Machine, where: str, directory: str, log: Log) -> None:
        end, metadata = self._left.get((machine.id, machine.starts - 1), {}).get(directory, (0, b""))
        is_former = metadata != _metadata(machine, directory)  # of a topic that was deleted
        if log.log_end_offset < end and not log.config.compacts and not is_former:
            raise Violation(
                f"recovery keeps records: {where} ends at {log.log_end_offset} after a start, and its files "
                f"had whole batches up to {end}"
            )


def _metadata(machine: Machine, directory: str) -> bytes:
    file = machine.disk.names.get(f"{directory}/{PARTITION_METADATA_FILE}")
    return b"" if file is None else bytes(file.data)


def _key(aborted: tuple[int, int, int], log: Log) -> tuple[int, int, int]:
    return (aborted[0], -1, aborted[2]) if log.config.compacts else aborted


def _first_unsynced(machine: Machine, path: str, file: File, offsets: tuple[int, int] | None) -> str:
    """What a power loss could take of a file, of the batches that begin at these offsets if that is not None;
    empty for nothing."""
    name = machine.disk.durable_name(path, file)
    if name is None or (offsets is None and name != path and not path.endswith(_BESIDE_LOGS)):
        return "may be gone after a power loss"
    for position, data in file.unsynced:
        if offsets is not None:
            if len(file.data) < position + _OFFSET.size:
                continue
            if not offsets[0] <= _OFFSET.unpack_from(file.data, position)[0] < offsets[1]:
                continue
        return f"may lose {'a truncation' if data is None else f'{len(data)} bytes'} at byte {position}"
    return ""
