"""Runs a user's Python function that reads, joins and writes streams.

    ottla-pipeline python --config FILE

The configuration names the function or contains it; `ottla_pipeline.streams` is its library. See
docs/guides/pipeline/streams.md.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field, model_validator
from pyspark import cloudpickle
from pyspark.sql.streaming.query import StreamingQuery

from ottla_pipeline.config.common import JobConfig, RegistryConfig
from ottla_pipeline.errors import JobStartError
from ottla_pipeline.running import JobContext
from ottla_pipeline.streams import writing
from ottla_pipeline.streams.job import Job

_MODULE: Final = "ottla_user_job"


class PythonConfig(JobConfig):
    """`function` is MODULE:NAME (an importable module), FILE.py:NAME, or NAME if `source` is the text of a
    module. `options` are passed to the function."""

    JOB: ClassVar[str] = "python"

    function: Annotated[str, Field(pattern=r"^((.+\.py|[A-Za-z_][\w.]*):)?[A-Za-z_]\w*$")]
    """The function that makes the queries."""
    source: str | None = None
    """The text of its module."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed to the function."""
    registry: RegistryConfig | None = None
    """The schema registry, if it needs one."""

    @model_validator(mode="after")
    def _one_source(self) -> PythonConfig:
        if (":" in self.function) == (self.source is not None):
            raise ValueError("function: must be MODULE:NAME or FILE.py:NAME, or the NAME of one in source")
        return self


CONFIG = PythonConfig
SESSION = writing.SESSION


def start(context: JobContext, config: PythonConfig) -> Sequence[StreamingQuery]:
    """Calls the function, which starts queries. Raises JobStartError if it does not exist or starts no
    query."""
    function = function_of(config.function, config.source)
    try:
        registry = None if config.registry is None else config.registry.client()
    except ValueError as error:
        raise JobStartError(f"registry: {error}") from error
    job = Job(context.spark, config, options=config.options, registry=registry)
    context.at_end.enter_context(closing(job))
    try:
        function(job)
    except BaseException:
        for query in job.queries:
            query.stop()
        raise
    if not job.queries:
        raise JobStartError(f"function: {config.function} started no query: it must call job.write")
    return job.queries


def function_of(name: str, source: str | None) -> Callable[[Job], None]:
    """The function of a configuration. Raises JobStartError if it does not exist or its module cannot be
    loaded."""
    where, _, wanted = name.rpartition(":")
    try:
        if source is not None:
            module = _executed(source, "source")
        elif where.endswith(".py"):
            module = _executed(Path(where).read_text(), where)
        else:
            module = importlib.import_module(where)
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise JobStartError(f"function: {where or 'source'} cannot be loaded: {cause}") from error
    found = getattr(module, wanted, None)
    if not callable(found):
        raise JobStartError(f"function: {where or 'source'} has no function {wanted}")
    return found  # type: ignore[no-any-return]


def _executed(text: str, where: str) -> ModuleType:
    """A module of this text. Its functions are pickled by value, because executors cannot import it."""
    module = ModuleType(_MODULE)
    sys.modules[_MODULE] = module  # dataclasses and pickle look for it there
    exec(compile(text, where, "exec"), module.__dict__)
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return module
