"""The windows job's configuration and pure parts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from ottla_pipeline.checkpoints import (
    OffsetLogEntry,
    OffsetRange,
    offset_ranges,
    parse_entry,
    parse_initial,
)
from ottla_pipeline.config.common import ConfigError, load, validate
from ottla_pipeline.windowing.config import WindowConfig, WindowsConfig, interval_us
from ottla_pipeline.windowing.late import can_be_late, earliest_end_us
from ottla_pipeline.windowing.plan import names
from ottla_pipeline.windowing.results import instant
from tests.windows_model import windows_of


def source(**given: Any) -> dict[str, Any]:
    form = {"type": "json", "fields": "id STRING, time TIMESTAMP"}
    return {"topics": ["flights"], "format": form, "time": "time", "watermark": "10 minutes", **given}


def job(**given: Any) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "name": "hourly",
        "kafka": {"bootstrap": "127.0.0.1:9092"},
        "checkpoint": "/checkpoint",
        "input": source(),
        "window": {"tumbling": "1 hour"},
        "keys": ["carrier"],
        "aggregates": {"departures": "count", "delay": {"avg": "dep_delay"}},
        "late": "deadLetter",
        "deadLetters": "late",
        "results": {"topic": {"topic": "counts"}},
    }
    return {key: value for key, value in (raw | given).items() if value is not None}


def joining(**given: Any) -> dict[str, Any]:
    join = {
        "left": source(),
        "right": source(topics=["weather"]),
        "keys": ["origin", {"left": "hour", "right": "date_trunc('HOUR', time)"}],
        "within": {"from": "-1 hour", "to": "0 seconds"},
        **given,
    }
    return job(input=None, window=None, keys=None, aggregates=None, join=join)


def read(raw: dict[str, Any]) -> WindowsConfig:
    return validate(raw, WindowsConfig, "windows.yaml")


def test_a_declaration_is_read() -> None:
    config = read(job())
    assert config.window is not None
    assert config.window.size_us == config.window.slide_us == 3_600_000_000
    assert config.aggregates["departures"].function == "count"
    assert (config.aggregates["delay"].function, config.aggregates["delay"].of) == ("avg", "dep_delay")
    assert config.consumer_group == "ottla-windows-hourly"
    assert list(config.inputs) == ["input"]


def test_a_join_is_read() -> None:
    config = read(joining())
    assert list(config.inputs) == ["left", "right"]
    assert config.join is not None
    assert names(config.join) == ["origin", "hour"]


AVRO = {"type": "avro"}
WRONG: list[tuple[dict[str, Any], str]] = [
    (job(input=source(watermark=None)), "windows.yaml: input.watermark: must be text"),
    (job(late=None), "windows.yaml: late: is missing"),
    (job(deadLetters=None), "late: deadLetter needs deadLetters"),
    (job(late="drop", deadLetters=None), "invalid: deadLetter needs deadLetters"),
    (job(window={}), "windows.yaml: window: give tumbling, sliding or session"),
    (job(window={"tumbling": "1 month"}), "windows.yaml: window.tumbling: must be a number and a unit"),
    (job(window={"sliding": {"size": "1 minute", "slide": "1 hour"}}), "slide must not be longer than size"),
    (job(window={"sliding": {"size": "1 day", "slide": "1 second"}}), "more than 1000 windows"),
    (job(window={"session": {"gap": "1 hour"}}, keys=None), "keys: a session window needs at least one key"),
    (job(window={"session": {"gap": "1 hour"}}, outputMode="updates"), "a session's results are final"),
    (job(aggregates=None), "give input, window and aggregates, or join"),
    (job(join=joining()["join"]), "not both"),
    (joining() | {"outputMode": "updates"}, "a join's results are final"),
    (joining(within={"from": "-1 hour"}), "windows.yaml: join.within.to: is missing"),
    (joining(within={"from": "1 hour", "to": "0 seconds"}), "from must not be after to"),
    (joining(right={"topics": ["weather"]}), "windows.yaml: join.right.watermark: is missing"),
    (job(keys=["window_start"]), "window_start: results have a column of that name"),
    (job(keys=["Delay"]), "Delay: is among keys and aggregates more than once"),
    (job(aggregates={"n": {"median": "x"}}), "windows.yaml: aggregates.n.function: "),
    (job(aggregates={"n": "sum"}), "sum needs 'of'"),
    (
        job(input=source(where="time > now()")),
        "windows.yaml: input.where: now has another result each time",
    ),
    (job(input=source(derive={"r": "rand() * 2"})), "rand has another result"),
    (job(input=source(where="time > current_timestamp")), "current_timestamp has another result"),
    (job(results={}), "windows.yaml: results: give topic or lake, or both"),
    (job(results={"topic": {"topic": "flights"}}), "flights is read and written"),
    (job(input=source(topics=None, topicPattern="fl.*|la.*")), "late is read and written"),
    (job(input=source(format=AVRO)), "registry: is needed"),
    (job(input=source(format=AVRO, topics=["a", "b"])), "format.subject: name one subject"),
]


@pytest.mark.parametrize(("raw", "what"), WRONG, ids=[what for _, what in WRONG])
def test_an_impossible_declaration_is_refused(raw: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(raw)
    assert what in str(refused.value)


@pytest.mark.parametrize(
    "text", ["known > 3", "`now()` = 1", "city = 'rand()'", "random_walk + 1", "snow(x)"]
)
def test_a_name_that_only_looks_as_if_it_changed_is_taken(text: str) -> None:
    assert read(job(input=source(where=text))).input


@pytest.mark.parametrize(
    ("text", "micros"),
    [("1 second", 10**6), ("-90 minutes", -5_400 * 10**6), ("0 days", 0), ("250 milliseconds", 250_000)],
)
def test_intervals_are_microseconds(text: str, micros: int) -> None:
    assert interval_us(text) == micros


@pytest.mark.parametrize(("size", "slide"), [(5, 5), (10, 4), (7, 3), (9, 1)])
def test_the_earliest_end_is_that_of_the_first_window_that_holds_the_time(size: int, slide: int) -> None:
    window = WindowConfig.model_validate(
        {"sliding": {"size": f"{size} seconds", "slide": f"{slide} seconds"}}
    )
    chance = random.Random(1)
    times = [
        0,
        -1,
        1,
        size * 10**6,
        slide * 10**6 - 1,
        *(chance.randrange(-(10**9), 10**9) for _ in range(200)),
    ]
    for time in times:
        (_, end), *_ = windows_of(time, size * 10**6, slide * 10**6)
        assert earliest_end_us(time, window) == end
        assert can_be_late(time, end, window)
        assert not can_be_late(time, end - 1, window)


def test_a_session_ends_a_gap_after_its_record_and_a_join_has_no_windows() -> None:
    session = WindowConfig.model_validate({"session": {"gap": "3 seconds"}})
    assert earliest_end_us(7, session) == 3_000_007
    assert can_be_late(7, 7, None)
    assert not can_be_late(8, 7, None)
    assert not can_be_late(None, 7, None)


ENTRY = """v1
{"batchWatermarkMs":1356998455000,"batchTimestampMs":1795379085735,"conf":{"spark.sql.shuffle.partitions":"2"}}
{"t":{"0":4,"1":0},"u":{"0":9}}
-"""


def test_an_entry_of_the_ledger_says_the_watermark_and_where_each_source_ends() -> None:
    ends = {("t", 0): 4, ("t", 1): 0, ("u", 0): 9}
    assert parse_entry(ENTRY) == OffsetLogEntry(1_356_998_455_000_000, (ends, None))
    assert parse_initial('\0v1\n{"t":{"0":2}}') == {("t", 0): 2}
    with pytest.raises(ValueError, match="version 'v2'"):
        parse_entry(ENTRY.replace("v1", "v2"))
    assert offset_ranges({("t", 0): 2, ("t", 1): 0}, ends) == (
        OffsetRange("t", 0, 2, 4),
        OffsetRange("u", 0, 0, 9),
    )


def test_instants_are_in_utc_and_as_fine_as_they_must_be() -> None:
    assert instant(1_356_998_455_000_000) == "2013-01-01T00:00:55.000Z"
    assert instant(1_356_998_455_000_001) == "2013-01-01T00:00:55.000001Z"
    assert instant(-1_000) == "1969-12-31T23:59:59.999Z"


@pytest.mark.parametrize("name", ["windows-departures", "windows-weather"])
def test_the_samples_are_good(name: str) -> None:
    assert load(Path(__file__).parents[2] / "docs" / "samples" / f"{name}.yaml", WindowsConfig).late
