"""The lake's configuration, its choice of files to compact, evolution of types, ranges of a backfill."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import StructType

from ottla_pipeline.checkpoints import OffsetRange, parse_entry
from ottla_pipeline.config.common import ConfigError, validate
from ottla_pipeline.lake.compaction import PARTITION_BYTES_MAX, choose_files
from ottla_pipeline.lake.config import Compaction, LakeConfig
from ottla_pipeline.lake.reprocessing import backfill_ranges
from ottla_pipeline.lake.rows import type_at
from ottla_pipeline.lake.schema_evolution import merge_structs

RAW: dict[str, Any] = {
    "name": "flights",
    "kafka": {"bootstrap": "127.0.0.1:9092"},
    "source": {"topics": ["a"]},
    "format": {"type": "json", "fields": "id STRING"},
    "sink": {"type": "parquet", "path": "/data/lake/"},
    "checkpoint": "/data/checkpoint",
}


def config(**changes: Any) -> LakeConfig:
    return validate(RAW | changes, LakeConfig, "lake.yaml")


def test_dead_letters_have_a_folder_beside_the_lake_if_none_is_given() -> None:
    assert config().sink.dead_letters_path == "/data/lake-dead-letters"
    given = config(sink={"type": "delta", "path": "/l", "deadLetters": "/d", "tables": "one"})
    assert given.sink.dead_letters_path == "/d"


def test_rate_limits_reach_the_source() -> None:
    found = config(maxOffsetsPerTrigger=9, minOffsetsPerTrigger=3, maxTriggerDelay="1 minute").read_options()
    told = {name: found[name] for name in found if name.startswith(("max", "min"))}
    assert told == {"maxOffsetsPerTrigger": "9", "minOffsetsPerTrigger": "3", "maxTriggerDelay": "1 minute"}
    assert found["failOnDataLoss"] == "true"
    assert found["includeHeaders"] == "true"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"format": {"type": "avro"}}, "needs a registry"),
        ({"maxTriggerDelay": "1 minute"}, "give both"),
        ({"sink": {"type": "parquet", "path": "/l", "tables": "one"}}, "sink.parquet.tables: unknown key"),
        ({"sink": {"type": "iceberg", "path": "/l"}}, "iceberg"),
        ({"event": {"id": "a-b"}}, "event.id"),
        ({"compaction": {"minFiles": 1}}, "compaction.minFiles"),
        ({"format": {"type": "avro", "framing": "none"}}, "needs schemaFile"),
    ],
)
def test_a_wrong_configuration_is_told_with_its_path(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        config(**changes)


def test_small_files_are_chosen_where_there_are_enough() -> None:
    small, big = 1 << 20, 65 << 20
    sizes = {f"l/d=1/{n}": small for n in range(4)} | {"l/d=1/big": big}
    sizes |= {f"l/d=2/{n}": small for n in range(3)} | {"l/d=2/big": big}
    assert choose_files(sizes, Compaction()) == [f"l/d=1/{n}" for n in range(4)]
    assert len(choose_files(sizes, Compaction(min_files=3))) == 7
    assert len(choose_files(sizes, Compaction(min_files=3, smaller_than_mb=66))) == 9
    assert choose_files({}, Compaction()) == []


def test_no_file_is_made_too_large_and_no_commit_rewrites_too_much() -> None:
    almost = (64 << 20) - 1
    chosen = choose_files({f"l/d=1/{n:03}": almost for n in range(100)}, Compaction())
    assert len(chosen) == PARTITION_BYTES_MAX // almost
    sizes = {f"l/d={d}/{n:03}": almost for d in range(20) for n in range(16)}
    assert len({path.rpartition("/")[0] for path in choose_files(sizes, Compaction())}) == 8


def test_a_table_keeps_its_types_and_takes_what_is_new() -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.types import IntegerType, LongType, StringType

    table = StructType().add("n", IntegerType()).add("who", StructType().add("name", StringType()))
    event = (
        StructType()
        .add("N", LongType())
        .add("who", StructType().add("age", IntegerType(), nullable=False).add("name", StringType()))
        .add("more", StringType(), nullable=False)
    )
    found = merge_structs(table, event)
    assert found.simpleString() == "struct<n:int,who:struct<name:string,age:int>,more:string>"
    assert found["more"].nullable
    assert merge_structs(found, table) == found
    assert isinstance(type_at(found, "who.age"), IntegerType)
    assert type_at(found, "who.none") is None
    assert type_at(found, "n.age") is None


def test_a_backfill_ends_where_the_job_is() -> None:
    text = 'v1\n{"batchWatermarkMs":0}\n{"a":{"0":5,"1":7}}'
    (limits,) = parse_entry(text).ends
    assert limits == {("a", 0): 5, ("a", 1): 7}
    wanted = {("a", 0): 9, ("a", 1): 3, ("a", 2): 4, ("b", 0): 1}
    whole = backfill_ranges({}, wanted, limits)
    assert whole == (OffsetRange("a", 0, 0, 5), OffsetRange("a", 1, 0, 3))
    starts = {("a", 0): 2, ("a", 1): 3, ("a", 2): 0, ("b", 0): 0}
    assert backfill_ranges(starts, wanted, limits) == (OffsetRange("a", 0, 2, 5),)
