"""A running audit: adds the batches of its streams to the ledger and publishes the verdicts.

Called by the audit jobs. Spark's threads add batches, those of one stream in order. A thread of its own
updates the horizons and writes the report, also without new batches: missing records show only when the
horizon passes.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from ottla_pipeline.auditing.events import AuditEvent, ConsumerEvent, Receipt
from ottla_pipeline.completeness import report, tiers
from ottla_pipeline.completeness.config import AuditConfig, TierConfig, interval_ms
from ottla_pipeline.completeness.ledger import EVENTS, CountRow, Ledger, dead_letters_of
from ottla_pipeline.completeness.number_bitmap import BITS, FULL
from ottla_pipeline.completeness.report import AuditResult
from ottla_pipeline.completeness.verdicts import evaluate, problems, silent_clients, verdict
from ottla_pipeline.errors import JobStartError
from ottla_pipeline.filesystem import FileSystem

POLL_S: Final = 3.0
REDRAW_S: Final = 30.0
"""The interval at which the HTML page is written although nothing but the time has changed."""
Echo = Callable[[str], None]
Add = Callable[[Ledger], None]


def caught_up_ms(progress: Mapping[str, Any]) -> int | None:
    """The trigger time of a batch that read all available data, else None. Only Kafka sources may be
    limited to less; they report their latest offsets."""
    for source in progress["sources"]:
        latest = source.get("latestOffset")
        if str(source["description"]).startswith("KafkaV2[") and latest != source["endOffset"]:
            return None
    return round(datetime.fromisoformat(progress["timestamp"]).timestamp() * 1000)


class Auditor:
    """One audit, from its first batch to its last report. `result` is the latest one."""

    def __init__(
        self, config: AuditConfig, store: LedgerStore, echo: Echo, details: dict[str, object] | None = None
    ) -> None:
        self._config = config
        self._store = store
        self._echo = echo
        self._details = details if details is not None else {}
        self._lock = threading.Lock()
        text = store.load()
        names = tuple(tier.name for tier in config.tiers)
        self._ledger = Ledger.from_json(text) if text is not None else Ledger(config.window_ms, names)
        if (self._ledger.window_ms, self._ledger.tiers) != (config.window_ms, names):
            raise JobStartError(
                f"{config.checkpoint} belongs to an audit with windows of {self._ledger.window_ms} ms "
                f"and tiers {', '.join(self._ledger.tiers)}; take another checkpoint for others"
            )
        self._queries: Sequence[StreamingQuery] = ()
        self._began_ms = _now_ms()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit-report", daemon=True)
        self.result: AuditResult = self._evaluate()
        self._drawn: AuditResult | None = None

    def follow(self, queries: Sequence[StreamingQuery]) -> None:
        """Starts to observe these queries, whose names are those of their streams."""
        self._queries = queries
        with self._lock:
            for query in queries:
                self._advance_horizon(str(query.name), 0)
        self._thread.start()

    def tier_batch(self, tier: str, dead_letters: bool = False) -> Callable[[DataFrame, int], None]:
        """The `foreachBatch` function of a tier's stream."""

        def batch(records: DataFrame, batch_id: int) -> None:
            rows = tiers.count(records, self._config.window_ms)
            stream = dead_letters_of(tier) if dead_letters else tier
            self._add(
                stream, batch_id, lambda ledger: ledger.add_counts(tier, rows, dead_letters=dead_letters)
            )

        return batch

    def add_all_records(self, tier: str, rows: list[CountRow], *, dead_letters: bool = False) -> None:
        """Adds all records of a tier that has no stream. Raises JobStartError if the ledger includes them
        already."""
        stream = dead_letters_of(tier) if dead_letters else tier
        with self._lock:
            if not self._ledger.is_new(stream, 0):
                raise JobStartError(
                    f"{self._config.checkpoint} has counted {stream} before, and what was there then would "
                    "count twice: a Parquet lake's audit begins with an empty checkpoint"
                )
            self._ledger.add_counts(tier, rows, dead_letters=dead_letters)
            self._ledger.advance_horizon(stream, self._began_ms)
            self._store.save(self._ledger.to_json())

    def events_batch(self, records: DataFrame, batch_id: int) -> None:
        events, unreadable = tiers.parse_events(records)
        wanted = self._config.topics.fits
        of_producers = [
            replace(event, windows=tuple(window for window in event.windows if wanted(window.topic)))
            for event in events
            if isinstance(event, AuditEvent)
        ]

        def add(ledger: Ledger) -> None:
            ledger.add_events(of_producers, unreadable)
            for event in events:
                if isinstance(event, ConsumerEvent):
                    add_consumer_event(ledger, self._config, event)

        self._add(EVENTS, batch_id, add)

    def _add(self, stream: str, batch_id: int, add: Add) -> None:
        with self._lock:
            if self._ledger.is_new(stream, batch_id):
                add(self._ledger)
                self._store.save(self._ledger.to_json())

    def close(self) -> None:
        """Writes the last report, after the queries have ended."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            if self._config.trigger.available_now:
                for query in self._queries:
                    if query.exception() is None:  # it read all data that existed at the start
                        self._advance_horizon(str(query.name), self._began_ms)
            self.result = self._evaluate()
            self._store.save(self._ledger.to_json())
        self._write()
        self._echo(self.result.line())

    def _run(self) -> None:
        while not self._ending.wait(POLL_S):
            self._update()

    def _update(self) -> None:
        horizons = [(str(query.name), self._horizon_ms(query)) for query in self._queries]
        with self._lock:
            for stream, at_ms in horizons:
                self._advance_horizon(stream, at_ms)
            self._ledger.expire(interval_ms(self._config.keep))
            before, self.result = self.result, self._evaluate()
        if before.verdict != self.result.verdict:
            self._echo(self.result.line())
        self._write(draw=self._drawn is None or self.result.differs_from(self._drawn, REDRAW_S))

    def _advance_horizon(self, stream: str, at_ms: int) -> None:
        """Advances a stream's horizon; the audit events' horizon is also that of the applications."""
        self._ledger.advance_horizon(stream, at_ms)
        if stream == EVENTS:
            for tier in self._config.tiers:
                if tier.application is not None:
                    self._ledger.advance_horizon(tier.name, at_ms)

    def _horizon_ms(self, query: StreamingQuery) -> int:
        """The time up to which the query has read its source; 0 if it is not known at present."""
        now_ms, status, last = _now_ms(), query.status, query.lastProgress
        waiting = not status["isTriggerActive"] and not status["isDataAvailable"]
        if waiting and str(status["message"]).startswith("Waiting") and last is not None:
            # It polled its source within the last interval and found no new data.
            return now_ms - interval_ms(self._config.trigger.interval)
        return (caught_up_ms(json.loads(last.json)) or 0) if last is not None else 0

    def _evaluate(self) -> AuditResult:
        ledger, now_ms = self._ledger, _now_ms()
        rules = self._config.rules()
        rows = evaluate(ledger, rules, now_ms)
        problems_found = problems(ledger)
        word = verdict(rows, problems_found)
        producers = sum(not client.application for client in ledger.clients.values())
        found = AuditResult(
            name=self._config.name,
            at_ms=now_ms,
            window_ms=ledger.window_ms,
            verdict=word,
            rows=rows,
            problems=problems_found,
            silent=silent_clients(ledger, interval_ms(self._config.silent_after)),
            horizons_ms={tier: ledger.horizon_ms(tier) for tier in ledger.tiers},
            unaudited={tier: dict(topics) for tier, topics in ledger.unaudited.items()},
            producers=producers,
            consumers=len(ledger.clients) - producers,
        )
        self._details["verdict"] = word
        self._details["audit"] = report.topic_details(found, self._config.topics.topics or (), rules)
        return found

    def _write(self, *, draw: bool = True) -> None:
        if self._config.report is None:
            return
        try:
            report.write(self.result, Path(self._config.report), draw=draw)
            self._drawn = self.result if draw else self._drawn
        except OSError as error:
            self._echo(f"writing the report failed: {error}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


LEDGER: Final = "ledger"


class LedgerStore:
    """The ledger on disk, beside Spark's checkpoints: one numbered file, written whole after every batch.

    The file is written under another name and renamed, so the latest one is always complete.
    """

    def __init__(self, files: FileSystem, checkpoint: str) -> None:
        self._files = files
        self._folder = f"{checkpoint}/{LEDGER}"
        self._files.make_directories(self._folder)
        self._last = max((int(name.removesuffix(".json")) for name in self._names()), default=-1)

    def _names(self) -> list[str]:
        return [name for name in self._files.names(self._folder) if name.endswith(".json")]

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:012d}.json"

    def load(self) -> str | None:
        return self._files.read(self._path(self._last)) if self._last >= 0 else None

    def save(self, text: str) -> None:
        part = f"{self._folder}/.part"
        self._files.write(part, text)
        self._files.rename(part, self._path(self._last + 1))
        self._last += 1
        if self._last > 0:
            self._files.remove(self._path(self._last - 1))


def add_consumer_event(ledger: Ledger, config: AuditConfig, event: ConsumerEvent) -> None:
    """Adds a consumer's event to the tiers of its application. The counts of an application that is no
    tier are ignored."""
    ledger.add_receipts(
        event,
        {
            tier.name: _tier_counts(config, tier, event)
            for tier in config.tiers
            if tier.application == event.application
        },
    )


def _tier_counts(
    config: AuditConfig, tier: TierConfig, event: ConsumerEvent
) -> tuple[list[CountRow], Counter[tuple[str, int]]]:
    wanted = config.topics if tier.topics is None else tier.topics
    rows: list[CountRow] = []
    rejected: Counter[tuple[str, int]] = Counter()
    for receipt in event.receipts:
        topic = receipt.topic.removeprefix(tier.topic_prefix)
        if not receipt.topic.startswith(tier.topic_prefix) or not wanted.fits(topic):
            continue
        rows += _rows(receipt, topic)
        if receipt.rejected:
            rejected[topic, receipt.start_ms] += receipt.rejected
    for name, records in event.unaudited.items():
        topic = name.removeprefix(tier.topic_prefix)
        if records and name.startswith(tier.topic_prefix) and wanted.fits(topic):
            rows.append(CountRow(topic, None, 0, 0, 0, records))
    return rows, rejected


def _rows(receipt: Receipt, topic: str) -> list[CountRow]:
    """One row per bucket of numbers. The event does not say which numbers were duplicates: the first row
    counts them."""
    bucket, shift = divmod(receipt.first, BITS)
    left, copies = receipt.bits << shift, receipt.received - receipt.bits.bit_count()
    rows: list[CountRow] = []
    while left:
        if bits := left & FULL:
            count = bits.bit_count() + copies
            copies = 0
            rows.append(CountRow(topic, receipt.producer, receipt.start_ms, bucket, bits, count))
        left >>= BITS
        bucket += 1
    return rows
