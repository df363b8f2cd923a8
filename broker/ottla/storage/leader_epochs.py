"""The leader epochs of a log and their start offsets (KIP-101, KIP-279): leader-epoch-checkpoint (Kafka's
LeaderEpochFileCache).

Owned by `Log`. Invariants: epochs and start offsets both strictly ascend; a new entry removes the entries
that contradict it, because it comes from the current leader.

The file is written later (while `is_dirty`), and synced with the log: a broker that becomes leader of
thousands of partitions at once would otherwise wait for the disk thousands of times. Entries that are lost in
a crash are recovered from the batches after the recovery point; an epoch without a batch there is not needed.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from ottla.ports.files import Files
from ottla.storage.checkpoints import MalformedCheckpoint, read_entries, write_entries

logger = logging.getLogger(__name__)

CHECKPOINT_FILE = "leader-epoch-checkpoint"
UNDEFINED = -1


class LeaderEpochFileCache:
    """Epochs with their start offsets, in memory and in the file."""

    __slots__ = ("_directory", "_epochs", "_files", "_is_unsynced", "_starts", "is_dirty")

    def __init__(self, files: Files, directory: str | Path) -> None:
        self._files = files
        self._directory = str(directory)
        is_damaged = False
        try:
            entries = read_epochs(files, directory)
        except MalformedCheckpoint as problem:
            logger.warning("%s; the leader epochs will be rebuilt from the log", problem)
            entries, is_damaged = [], True
        # Tuples take less memory; there are thousands of logs, and epochs seldom change.
        self._epochs = tuple(epoch for epoch, _ in entries)
        self._starts = tuple(start for _, start in entries)
        self.is_dirty = is_damaged
        """The entries in memory differ from the file."""
        self._is_unsynced = False

    def update_parent_dir(self, directory: str) -> None:
        """The log's directory was renamed."""
        self._directory = directory

    @property
    def latest(self) -> int | None:
        return self._epochs[-1] if self._epochs else None

    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset), ascending."""
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """Add the start offset of `epoch`; the next `write` writes it to the file."""
        if epoch < 0 or start_offset < 0:
            return
        if self._epochs and self._epochs[-1] == epoch and self._starts[-1] <= start_offset:
            return
        kept = len(self._epochs)
        while kept and (self._epochs[kept - 1] >= epoch or self._starts[kept - 1] >= start_offset):
            kept -= 1
        self._set((*self._epochs[:kept], epoch), (*self._starts[:kept], start_offset))

    def prepend(self, entries: Sequence[tuple[int, int]]) -> None:
        """Add (epoch, start offset) before the known ones; epochs that continue start earlier."""
        if entries:
            last = entries[-1][0]
            entries = (*entries, *(entry for entry in self.entries() if entry[0] > last))
            self._set(tuple(epoch for epoch, _ in entries), tuple(start for _, start in entries))

    def start_of(self, epoch: int) -> int | None:
        """The start offset of `epoch`; None if it has no entry."""
        at = bisect_right(self._epochs, epoch) - 1
        return self._starts[at] if at >= 0 and self._epochs[at] == epoch else None

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(largest epoch at or below `epoch`, its end offset); (-1, -1) if unknown.

        For an epoch below all known ones, the result is that epoch and the first start offset (KIP-279).
        """
        if epoch == UNDEFINED or not self._epochs:
            return UNDEFINED, UNDEFINED
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        above = bisect_right(self._epochs, epoch)
        if above == len(self._epochs):
            return UNDEFINED, UNDEFINED
        return (self._epochs[above - 1] if above else epoch), self._starts[above]

    def epoch_at(self, offset: int) -> int | None:
        """The epoch in which the record at `offset` was written."""
        at = bisect_right(self._starts, offset) - 1
        return self._epochs[at] if at >= 0 else None

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove epochs that start at or after `end_offset`."""
        kept = len(self._starts)
        while kept and self._starts[kept - 1] >= end_offset:
            kept -= 1
        if kept < len(self._starts):
            # After a crash the removed epochs are removed again when the log is opened.
            self._set(self._epochs[:kept], self._starts[:kept])

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove epochs that end at or before `start_offset`; the epoch that holds it starts there."""
        covering = bisect_right(self._starts, start_offset) - 1
        if covering < 0 or (covering == 0 and self._starts[0] == start_offset):
            return
        self._set(self._epochs[covering:], (start_offset, *self._starts[covering + 1 :]))

    def clear(self) -> None:
        """Remove all entries, from the file, too: they do not apply to the data that follows."""
        if self._epochs:
            self._set((), ())
            self._write(sync=True)

    def _set(self, epochs: tuple[int, ...], starts: tuple[int, ...]) -> None:
        self._epochs, self._starts = epochs, starts
        self.is_dirty = True

    def write(self) -> None:
        """Write the file if it is dirty. No fsync."""
        if self.is_dirty:
            self._write(sync=False)

    def take_unsynced(self) -> list[Path]:
        """The file, if it must be synced. The caller syncs it before the recovery point advances."""
        is_unsynced, self._is_unsynced = self._is_unsynced, False
        return [Path(self._directory, CHECKPOINT_FILE)] if is_unsynced else []

    def _write(self, *, sync: bool) -> None:
        lines = (f"{epoch} {start}" for epoch, start in self.entries())
        write_entries(self._files, Path(self._directory, CHECKPOINT_FILE), lines, sync=sync)
        self.is_dirty = False
        self._is_unsynced = not sync


def read_epochs(files: Files, directory: str | Path) -> list[tuple[int, int]]:
    """(epoch, start offset) of all entries in the file of a log's directory. Raises MalformedCheckpoint."""
    return read_entries(files, f"{directory}/{CHECKPOINT_FILE}", _parse_entry)


def _parse_entry(words: list[str]) -> tuple[int, int]:
    epoch, start = words
    return int(epoch), int(start)
