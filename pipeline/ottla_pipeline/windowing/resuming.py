"""A query that goes on by itself when new schemas were registered: stopped, planned anew, started again.

Called by `jobs.windows`; what runs the job sees one query. A streaming plan is made once, with the schemas
that are known then, and a batch with records of newer ones cannot be decoded by it. It ends the query before
anything of it is written; the query of the same checkpoint with a new plan runs that batch again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from ottla_pipeline.windowing.batch import Batches

Start = Callable[[Mapping[str, set[int]]], tuple[StreamingQuery, Batches]]


class ResumingQuery:
    """As a StreamingQuery, as far as the jobs' harness uses one. `begin` is given the ids to know besides;
    `end` is called once the query is at its end for good."""

    def __init__(self, begin: Start, end: Callable[[], None]) -> None:
        self._begin = begin
        self._end = end
        self._also: dict[str, set[int]] = {}
        self._query, self._batches = begin(self._also)

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 (Spark's name)
        try:
            ended = self._query.awaitTermination(timeout)
            if ended is not False:
                self._end()
            return ended
        except StreamingQueryException:
            changed = self._batches.changed
            self._end()
            if changed is None:
                raise
            for name, ids in changed.ids.items():
                assert not ids <= self._also.get(name, set()), "a plan was made with these ids before"
                self._also[name] = self._also.get(name, set()) | ids
            self._query, self._batches = self._begin(self._also)
            return False

    def stop(self) -> None:
        self._query.stop()
        self._end()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)
