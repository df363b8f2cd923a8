"""Counts the records that one producer has sent and that were acknowledged, by topic and tumbling window.

Called by the adapters, under their lock; time is passed in as `now_ms`. Pure: no clock, no I/O, no lock.

Invariants: every record that is handed to the library has a number in its window, and each number ends as
acknowledged or failed, once, however often the library retried. A window is closed when its time is over and
no record is in flight; a closed window assigns no number, also if the clock is set back. A report has all
changes since the last delivered report, so a lost report loses no counts.

In a transaction, deliveries do not count by themselves: the commit acknowledges all of its records, the
abort fails them. Records that could not be handed over have failed before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla_pipeline.auditing.events import RANGES_MAX, AuditEvent, WindowCount

LOST_MAX = 1_000
"""The number of lost reports, the latest ones, that each event lists."""


@dataclass(slots=True, eq=False)
class Window:
    """The records of one topic and window. `sent` is the number of the next record; the caller increments
    it."""

    topic: str
    start_ms: int
    end_ms: int
    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    closed: bool = False
    _failed: list[tuple[int, int]] = field(default_factory=list)
    _transaction_from: int | None = None
    _confirmed: tuple[int, int, int, bool] | None = None

    @property
    def in_flight(self) -> int:
        return self.sent - self.acknowledged - self.failed

    def fail(self, first: int, last: int) -> None:
        """These numbers were not acknowledged."""
        assert 0 <= first <= last
        self.failed += last - first + 1
        self._failed.append((first, last))

    def fail_rest(self, first: int) -> None:
        """No number from `first` on was acknowledged; some of them may have failed already."""
        for low, high in sorted(each for each in self._failed if each[0] >= first):
            if low > first:
                self.fail(first, low - 1)
            first = high + 1
        if first < self.sent:
            self.fail(first, self.sent - 1)

    def numbers(self) -> tuple[tuple[int, int], ...] | None:
        """The acknowledged numbers as ranges; None while records are in flight, or with more than
        RANGES_MAX ranges."""
        if self.in_flight:
            return None
        ranges, begin = [], 0
        for first, last in sorted(self._failed):
            if first > begin:
                ranges.append((begin, first - 1))
            begin = last + 1
        if begin < self.sent:
            ranges.append((begin, self.sent - 1))
        assert sum(last - first + 1 for first, last in ranges) == self.acknowledged
        return tuple(ranges) if len(ranges) <= RANGES_MAX else None

    def state(self) -> tuple[int, int, int, bool]:
        """The reported values, to detect changes."""
        return (self.sent, self.acknowledged, self.failed, self.closed)


class ProducerCounter:
    """The counts of one producer. `current` has each topic's present window, as a fast path for adapters."""

    def __init__(self, producer: str, server: str, window_ms: int) -> None:
        if window_ms <= 0:
            raise ValueError(f"window_ms must be above 0, not {window_ms}")
        self.producer = producer
        self.server = server
        self.window_ms = window_ms
        self.current: dict[str, Window] = {}
        self._windows: list[Window] = []
        self.latest_ms = 0
        self._reports = 0
        self._lost: list[int] = []
        self._in_flight: dict[int, list[tuple[Window, tuple[int, int, int, bool]]]] = {}
        self._in_transaction = False
        self._touched: list[Window] = []

    def window(self, topic: str, now_ms: int) -> Window:
        """The window of a record that is handed over now. Time never goes back here."""
        self.latest_ms = now_ms = max(now_ms, self.latest_ms)
        window = self.current.get(topic)
        if window is None or now_ms >= window.end_ms:
            start_ms = now_ms - now_ms % self.window_ms
            window = self.current[topic] = Window(topic, start_ms, start_ms + self.window_ms)
            self._windows.append(window)
        if self._in_transaction and window._transaction_from is None:
            window._transaction_from = window.sent
            self._touched.append(window)
        return window

    def begin_transaction(self) -> None:
        """From now on until the end of the transaction, deliveries are not counted one by one."""
        self._in_transaction = True
        self.current.clear()  # `window` is called again for each, and marks it
        for window in self._windows:
            if window.end_ms > self.latest_ms and not window.closed:
                self.current[window.topic] = window
                window._transaction_from = window.sent
                self._touched.append(window)

    def end_transaction(self, committed: bool) -> None:
        for window in self._touched:
            first = window._transaction_from
            assert first is not None
            window._transaction_from = None
            if first < window.sent:
                if committed:
                    window.acknowledged += window.in_flight
                else:
                    window.fail_rest(first)
        self._touched.clear()
        self._in_transaction = False

    @property
    def in_transaction(self) -> bool:
        return self._in_transaction

    def report(self, now_ms: int, *, final: bool = False) -> AuditEvent:
        """The changes since the last delivered report. `final`: the producer sends no further records.

        The caller publishes the event and then calls `arrived` or `lost` with its number.
        """
        self.latest_ms = now_ms = max(now_ms, self.latest_ms)
        changed = []
        for window in self._windows:
            if not window.closed and not window.in_flight and (final or now_ms >= window.end_ms):
                window.closed = True
                if self.current.get(window.topic) is window:
                    del self.current[window.topic]
            state = window.state()
            if window.sent and state != window._confirmed:
                changed.append((window, state))
        number = self._reports
        self._reports += 1
        self._in_flight[number] = changed
        return AuditEvent(
            producer=self.producer,
            server=self.server,
            report=number,
            published_at_ms=now_ms,
            window_ms=self.window_ms,
            final=final,
            windows=tuple(
                WindowCount(
                    topic=window.topic,
                    start_ms=window.start_ms,
                    acknowledged=window.acknowledged,
                    failed=window.failed,
                    in_flight=window.in_flight,
                    closed=window.closed,
                    numbers=window.numbers(),
                )
                for window, _ in changed
            ),
            lost_reports=tuple(self._lost),
        )

    def arrived(self, report: int) -> None:
        """The report's event was acknowledged; its counts need not be repeated."""
        for window, state in self._in_flight.pop(report, ()):
            if state == window.state():
                window._confirmed = state
        self._windows = [
            window
            for window in self._windows
            if not (window.closed and (window._confirmed == window.state() or not window.sent))
        ]

    def lost(self, report: int) -> None:
        """The report's event was not acknowledged; the next report repeats its counts."""
        if self._in_flight.pop(report, None) is not None:
            self._lost = [*self._lost, report][-LOST_MAX:]
