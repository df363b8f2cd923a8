"""Counts what one producer has sent and had acknowledged, by topic and tumbling window.

Called by the adapters, under their lock; time comes in as `now_ms`. Pure: no clock, no I/O, no lock.

Invariants: every record handed to the library has a number of its window, and each number ends as
acknowledged or failed, once, however often the library sent the bytes. A window is closed when its time is
over and nothing of it is in flight; no number is taken of a closed window, also when the clock is set back.
What was changed since the last report that arrived is in the next one: a lost report costs nothing.

In a transaction no delivery counts by itself: its records are acknowledged by the commit, all of them, or
failed by the abort; but for those that could not even be handed over, which have failed before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla_pipeline.auditing.events import RANGES_MAX, AuditEvent, WindowCount

LOST_MAX = 1_000
"""So many lost reports are named in each event: the latest."""


@dataclass(slots=True, eq=False)
class Window:
    """The records of one topic and window. The next record's number is `sent`; whoever takes it adds 1."""

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
        """None of the numbers from this one on was acknowledged; some of them may have failed already."""
        for low, high in sorted(each for each in self._failed if each[0] >= first):
            if low > first:
                self.fail(first, low - 1)
            first = high + 1
        if first < self.sent:
            self.fail(first, self.sent - 1)

    def numbers(self) -> tuple[tuple[int, int], ...] | None:
        """The acknowledged numbers as ranges; None while some are in flight, or if there are too many."""
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
        """What a report tells, to see whether it has changed."""
        return (self.sent, self.acknowledged, self.failed, self.closed)


class ProducerCounter:
    """One producer's counts. `current` holds each topic's window of now, for adapters in a hurry."""

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
        """The window that a record handed over now belongs to. Time never goes back here."""
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
        """From here to its end, deliveries are not to be counted one by one."""
        self._in_transaction = True
        self.current.clear()  # each window is asked for anew, and marked
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
        """What has changed since the last report that arrived; `final`: nothing will be sent any more.

        The event is to be published, and `arrived` or `lost` called with its number.
        """
        self.latest_ms = now_ms = max(now_ms, self.latest_ms)
        told = []
        for window in self._windows:
            if not window.closed and not window.in_flight and (final or now_ms >= window.end_ms):
                window.closed = True
                if self.current.get(window.topic) is window:
                    del self.current[window.topic]
            state = window.state()
            if window.sent and state != window._confirmed:
                told.append((window, state))
        number = self._reports
        self._reports += 1
        self._in_flight[number] = told
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
                for window, _ in told
            ),
            lost_reports=tuple(self._lost),
        )

    def arrived(self, report: int) -> None:
        """The report's event was acknowledged: what it told need not be told again."""
        for window, state in self._in_flight.pop(report, ()):
            if state == window.state():
                window._confirmed = state
        self._windows = [
            window
            for window in self._windows
            if not (window.closed and (window._confirmed == window.state() or not window.sent))
        ]

    def lost(self, report: int) -> None:
        """The report's event was not acknowledged: the next one tells the same again."""
        if self._in_flight.pop(report, None) is not None:
            self._lost = [*self._lost, report][-LOST_MAX:]
