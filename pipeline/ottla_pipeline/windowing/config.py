"""The windows job's configuration: inputs, windows or a join, the treatment of late records, the results.

Used by `jobs.windows` and this package's other modules. Pure; SQL expressions are only checked for functions
whose result changes when a batch is repeated (Spark checks the rest when the job starts).

Rules that prevent unlimited state and late failures: every input has a watermark, every join a time range
with both ends, session windows have keys and final results.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ottla_pipeline.config.common import Interval, JobConfig, Model, RegistryConfig, TopicName, TopicsConfig
from ottla_pipeline.decoding.formats import Format, JsonFormat
from ottla_pipeline.streams.windows import WINDOW_END, WINDOW_START

EVENT_DATE: Final = "event_date"
LEFT: Final = "left"
RIGHT: Final = "right"
RESERVED: Final = frozenset((WINDOW_START, WINDOW_END, EVENT_DATE, LEFT, RIGHT, "window", "session_window"))
WINDOWS_OF_A_RECORD_MAX: Final = 1000

_NAME = r"^[a-zA-Z][a-zA-Z0-9_]{0,62}$"
_UNIT_US: Final = {
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
}
_BOUND = re.compile(r"^(-?(?:0|[1-9][0-9]*)) (millisecond|second|minute|hour|day)s?$")
_CHANGING = re.compile(
    r"\b(?:(?:rand|randn|random|randstr|uniform|uuid|now|shuffle|curdate|unix_timestamp|input_file_name"
    r"|monotonically_increasing_id|spark_partition_id)\s*\("
    r"|current_(?:timestamp|date|time|user)\b|localtimestamp\b)",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|`[^`]*`|\"(?:[^\"\\]|\\.)*\"")


def interval_us(text: str) -> int:
    """Microseconds of `10 seconds`, `-1 hour` or `0 seconds`."""
    match = _BOUND.match(text)
    assert match is not None, f"{text!r} was checked when it was read"
    return int(match[1]) * _UNIT_US[match[2]]


def check_bound(text: str) -> str:
    if not _BOUND.match(text):
        raise ValueError(f"must be a number (it may be negative) and a unit, like '-1 hour', not {text!r}")
    return text


def check_sql(text: str) -> str:
    found = _CHANGING.search(_QUOTED.sub("''", text))
    if found:
        raise ValueError(
            f"{found[0].rstrip('( ')} has another result each time; a batch that is repeated "
            "after a crash must have the same result"
        )
    return text


def _key_pairs(value: object) -> object:
    """`origin` is short for `{left: origin, right: origin}`."""
    if not isinstance(value, list):
        return value
    return [{"left": item, "right": item} if isinstance(item, str) else item for item in value]


Bound = Annotated[str, AfterValidator(check_bound)]
Sql = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(check_sql)]
Column = Annotated[str, Field(pattern=_NAME)]


class InputConfig(TopicsConfig):
    """The topics to read, the format of their records, and the field with the event's time.

    `derive` defines columns by SQL expressions over the fields; `where` filters records. `ahead` is the
    maximum time of an event after its own record's timestamp: one clock that runs ahead would advance the
    watermark and make all other records late.
    """

    format: Format
    """How records are decoded."""
    time: Column
    """The field with the event's time."""
    watermark: Interval
    """How long an event may be late."""
    derive: dict[Column, Sql] = Field(default_factory=dict)
    """Columns by SQL expressions."""
    where: Sql | None = None
    """An SQL condition that records must meet."""
    ahead: Interval = "1 hour"
    """How far an event's time may be after its record's."""

    @model_validator(mode="after")
    def _one_subject(self) -> InputConfig:
        if not isinstance(self.format, JsonFormat) and self.format.framing == "registry":
            one_topic = self.topics is not None and len(self.topics) == 1
            if "{topic}" in self.format.subject and not one_topic:
                raise ValueError(
                    "format.subject: name one subject: the records of all topics become one table"
                )
        return self

    @property
    def subject(self) -> str | None:
        """The subject of all records' schemas; None if no registry is used."""
        if isinstance(self.format, JsonFormat) or self.format.framing == "none":
            return None
        return self.format.subject_of(self.topics[0] if self.topics else "")


class Sliding(Model):
    """Windows of one size, each beginning `slide` after the previous one; a record is in each window that
    covers it."""

    size: Interval
    """The size of a window."""
    slide: Interval
    """The distance of the beginnings."""

    @model_validator(mode="after")
    def _covers(self) -> Sliding:
        size, slide = interval_us(self.size), interval_us(self.slide)
        if slide > size:
            raise ValueError(
                "slide must not be longer than size: records between two windows would be in none"
            )
        if -(-size // slide) > WINDOWS_OF_A_RECORD_MAX:
            raise ValueError(f"a record would be in more than {WINDOWS_OF_A_RECORD_MAX} windows")
        return self


class Session(Model):
    """A window for each series of records of one key, which ends when none has arrived for `gap` of event
    time."""

    gap: Interval
    """The time without records that ends a window."""


class WindowConfig(Model):
    """Exactly one of the three."""

    tumbling: Interval | None = None
    """The size of windows that follow each other."""
    sliding: Sliding | None = None
    """Windows that overlap."""
    session: Session | None = None
    """Windows by activity."""

    @model_validator(mode="after")
    def _one_of_three(self) -> WindowConfig:
        if sum(kind is not None for kind in (self.tumbling, self.sliding, self.session)) != 1:
            raise ValueError("give tumbling, sliding or session, one of the three")
        return self

    @property
    def size_us(self) -> int:
        """The length of a window; for a session, its length with one record."""
        if self.session is not None:
            return interval_us(self.session.gap)
        text = self.sliding.size if self.sliding is not None else self.tumbling
        assert text is not None
        return interval_us(text)

    @property
    def slide_us(self) -> int:
        """The distance between the starts of windows. Sessions begin anywhere: 1."""
        if self.session is not None:
            return 1
        return interval_us(self.sliding.slide) if self.sliding is not None else self.size_us


class Aggregate(Model):
    """One number for each window and key; `of` is an SQL expression over the input's fields."""

    function: Literal["count", "sum", "min", "max", "avg", "approxDistinct"]
    """How values are combined."""
    of: Sql | None = None
    """The value, for all functions but count."""

    @model_validator(mode="after")
    def _of_what(self) -> Aggregate:
        if self.of is None and self.function != "count":
            raise ValueError(f"{self.function} needs 'of', a field or an expression")
        return self


def _aggregate(value: object) -> object:
    """`count` is short for `{function: count}`, `{sum: delay}` for `{function: sum, of: delay}`."""
    if isinstance(value, str):
        return {"function": value}
    if isinstance(value, dict) and len(value) == 1 and "function" not in value:
        ((function, of),) = value.items()
        return {"function": function, "of": of}
    return value


class JoinKey(Model):
    """Two expressions whose values are equal in records that belong together."""

    left: Sql
    """Expression over the left record."""
    right: Sql
    """Expression over the right record."""


class Within(Model):
    """The permitted distance of the right record's time from the left's, inclusive: `from: -1 hour, to: 0
    seconds` selects the hour before."""

    from_: Annotated[Bound, Field(alias="from")]
    """The earliest time."""
    to: Bound
    """The latest time."""

    @model_validator(mode="after")
    def _in_order(self) -> Within:
        if interval_us(self.from_) > interval_us(self.to):
            raise ValueError("from must not be after to")
        return self


class JoinConfig(Model):
    """Two inputs and their join condition. `select` defines the result columns as SQL over `left.FIELD`
    and `right.FIELD`; without it, both records are returned whole."""

    left: InputConfig
    """The left input."""
    right: InputConfig
    """The right input."""
    keys: Annotated[list[JoinKey], Field(min_length=1), BeforeValidator(_key_pairs)]
    """What must be equal."""
    within: Within
    """How far the times may be apart."""
    kind: Literal["inner", "leftOuter", "rightOuter", "fullOuter"] = "inner"
    """Which records without a partner are kept."""
    select: dict[Column, Sql] = Field(default_factory=dict)
    """The columns of the result."""

    @model_validator(mode="after")
    def _own_names(self) -> JoinConfig:
        for name in self.select:
            if name.lower() == EVENT_DATE or [other.lower() for other in self.select].count(name.lower()) > 1:
                raise ValueError(f"select.{name}: results have a column of that name; give another")
        return self


class TopicResults(Model):
    """Results as records: JSON objects, or Avro in the registry's framing under subject `TOPIC-value`.
    Keys are JSON: the window and the keys."""

    topic: TopicName
    """The topic."""
    format: Literal["json", "avro"] = "json"
    """The format of values."""


class LakeResults(Model):
    """Results as a Delta table, or as Parquet files with a commit log; partitioned by the date on which
    the window (or the joined event) began."""

    path: Annotated[str, Field(min_length=1)]
    """The table's path."""
    type: Literal["delta", "parquet"] = "delta"
    """The kind of table."""


class ResultsConfig(Model):
    """A topic, a table, or both."""

    topic: TopicResults | None = None
    """A topic."""
    lake: LakeResults | None = None
    """A table."""

    @model_validator(mode="after")
    def _some(self) -> ResultsConfig:
        if self.topic is None and self.lake is None:
            raise ValueError("give topic or lake, or both")
        return self


Policy = Literal["drop", "deadLetter"]


class WindowsConfig(JobConfig):
    """Either `input`, `window`, `keys` and `aggregates`, or `join`."""

    JOB: ClassVar[str] = "windows"

    registry: RegistryConfig | None = None
    """The schema registry, for formats that need one."""
    input: InputConfig | None = None
    """The input of aggregates."""
    window: WindowConfig | None = None
    """The windows."""
    keys: list[Column] = Field(default_factory=list)
    """Expressions by which records are grouped."""
    aggregates: dict[Column, Annotated[Aggregate, BeforeValidator(_aggregate)]] = Field(default_factory=dict)
    """The results by name."""
    join: JoinConfig | None = None
    """A join of two inputs."""
    output_mode: Literal["final", "updates"] = "final"
    """`final`: each window once, after its watermark; `updates`: at each change."""
    late: Policy
    """What happens to records after the end of their windows."""
    invalid: Policy = "deadLetter"
    """What happens to records that are not events."""
    dead_letters: TopicName | None = None
    """The topic of dead letters."""
    results: ResultsConfig
    """Where results are written."""

    @model_validator(mode="after")
    def _windows_or_join(self) -> WindowsConfig:
        window: tuple[Any, ...] = (self.input, self.window, self.keys or None, self.aggregates or None)
        if self.join is not None:
            if any(part is not None for part in window):
                raise ValueError("give join, or input with window, keys and aggregates; not both")
            if self.output_mode != "final":
                raise ValueError("outputMode: a join's results are final")
            return self
        if self.input is None or self.window is None or not self.aggregates:
            raise ValueError("give input, window and aggregates, or join")
        self._check_windows(self.window)
        return self

    def _check_windows(self, window: WindowConfig) -> None:
        if window.session is not None and not self.keys:
            raise ValueError("keys: a session window needs at least one key")
        if window.session is not None and self.output_mode != "final":
            raise ValueError(
                "outputMode: a session's results are final: until its end, sessions may become one"
            )
        names = [*self.keys, *self.aggregates]
        for name in names:
            if name in RESERVED:
                raise ValueError(f"{name}: results have a column of that name; give another")
            if [other.lower() for other in names].count(name.lower()) > 1:
                raise ValueError(f"{name}: is among keys and aggregates more than once")

    @model_validator(mode="after")
    def _files_are_final(self) -> WindowsConfig:
        lake = self.results.lake
        if lake is not None and lake.type == "parquet" and self.output_mode != "final":
            raise ValueError(
                "results.lake: what is in Parquet files is not replaced: outputMode must be final"
            )
        return self

    @model_validator(mode="after")
    def _somewhere_to_go(self) -> WindowsConfig:
        for option, policy in (("late", self.late), ("invalid", self.invalid)):
            if policy == "deadLetter" and self.dead_letters is None:
                raise ValueError(
                    f"{option}: deadLetter needs deadLetters, the topic they go to; or say {option}: drop"
                )
        return self

    @model_validator(mode="after")
    def _a_registry(self) -> WindowsConfig:
        out = self.results.topic is not None and self.results.topic.format == "avro"
        if self.registry is None and (out or any(one.subject is not None for one in self.inputs.values())):
            raise ValueError("registry: is needed for records in the registry's framing")
        return self

    @model_validator(mode="after")
    def _no_circle(self) -> WindowsConfig:
        out = {self.dead_letters, self.results.topic.topic if self.results.topic else None} - {None}
        for source in self.inputs.values():
            read = [name for name in out if name is not None and _reads(source, name)]
            if read:
                raise ValueError(f"{read[0]} is read and written: results would be counted again")
        return self

    @property
    def inputs(self) -> dict[str, InputConfig]:
        """By the name under which a batch's records are counted; in the order in which Spark reads them."""
        if self.join is not None:
            return {LEFT: self.join.left, RIGHT: self.join.right}
        assert self.input is not None
        return {"input": self.input}


def _reads(source: TopicsConfig, topic: str) -> bool:
    if source.topics is not None:
        return topic in source.topics
    assert source.topic_pattern is not None
    return re.fullmatch(source.topic_pattern, topic) is not None
