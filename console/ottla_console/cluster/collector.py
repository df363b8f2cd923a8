"""The background task that collects what the pages of a cluster share.

One for each cluster and principal with an open session. Invariants: a collection is followed by a pause of
`REST` times its duration, up to `PAUSE_S_MAX`, so that collecting takes a tenth of the time of brokers and
console however large the cluster is; a page never waits for more than the parts that it asks for, and no
longer than it says. A part that failed keeps the value of the collection before, with the new problems.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar

from ottla.client.admin_types import TopicPartition
from ottla_console.cluster.collecting import Reader, end
from ottla_console.cluster.problems import Kind
from ottla_console.cluster.rates import Counts, point_between
from ottla_console.cluster.snapshot import Part, Snapshot

log = logging.getLogger(__name__)
T = TypeVar("T")

REST: Final = 9.0
PERIOD_S: Final = 5.0
PERIOD_UNWATCHED_S: Final = 30.0
PAUSE_S_MAX: Final = 60.0
WATCHED_S: Final = 60.0
"""A collector whose snapshot no page has read for so long collects less often."""


class Collector:
    """See the module. Use: `start`, read `snapshot`, `stop`."""

    def __init__(
        self, reader: Reader, monotonic_s: Callable[[], float], *, period_s: float = PERIOD_S, name: str = ""
    ) -> None:
        self._reader = reader
        self._now_s = monotonic_s
        self._period_s = period_s
        self._name = name
        self._snapshot = Snapshot()
        self._counts: Counts | None = None
        self._changed = asyncio.Event()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._read_s = monotonic_s()
        self.duration_s = 0.0
        """Of the last collection."""

    def start(self) -> None:
        assert self._task is None, "a collector is started once"
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"collector {self._name}")

    async def stop(self) -> None:
        await end(self._task)
        self._task = None

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot; reading it keeps the collector busy."""
        if self._now_s() - self._read_s > WATCHED_S:
            self._wake.set()
        self._read_s = self._now_s()
        return self._snapshot

    async def wait_for(self, parts: Collection[str], timeout_s: float) -> Snapshot:
        """The snapshot once these parts have been collected, or after the time-out as it is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not all(getattr(self._snapshot, part).collected for part in parts):
                    self._changed.clear()
                    await self._changed.wait()
        return self.snapshot

    def refresh(self) -> None:
        """Collect soon: something was changed."""
        self._wake.set()

    async def _run(self) -> None:
        while True:
            began = self._now_s()
            try:
                await self._collect()
            except Exception:
                log.exception("collecting %s failed", self._name)
            self.duration_s = self._now_s() - began
            watched = self._now_s() - self._read_s <= WATCHED_S
            away = any(problem.kind is Kind.UNREACHABLE for problem in self._snapshot.problems)
            period_s = self._period_s if watched else PERIOD_UNWATCHED_S
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s(self.duration_s, period_s, away=away)):
                    await self._wake.wait()
            self._wake.clear()

    async def _collect(self) -> None:
        reader, before = self._reader, self._snapshot
        cluster, topics = await asyncio.gather(reader.cluster(), reader.topics())
        self._publish(cluster=_kept(cluster, before.cluster), topics=_kept(topics, before.topics))
        self._snapshot = self._snapshot.after(before)
        log_dirs, groups = await asyncio.gather(reader.log_dirs(), reader.groups())
        self._publish(log_dirs=_kept(log_dirs, before.log_dirs), groups=_kept(groups, before.groups))
        current = self._snapshot
        ends, committed = await asyncio.gather(
            reader.end_offsets(current.known_topics), reader.committed(current.known_groups)
        )
        self._publish(
            end_offsets=_kept(ends, before.end_offsets), committed=_kept(committed, before.committed)
        )
        self._count(log_dirs.value is not None, ends.value is not None, committed.value is not None)

    def _publish(self, **parts: Any) -> None:
        self._snapshot = replace(self._snapshot, **parts)
        self._changed.set()

    def _count(self, sizes: bool, ends: bool, committed: bool) -> None:
        """Add the rates since the collection before to the history; without what was not collected."""
        snapshot = self._snapshot
        counts = counts_of(snapshot, self._now_s(), sizes=sizes, ends=ends, committed=committed)
        if self._counts is not None:
            history = snapshot.history.with_point(point_between(self._counts, counts))
            self._publish(history=history)
        self._counts = counts


def pause_s(duration_s: float, period_s: float, *, away: bool) -> float:
    """The pause after a collection. `away`: a broker has not responded, so that most of the duration was
    waiting and no load, and the next change is expected soon."""
    return period_s if away else min(max(period_s, REST * duration_s), PAUSE_S_MAX)


def _kept(new: Part[T], old: Part[T]) -> Part[T]:
    """A part without a value keeps the old one; its time tells how old it is."""
    if new.value is not None or old.value is None:
        return new
    return Part(old.value, new.problems, old.taken_ms)


def counts_of(snapshot: Snapshot, at_s: float, *, sizes: bool, ends: bool, committed: bool) -> Counts:
    """The counters of a snapshot, of the parts that are new."""
    leaders = {
        TopicPartition(topic.name, each.partition): each.leader
        for topic in snapshot.known_topics.values()
        for each in topic.partitions
    }
    replicas = {
        (broker, tp): replica.size
        for broker, dirs in (snapshot.log_dirs.value or {}).items()
        for each in dirs
        for tp, replica in each.replicas.items()
        if not replica.is_future
    }
    return Counts(
        at_s,
        snapshot.end_offsets.value if ends else None,
        {tp: size for (broker, tp), size in replicas.items() if leaders.get(tp) == broker} if sizes else None,
        replicas if sizes else None,
        {
            (group, tp): offset
            for group, offsets in (snapshot.committed.value or {}).items()
            for tp, offset in offsets.items()
        }
        if committed
        else None,
        {group: lag.records for group, lag in snapshot.group_lags.items()} if committed and ends else None,
        leaders,
    )
