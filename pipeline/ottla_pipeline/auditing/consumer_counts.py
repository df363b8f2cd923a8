"""Counts the records that one consumer has processed, by topic, producer and window of the record's own time.

Called by the adapters; time is passed in as `now_ms`. Pure: no clock, no I/O, no lock.

Invariants: a delivered record is pending until the application has processed it (`processed`) or its
partition is revoked (`retain`), and counts at most once per delivery. Each processed record is in exactly
one report. A report that was not acknowledged is published again unchanged, with its number. Readers add
each number once, so a publication with an unknown outcome is counted exactly once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla_pipeline.auditing.events import ConsumerEvent, Receipt, name_of

log = logging.getLogger(__name__)

Partition = tuple[str, int]
SPAN: Final = 32_768
"""Numbers of one bitmap: 4 KiB."""
BITMAPS_BYTES_MAX: Final = 256 << 10
"""Of one event, before base64; the rest follows in the next one."""
PENDING_MAX: Final = 1_000_000
"""Delivered records that are not processed. With more than these, the oldest are not counted."""


@dataclass(slots=True)
class _Processed:
    """Processed records of one topic, producer and window since the last report."""

    numbers: list[int] = field(default_factory=list)
    rejected: int = 0


@dataclass(slots=True)
class _Given:
    """A delivered record. `window` is its topic, producer and window start; None: not audited."""

    offset: int
    window: tuple[str, str, int] | None
    number: int
    rejected: bool = False


class ConsumerCounter:
    """The counts of one consumer."""

    def __init__(self, consumer: str, server: str, application: str, window_ms: int) -> None:
        if window_ms <= 0:
            raise ValueError(f"window_ms must be above 0, not {window_ms}")
        self.consumer = consumer
        self.server = server
        self.application = application
        self.window_ms = window_ms
        self._pending: dict[Partition, deque[_Given]] = {}
        self._pending_count = 0
        self._left_out = 0
        self._processed: dict[tuple[str, str, int], _Processed] = {}
        self._unaudited: dict[str, int] = {}
        self._reports = 0
        self._in_flight: ConsumerEvent | None = None

    def delivered(
        self, topic: str, partition: int, offset: int, headers: Iterable[tuple[str, bytes | None]]
    ) -> None:
        """The application received this record."""
        name = name_of(headers)
        window, number = None, 0
        if name is not None:
            producer, at_ms, number = name
            window = (topic, producer, at_ms - at_ms % self.window_ms)
        self._pending.setdefault((topic, partition), deque()).append(_Given(offset, window, number))
        self._pending_count += 1
        if self._pending_count > PENDING_MAX:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        longest = max(self._pending.values(), key=len)
        longest.popleft()
        self._pending_count -= 1
        if self._left_out == 0:
            log.warning(
                "%s records were read and not committed: the audit does not count the oldest of these. "
                "An application that does not commit calls `processed`",
                f"{PENDING_MAX:,}",
            )
        self._left_out += 1

    def reject(self, topic: str, partition: int, offset: int) -> None:
        """The application found a pending record invalid. Raises ValueError if it is not pending."""
        for given in reversed(self._pending.get((topic, partition), ())):
            if given.offset == offset:
                given.rejected = True
                return
        raise ValueError(f"{topic}-{partition}: the record at offset {offset} is not pending")

    def processed(self, offsets: Mapping[Partition, int]) -> None:
        """The application has processed all delivered records before these offsets."""
        for partition, end in offsets.items():
            pending = self._pending.get(partition)
            while pending and pending[0].offset < end:
                given = pending.popleft()
                self._pending_count -= 1
                self._add(partition[0], given)

    def _add(self, topic: str, given: _Given) -> None:
        if given.window is None:
            self._unaudited[topic] = self._unaudited.get(topic, 0) + 1
            return
        found = self._processed.get(given.window)
        if found is None:
            found = self._processed[given.window] = _Processed()
        found.numbers.append(given.number)
        found.rejected += given.rejected

    def retain(self, partitions: Collection[Partition]) -> None:
        """Drops the pending records of all other partitions: they are revoked, and their new owner
        receives them."""
        for partition in [partition for partition in self._pending if partition not in partitions]:
            self._pending_count -= len(self._pending.pop(partition))

    @property
    def waiting(self) -> bool:
        """Whether processed records are unreported, or a report is not acknowledged."""
        return bool(self._processed or self._unaudited or self._in_flight)

    def report(self, now_ms: int, *, final: bool = False) -> ConsumerEvent:
        """The unacknowledged report, else the next one. `final`: no further records will be processed. The
        returned event is final only if no counts are left for another report; else call again.

        The caller publishes the event and calls `arrived` if it was acknowledged.
        """
        if self._in_flight is None:
            receipts = self._next_receipts()
            unaudited, self._unaudited = self._unaudited, {}
            self._in_flight = ConsumerEvent(
                consumer=self.consumer,
                server=self.server,
                application=self.application,
                report=self._reports,
                published_at_ms=now_ms,
                window_ms=self.window_ms,
                final=final and not self._processed,
                receipts=tuple(receipts),
                unaudited=unaudited,
            )
            self._reports += 1
        return self._in_flight

    def arrived(self) -> None:
        """The report in flight was acknowledged."""
        assert self._in_flight is not None
        self._in_flight = None

    def _next_receipts(self) -> list[Receipt]:
        taken: list[Receipt] = []
        bytes_left = BITMAPS_BYTES_MAX
        while self._processed and bytes_left > 0:
            window, processed = self._processed.popitem()
            for receipt in _receipts(window, processed):
                taken.append(receipt)
                bytes_left -= receipt.bits.bit_length() // 8 + 1
        return taken


def _receipts(window: tuple[str, str, int], processed: _Processed) -> Iterable[Receipt]:
    """One bitmap for each span of numbers; it begins at the byte of the first number."""
    topic, producer, start_ms = window
    spans: dict[int, list[int]] = {}
    for number in processed.numbers:
        spans.setdefault(number // SPAN, []).append(number)
    rejected = processed.rejected
    for _, numbers in sorted(spans.items()):
        first = min(numbers) // 8 * 8
        bitmap = bytearray((max(numbers) - first) // 8 + 1)
        for number in numbers:
            bitmap[(number - first) // 8] |= 1 << (number - first) % 8
        reported = min(rejected, len(numbers))
        rejected -= reported
        yield Receipt(
            topic, producer, start_ms, len(numbers), reported, first, int.from_bytes(bitmap, "little")
        )
