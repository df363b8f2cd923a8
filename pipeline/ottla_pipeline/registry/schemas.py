"""Results of schema checks for decisions: a cache, and the jobs that are still to be performed.

A decision is pure and quick. If it needs the result of a check that is not cached, it raises PendingChecks
with the job; `store` performs the job in a worker process and runs the decision again. A result depends on
the job only, so the cache needs no invalidation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from ottla.client.registry import Reference
from ottla_pipeline.registry.checks import (
    LEVELS,
    Compare,
    EarlierVersion,
    Invalid,
    Job,
    Parse,
    Render,
    Result,
    Source,
    is_checked,
    text_size,
)
from ottla_pipeline.registry.errors import Refused, invalid_schema
from ottla_pipeline.registry.records import SchemaValue
from ottla_pipeline.registry.state import State

KEPT_MAX: Final = 1000
KEPT_CHARACTERS_MAX: Final = 64 << 20


class PendingChecks(Exception):
    """A decision needs the results of `jobs`."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        super().__init__(f"{len(jobs)} checks")
        self.jobs = tuple(jobs)


class Canonical(NamedTuple):
    """A parsed schema with its canonical text."""

    type: str
    text: str
    source: Source


class ResultCache:
    """The latest results, limited by number and size. Shared by all decisions of a registry."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Job, Result] = OrderedDict()
        self._characters = 0

    def get(self, job: Job) -> Result | None:
        if job in self._kept:
            self._kept.move_to_end(job)
        return self._kept.get(job)

    def keep(self, job: Job, result: Result) -> None:
        if job not in self._kept:
            self._characters += text_size(job)
        self._kept[job] = result
        while len(self._kept) > KEPT_MAX or self._characters > KEPT_CHARACTERS_MAX:
            oldest, _ = self._kept.popitem(last=False)
            self._characters -= text_size(oldest)


class DecisionChecks:
    """The checks of one decision: their results stay known until its end."""

    def __init__(self, memory: ResultCache) -> None:
        self._cache = memory
        self._known: dict[Job, Result] = {}

    def learn(self, job: Job, result: Result) -> None:
        self._known[job] = result
        self._cache.keep(job, result)

    def parse(
        self,
        state: State,
        kind: str,
        text: str,
        references: tuple[Reference, ...],
        *,
        context: str = "",
        normalize: bool = False,
    ) -> Canonical:
        """Raises Refused if the schema is invalid or a reference does not exist; PendingChecks."""
        source = self._source(state, kind, text, references, context)
        (result,) = self._results([Parse(source, normalize)])
        if isinstance(result, Invalid):
            raise invalid_schema(result.reason)
        assert isinstance(result, str)
        return Canonical(kind, result, source._replace(text=result))

    def canonical(self, state: State, entries: Sequence[SchemaValue]) -> list[str | None]:
        """The canonical texts of versions; None for an unreadable one. Raises PendingChecks."""
        jobs = [None if (source := self._of(state, each)) is None else Parse(source) for each in entries]
        results = iter(self._results([job for job in jobs if job is not None]))
        found = [None if job is None else next(results) for job in jobs]
        return [each if isinstance(each, str) else None for each in found]

    def problems(
        self, state: State, level: str, new: Canonical, earlier: Sequence[SchemaValue], *, lenient: bool
    ) -> list[str]:
        """The incompatibilities of `new` with `earlier` (ascending), as messages of a response. Raises
        PendingChecks."""
        if not earlier or not is_checked(level):
            return []
        held = earlier if LEVELS[level].all_versions else earlier[-1:]
        old = tuple(
            EarlierVersion(each.version, each.text, each.type, self._of(state, each)) for each in held
        )
        (result,) = self._results([Compare(level, new.source, old, lenient)])
        if isinstance(result, Invalid):
            return [f"{{errorType:'SCHEMA', description:'{result.reason}'}}"]
        return list(result)

    def rendered(self, state: State, entry: SchemaValue, form: str) -> str:
        """The text of a version in another form. Raises Refused, PendingChecks."""
        source = self._of(state, entry)
        if source is None:
            raise invalid_schema("one of its references does not exist")
        (result,) = self._results([Render(source, form)])
        if isinstance(result, Invalid):
            raise invalid_schema(result.reason)
        assert isinstance(result, str)
        return result

    def _of(self, state: State, entry: SchemaValue) -> Source | None:
        try:
            return self._source(state, entry.type, entry.text, entry.references, entry.context)
        except Refused:
            return None

    def _source(
        self, state: State, kind: str, text: str, references: tuple[Reference, ...], context: str
    ) -> Source:
        try:
            return Source(kind, text, tuple(state.texts(references, context)))
        except LookupError as error:
            missing = error.args[0]
            where = f"'{missing.name}', version {missing.version} of subject '{missing.subject}'"
            raise invalid_schema(f"its reference {where}, does not exist or is circular") from None

    def _results(self, jobs: Sequence[Job]) -> list[Result]:
        found = [self._known.get(job, self._cache.get(job)) for job in jobs]
        missing = [job for job, result in zip(jobs, found, strict=True) if result is None]
        if missing:
            raise PendingChecks(missing)
        return [each for each in found if each is not None]
