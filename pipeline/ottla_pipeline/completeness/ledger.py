"""The state of an audit: by topic and window, the counts that producers report and the records that each tier
holds.

Called by the auditor, which adds the batches of all streams, and by `verdicts`, which reads it. An
application is a tier that holds the records that its consumers report as processed. Pure: the caller stores
`to_json` after every batch and restores it after a crash.

Invariants: a batch is added once, because the ledger stores the last batch id of each stream, and is
stored before Spark starts the next one. A report replaces the counts of the producer's earlier reports.
Late data is never dropped for being late: `horizons` say up to which time each stream has been read, and
verdicts wait for them, not for the clock. A window that is complete in every tier, with no further reports
expected, keeps sums only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from ottla_pipeline.auditing.events import AuditEvent, ConsumerEvent, WindowCount
from ottla_pipeline.completeness.number_bitmap import BITS, NumberBitmap

EVENTS: Final = "audit events"
"""The name of the stream of audit events, among those of the tiers."""


def dead_letters_of(tier: str) -> str:
    """The name of the stream of a tier's dead letters. A record in both streams was replayed."""
    return f"{tier} dead letters"


NOTHING: Final = NumberBitmap()


class CountRow(NamedTuple):
    """Counts of a batch: one producer (None: not audited), topic, window and bucket of numbers."""

    topic: str
    producer: str | None
    start_ms: int
    bucket: int
    bits: int
    records: int


@dataclass(slots=True)
class ProducerEntry:
    """One producer's part of a window: its latest reported counts, and the numbers that each stream held."""

    counts: WindowCount | None = None
    report: int = -1
    tiers: dict[str, NumberBitmap] = field(default_factory=dict)

    def seen(self, tier: str) -> NumberBitmap:
        """The numbers that a tier holds, including its dead letters, which are not lost."""
        events, dead = self.tiers.get(tier, NOTHING), self.tiers.get(dead_letters_of(tier))
        return events if dead is None else events.union(dead)

    def replayable(self) -> bool:
        """Whether a tier holds dead letters of this entry, which a replay may add again as events."""
        return any(name.endswith(dead_letters_of("")) for name in self.tiers)


@dataclass(slots=True)
class Sums:
    """The sums of one tier for a complete window."""

    counted: int
    duplicated: int
    unacknowledged: int


@dataclass(slots=True)
class CompletedWindow:
    """A complete window, reduced to sums. Further records of its producers are duplicates."""

    producers: list[str]
    acknowledged: int
    tiers: dict[str, Sums]


@dataclass(slots=True)
class Window:
    """One topic and window: the entries of its producers, until it is complete."""

    entries: dict[str, ProducerEntry] = field(default_factory=dict)
    completed_ms: dict[str, int] = field(default_factory=dict)
    folded: CompletedWindow | None = None
    rejected: dict[str, int] = field(default_factory=dict)
    """By tier: the records that an application found invalid."""


@dataclass(slots=True)
class Client:
    """An audited client, as described by its events. `application` is set for consumers only."""

    server: str
    first_report: int
    last_report: int
    reports: NumberBitmap
    lost_reports: list[int]
    published_at_ms: int
    window_ms: int
    final: bool
    application: str = ""

    def gaps(self) -> int:
        """The number of reports that the client published and the audit has not read."""
        expected = [(self.first_report, self.last_report)]
        return sum(number not in self.lost_reports for number in self.reports.missing(expected, BITS))


@dataclass(slots=True)
class Ledger:
    """The state of one audit."""

    window_ms: int
    tiers: tuple[str, ...]
    windows: dict[tuple[str, int], Window] = field(default_factory=dict)
    clients: dict[str, Client] = field(default_factory=dict)
    horizons_ms: dict[str, int] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)
    unaudited: dict[str, dict[str, int]] = field(default_factory=dict)
    unreadable_events: int = 0
    forgotten_before_ms: int = 0
    late: dict[str, int] = field(default_factory=dict)

    def is_new(self, stream: str, batch_id: int) -> bool:
        """Whether this batch has not been added yet; records it as added. Batches arrive in order."""
        if batch_id <= self.batches.get(stream, -1):
            return False
        self.batches[stream] = batch_id
        return True

    def add_counts(self, tier: str, rows: Iterable[CountRow], *, dead_letters: bool = False) -> None:
        """Adds the counts of one batch of a tier, or of its dead letters."""
        assert tier in self.tiers
        stream = dead_letters_of(tier) if dead_letters else tier
        for row in rows:
            if row.producer is None:
                topics = self.unaudited.setdefault(tier, {})
                topics[row.topic] = topics.get(row.topic, 0) + row.records
                continue
            if row.start_ms < self.forgotten_before_ms:
                self.late[tier] = self.late.get(tier, 0) + row.records
                continue
            window = self.windows.setdefault((row.topic, row.start_ms), Window())
            if window.folded is not None and row.producer in window.folded.producers:
                sums = window.folded.tiers[tier]
                sums.counted += row.records
                sums.duplicated += row.records
                continue
            entry = window.entries.setdefault(row.producer, ProducerEntry())
            entry.tiers.setdefault(stream, NumberBitmap()).add(row.bucket, row.bits, row.records)

    def add_events(self, events: Iterable[AuditEvent], unreadable: int = 0) -> None:
        """Adds producers' audit events."""
        self.unreadable_events += unreadable
        for event in events:
            self._add_client(event.producer, event)
            if event.window_ms != self.window_ms:
                continue  # windows of another length are ignored; `problems` names the producer
            for counts in event.windows:
                if counts.start_ms < self.forgotten_before_ms:
                    continue
                window = self.windows.setdefault((counts.topic, counts.start_ms), Window())
                if window.folded is not None and event.producer in window.folded.producers:
                    continue  # the window was complete: this event was read before
                entry = window.entries.setdefault(event.producer, ProducerEntry())
                if event.report > entry.report:
                    entry.counts, entry.report = counts, event.report

    def add_receipts(
        self,
        event: ConsumerEvent,
        held: Mapping[str, tuple[list[CountRow], Mapping[tuple[str, int], int]]],
    ) -> None:
        """Adds a consumer's event: for each tier of its application the processed records, and the rejected
        ones by topic and window.

        An event is added once, however often it was published. Records of windows that are no longer kept
        are ignored: an application may read old records again.
        """
        known = self.clients.get(event.consumer)
        bucket, bit = divmod(event.report, BITS)
        if known is not None and known.reports.bits(bucket) >> bit & 1:
            return
        self._add_client(event.consumer, event)
        if event.window_ms != self.window_ms:
            return
        for tier, (rows, rejected) in held.items():
            kept = (row for row in rows if row.producer is None or row.start_ms >= self.forgotten_before_ms)
            self.add_counts(tier, kept)
            for key, count in rejected.items():
                if (window := self.windows.get(key)) is not None:
                    window.rejected[tier] = window.rejected.get(tier, 0) + count

    def _add_client(self, name: str, event: AuditEvent | ConsumerEvent) -> None:
        known = self.clients.get(name)
        if known is None:
            application = event.application if isinstance(event, ConsumerEvent) else ""
            known = self.clients[name] = Client(
                event.server,
                event.report,
                event.report,
                NumberBitmap(),
                [],
                0,
                event.window_ms,
                False,
                application,
            )
        known.reports.add(event.report // BITS, 1 << event.report % BITS, 1)
        known.first_report = min(known.first_report, event.report)
        known.last_report = max(known.last_report, event.report)
        known.published_at_ms = max(known.published_at_ms, event.published_at_ms)
        known.final = known.final or event.final
        if isinstance(event, AuditEvent):
            known.lost_reports = sorted({*known.lost_reports, *event.lost_reports})

    def advance_horizon(self, stream: str, at_ms: int) -> None:
        """Advances the horizon of a stream: all records that its source held at this time have been added."""
        self.horizons_ms[stream] = max(at_ms, self.horizons_ms.get(stream, 0))

    def horizon_ms(self, tier: str) -> int:
        """The time up to which the tier, its dead letters and the audit events have been read."""
        dead = dead_letters_of(tier)
        streams = (tier, EVENTS, dead) if dead in self.horizons_ms else (tier, EVENTS)
        return min(self.horizons_ms.get(stream, 0) for stream in streams)

    def expire(self, keep_ms: int) -> None:
        """Drops windows that ended `keep_ms` before every horizon, and clients that ended before then."""
        before_ms = min(self.horizon_ms(tier) for tier in self.tiers) - keep_ms
        before_ms -= before_ms % self.window_ms
        if before_ms <= self.forgotten_before_ms:
            return
        self.forgotten_before_ms = before_ms
        self.windows = {key: window for key, window in self.windows.items() if key[1] >= before_ms}
        self.clients = {
            name: client
            for name, client in self.clients.items()
            if client.published_at_ms >= before_ms or not client.final
        }

    def to_json(self) -> str:
        body = {
            "window_ms": self.window_ms,
            "tiers": self.tiers,
            "windows": [_window_to_json(key, window) for key, window in self.windows.items()],
            "producers": {
                name: {slot: getattr(client, slot) for slot in Client.__slots__}
                | {"reports": client.reports.to_json()}
                for name, client in self.clients.items()
            },
            "horizons_ms": self.horizons_ms,
            "batches": self.batches,
            "unaudited": self.unaudited,
            "unreadable_events": self.unreadable_events,
            "forgotten_before_ms": self.forgotten_before_ms,
            "late": self.late,
        }
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Ledger:
        raw: dict[str, Any] = json.loads(text)
        raw["tiers"] = tuple(raw["tiers"])
        raw["windows"] = dict(_window_from_json(one) for one in raw["windows"])
        raw["clients"] = {
            name: Client(**(one | {"reports": NumberBitmap.from_json(one["reports"])}))
            for name, one in raw.pop("producers").items()
        }
        return cls(**raw)


def _window_to_json(key: tuple[str, int], window: Window) -> list[Any]:
    entries = {
        name: [
            asdict(entry.counts) if entry.counts else None,
            entry.report,
            {tier: seen.to_json() for tier, seen in entry.tiers.items()},
        ]
        for name, entry in window.entries.items()
    }
    folded = asdict(window.folded) if window.folded else None
    return [*key, entries, window.completed_ms, folded, window.rejected]


def _window_from_json(raw: Sequence[Any]) -> tuple[tuple[str, int], Window]:
    topic, start_ms, entries, completed_ms, folded, *rejected = raw  # older ledgers lack `rejected`
    window = Window(
        {name: _entry_from_json(*parts) for name, parts in entries.items()},
        completed_ms,
        CompletedWindow(
            **(folded | {"tiers": {tier: Sums(**sums) for tier, sums in folded["tiers"].items()}})
        )
        if folded
        else None,
        *rejected,
    )
    return (topic, start_ms), window


def _entry_from_json(counts: dict[str, Any] | None, report: int, tiers: dict[str, Any]) -> ProducerEntry:
    if counts is not None:
        numbers = counts["numbers"]
        counts = counts | {"numbers": None if numbers is None else tuple(tuple(pair) for pair in numbers)}
    return ProducerEntry(
        WindowCount(**counts) if counts is not None else None,
        report,
        {tier: NumberBitmap.from_json(seen) for tier, seen in tiers.items()},
    )
