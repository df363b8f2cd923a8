"""A running audit: what its streams bring goes into the ledger, and the ledger's verdicts out to people.

Called by the audit jobs. Spark's threads add batches, one stream's in order; a thread of its own looks how
far the streams are and writes the report, also when nothing comes: a loss is told by what does not come.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from ottla_pipeline.auditing.events import AuditEvent, ConsumerEvent
from ottla_pipeline.completeness import applications, by_topic, pages, tiers
from ottla_pipeline.completeness.config import AuditConfig, interval_ms
from ottla_pipeline.completeness.ledger import EVENTS, Counted, Ledger, dead_letters_of
from ottla_pipeline.completeness.pages import Found
from ottla_pipeline.completeness.store import Store
from ottla_pipeline.completeness.verdicts import judge, problems, silent, verdict
from ottla_pipeline.errors import CannotBegin

LOOK_S: Final = 3.0
DRAW_S: Final = 30.0
"""So often the page is drawn anew when nothing but the time has changed."""
Say = Callable[[str], None]
Add = Callable[[Ledger], None]


def caught_up_ms(progress: Mapping[str, Any]) -> int | None:
    """The time of a batch's trigger, if the batch took all there was then. Only Kafka's sources may be told
    to take less; theirs say how far they might have gone."""
    for source in progress["sources"]:
        latest = source.get("latestOffset")
        if str(source["description"]).startswith("KafkaV2[") and latest != source["endOffset"]:
            return None
    return round(datetime.fromisoformat(progress["timestamp"]).timestamp() * 1000)


class Watch:
    """One audit, from its first batch to its last report. `found` is the latest verdict."""

    def __init__(
        self, config: AuditConfig, store: Store, say: Say, details: dict[str, object] | None = None
    ) -> None:
        self._config = config
        self._store = store
        self._say = say
        self._details = details if details is not None else {}
        self._lock = threading.Lock()
        text = store.load()
        names = tuple(tier.name for tier in config.tiers)
        self._ledger = Ledger.from_json(text) if text is not None else Ledger(config.window_ms, names)
        if (self._ledger.window_ms, self._ledger.tiers) != (config.window_ms, names):
            raise CannotBegin(
                f"{config.checkpoint} is that of an audit with windows of {self._ledger.window_ms} ms "
                f"and tiers {', '.join(self._ledger.tiers)}; take another checkpoint for others"
            )
        self._queries: Sequence[StreamingQuery] = ()
        self._began_ms = _now_ms()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._look_now_and_then, name="audit-report", daemon=True)
        self.found: Found = self._judge()
        self._drawn: Found | None = None

    def follow(self, queries: Sequence[StreamingQuery]) -> None:
        """Looks after these, the names of which are their streams'."""
        self._queries = queries
        with self._lock:
            for query in queries:
                self._reached(str(query.name), 0)
        self._thread.start()

    def tier_batch(self, tier: str, dead_letters: bool = False) -> Callable[[DataFrame, int], None]:
        """What a tier's stream does with its batches."""

        def batch(records: DataFrame, batch_id: int) -> None:
            rows = tiers.count(records, self._config.window_ms)
            stream = dead_letters_of(tier) if dead_letters else tier
            self._add(
                stream, batch_id, lambda ledger: ledger.add_counts(tier, rows, dead_letters=dead_letters)
            )

        return batch

    def add_whole(self, tier: str, rows: list[Counted], *, dead_letters: bool = False) -> None:
        """All that a tier holds that has no stream. CannotBegin if the ledger has it already."""
        stream = dead_letters_of(tier) if dead_letters else tier
        with self._lock:
            if not self._ledger.is_new(stream, 0):
                raise CannotBegin(
                    f"{self._config.checkpoint} has counted {stream} before, and what was there then would "
                    "count twice: a Parquet lake's audit begins with an empty checkpoint"
                )
            self._ledger.add_counts(tier, rows, dead_letters=dead_letters)
            self._ledger.reached(stream, self._began_ms)
            self._store.save(self._ledger.to_json())

    def events_batch(self, records: DataFrame, batch_id: int) -> None:
        events, unreadable = tiers.read_events(records)
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
                    applications.add(ledger, self._config, event)

        self._add(EVENTS, batch_id, add)

    def _add(self, stream: str, batch_id: int, add: Add) -> None:
        with self._lock:
            if self._ledger.is_new(stream, batch_id):
                add(self._ledger)
                self._store.save(self._ledger.to_json())

    def close(self) -> None:
        """The last report, when the queries have ended."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            if self._config.trigger.available_now:
                for query in self._queries:
                    if query.exception() is None:  # it took all that there was when it began
                        self._reached(str(query.name), self._began_ms)
            self.found = self._judge()
            self._store.save(self._ledger.to_json())
        self._write()
        self._say(self.found.line())

    def _look_now_and_then(self) -> None:
        while not self._ending.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        horizons = [(str(query.name), self._horizon_ms(query)) for query in self._queries]
        with self._lock:
            for stream, at_ms in horizons:
                self._reached(stream, at_ms)
            self._ledger.forget(interval_ms(self._config.keep))
            before, self.found = self.found, self._judge()
        if before.verdict != self.found.verdict:
            self._say(self.found.line())
        self._write(draw=self._drawn is None or self.found.tells_more_than(self._drawn, DRAW_S))

    def _reached(self, stream: str, at_ms: int) -> None:
        """Applications have no stream but the audit events."""
        self._ledger.reached(stream, at_ms)
        if stream == EVENTS:
            for tier in self._config.tiers:
                if tier.application is not None:
                    self._ledger.reached(tier.name, at_ms)

    def _horizon_ms(self, query: StreamingQuery) -> int:
        """Up to when the query has read its source; 0 if that cannot be told now."""
        now_ms, status, last = _now_ms(), query.status, query.lastProgress
        waiting = not status["isTriggerActive"] and not status["isDataAvailable"]
        if waiting and str(status["message"]).startswith("Waiting") and last is not None:
            # It looked for something new within the last interval, and there was nothing.
            return now_ms - interval_ms(self._config.trigger.interval)
        return (caught_up_ms(json.loads(last.json)) or 0) if last is not None else 0

    def _judge(self) -> Found:
        ledger, now_ms = self._ledger, _now_ms()
        rules = self._config.rules()
        rows = judge(ledger, rules, now_ms)
        troubles = problems(ledger)
        word = verdict(rows, troubles)
        producers = sum(not client.application for client in ledger.clients.values())
        found = Found(
            name=self._config.name,
            at_ms=now_ms,
            window_ms=ledger.window_ms,
            verdict=word,
            rows=rows,
            problems=troubles,
            silent=silent(ledger, interval_ms(self._config.silent_after)),
            horizons_ms={tier: ledger.horizon_ms(tier) for tier in ledger.tiers},
            unaudited={tier: dict(topics) for tier, topics in ledger.unaudited.items()},
            producers=producers,
            consumers=len(ledger.clients) - producers,
        )
        self._details["verdict"] = word
        self._details["audit"] = by_topic.details(found, self._config.topics.topics or (), rules)
        return found

    def _write(self, *, draw: bool = True) -> None:
        if self._config.report is None:
            return
        try:
            pages.write(self.found, Path(self._config.report), draw=draw)
            self._drawn = self.found if draw else self._drawn
        except OSError as error:
            self._say(f"the report could not be written: {error}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
