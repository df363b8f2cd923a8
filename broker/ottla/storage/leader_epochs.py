"""The leader epochs of a log and where each begins (KIP-101, KIP-279): leader-epoch-checkpoint.

Owned by `Log`. Invariants: epochs and start offsets both strictly ascend; whatever contradicts a new
entry is dropped in its favour, for the new entry comes from the present leader.

The file is written a little later (while `is_dirty`), and synced with the log: a broker that comes to lead
thousands of partitions in one moment would else wait for the disk thousands of times. What a crash takes from
it is learnt again from the batches beyond the recovery point; an epoch that left no batch there is of no
account.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from pathlib import Path

from ottla.storage.checkpoints import MalformedCheckpoint, read_entries, write_entries

logger = logging.getLogger(__name__)

CHECKPOINT_FILE = "leader-epoch-checkpoint"
UNDEFINED = -1


class LeaderEpochCheckpoint:
    """Epochs with their start offsets, kept in memory and in the file."""

    __slots__ = ("_directory", "_epochs", "_is_unsynced", "_starts", "is_dirty")

    def __init__(self, directory: str | Path) -> None:
        self._directory = str(directory)
        try:
            entries = read_epochs(directory)
        except MalformedCheckpoint as problem:
            logger.warning("%s; the epochs will be learnt from the log", problem)
            entries = []
        # Tuples: they seldom change, and there are thousands of them.
        self._epochs = tuple(epoch for epoch, _ in entries)
        self._starts = tuple(start for _, start in entries)
        self.is_dirty = False
        """The file is not what is in memory: `write` is due."""
        self._is_unsynced = False

    def moved_to(self, directory: str) -> None:
        """The log's directory has another name now."""
        self._directory = directory

    @property
    def latest(self) -> int | None:
        return self._epochs[-1] if self._epochs else None

    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset), ascending."""
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` begins at `start_offset`; in the file after the next `write`."""
        if epoch < 0 or start_offset < 0:
            return
        if self._epochs and self._epochs[-1] == epoch and self._starts[-1] <= start_offset:
            return
        kept = len(self._epochs)
        while kept and (self._epochs[kept - 1] >= epoch or self._starts[kept - 1] >= start_offset):
            kept -= 1
        self._set((*self._epochs[:kept], epoch), (*self._starts[:kept], start_offset))

    def start_of(self, epoch: int) -> int | None:
        """Where `epoch` begins, or None when it left nothing in the log."""
        at = bisect_right(self._epochs, epoch) - 1
        return self._starts[at] if at >= 0 and self._epochs[at] == epoch else None

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(largest epoch at or below `epoch`, where it ends); (-1, -1) when that is not known.

        An epoch below all known ones is answered with itself and the first known start (KIP-279).
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
        """The epoch that the record at `offset` was written in."""
        at = bisect_right(self._starts, offset) - 1
        return self._epochs[at] if at >= 0 else None

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget epochs that begin at or after `end_offset`."""
        kept = len(self._starts)
        while kept and self._starts[kept - 1] >= end_offset:
            kept -= 1
        if kept < len(self._starts):
            # After a crash the stale tail is dropped again when the log is opened.
            self._set(self._epochs[:kept], self._starts[:kept])

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs that end at or before `start_offset`; the one that spans it begins there."""
        covering = bisect_right(self._starts, start_offset) - 1
        if covering < 0 or (covering == 0 and self._starts[0] == start_offset):
            return
        self._set(self._epochs[covering:], (start_offset, *self._starts[covering + 1 :]))

    def clear(self) -> None:
        """Forget all, in the file too: what begins elsewhere now must not be taken for a part of it."""
        if self._epochs:
            self._set((), ())
            self._write(sync=True)

    def _set(self, epochs: tuple[int, ...], starts: tuple[int, ...]) -> None:
        self._epochs, self._starts = epochs, starts
        self.is_dirty = True

    def write(self) -> None:
        """Bring the file up to date. Not synced."""
        if self.is_dirty:
            self._write(sync=False)

    def take_unsynced(self) -> list[Path]:
        """The file, if it is to be synced; who takes it does so before the recovery point moves."""
        is_unsynced, self._is_unsynced = self._is_unsynced, False
        return [Path(self._directory, CHECKPOINT_FILE)] if is_unsynced else []

    def _write(self, *, sync: bool) -> None:
        lines = (f"{epoch} {start}" for epoch, start in self.entries())
        write_entries(Path(self._directory, CHECKPOINT_FILE), lines, sync=sync)
        self.is_dirty = False
        self._is_unsynced = not sync


def read_epochs(directory: str | Path) -> list[tuple[int, int]]:
    """(epoch, start offset) as the file in a log's directory has them. Raises MalformedCheckpoint."""
    return read_entries(f"{directory}/{CHECKPOINT_FILE}", _parse_entry)


def _parse_entry(words: list[str]) -> tuple[int, int]:
    epoch, start = words
    return int(epoch), int(start)
