"""What the mirror decides before it talks to anybody: topics, groups, positions, configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla_pipeline.config.common import ConfigError, validate
from ottla_pipeline.mirroring.config import MirrorConfig
from ottla_pipeline.mirroring.groups import GroupFilter, offsets_to_commit, translated
from ottla_pipeline.mirroring.target import Limits, MirroredTopic, ReplicationPolicy
from ottla_pipeline.mirroring.tasks import Writers, split_transactions
from ottla_pipeline.mirroring.topics import Topic, plan
from ottla_pipeline.mirroring.translation import (
    Lineage,
    OffsetSync,
    OffsetSyncKey,
    OffsetSyncStore,
    Run,
    slot_of,
)
from ottla_pipeline.mirroring.writer import Position, PositionRefused, resume_position

NAMING = ReplicationPolicy("east", "west")
LINEAGE = Lineage("c/s", "c/t")
CREATE_TIME = {"message.timestamp.type": "CreateTime"}


def test_a_topic_is_made_with_the_sources_partitions_and_settings_but_not_its_clusters() -> None:
    source = {
        "orders": Topic(
            "s",
            3,
            {"retention.ms": "5", "min.insync.replicas": "2", "message.timestamp.type": "LogAppendTime"},
        )
    }
    made = plan(source, {}, NAMING)
    assert made.create == {"east.orders": Topic("", 3, {"retention.ms": "5", **CREATE_TIME})}
    assert (made.grow, made.configure) == ({}, {})


def test_a_topic_that_is_as_it_should_be_is_left_alone() -> None:
    source = {"orders": Topic("s", 3, {"retention.ms": "5"})}
    there = {"east.orders": Topic("t", 4, {"retention.ms": "5", "min.insync.replicas": "2", **CREATE_TIME})}
    assert plan(source, there, NAMING).empty


def test_partitions_are_added_and_settings_follow() -> None:
    source = {"orders": Topic("s", 3, {"retention.ms": "6"})}
    there = {"east.orders": Topic("t", 2, {"retention.ms": "5", "segment.ms": "9", "segment.bytes": "8"})}
    made = plan(source, there, NAMING, not_copied=["segment.bytes"])
    assert made.grow == {"east.orders": 3}
    assert made.configure == {"east.orders": {"retention.ms": "6", "segment.ms": None, **CREATE_TIME}}
    assert not plan(source, there, NAMING, sync_configs=False).configure


def a_table() -> OffsetSyncStore:
    table = OffsetSyncStore()
    table.add(OffsetSyncKey("orders", 0, slot_of(0)), OffsetSync(LINEAGE, 0, 110, (Run(100, 50, 10),)))
    return table


FACTS = {"orders": MirroredTopic("orders", "east.orders", LINEAGE, 1_000_000)}


def test_a_groups_offsets_are_translated_where_its_topics_are_mirrored() -> None:
    source = {("orders", 0): 105, ("orders", 1): 3, ("other", 0): 7}
    assert translated(source, a_table(), FACTS) == {("east.orders", 0): 55}


def test_nothing_is_translated_for_a_topic_that_was_made_anew() -> None:
    anew = {"orders": MirroredTopic("orders", "east.orders", Lineage("c/s", "c/other"), 1_000_000)}
    assert translated({("orders", 0): 105}, a_table(), anew) == {}


def test_a_group_is_moved_forward_only_and_not_before_the_first_record() -> None:
    wanted = {("t", 0): 5, ("t", 1): 5, ("t", 2): 5, ("t", 3): 5}
    present = {("t", 0): 9, ("t", 1): 4, ("t", 2): 5}
    assert offsets_to_commit(wanted, present, {("t", 3): 7}) == {("t", 1): 5, ("t", 3): 7}


def test_groups_are_carried_over_by_pattern() -> None:
    wanted = GroupFilter("app-.*|lone", ("app-x",))
    assert [g for g in ("app-a", "app-x", "lone", "alone", "ottla-mirror-a") if wanted.accepts(g)] == [
        "app-a",
        "lone",
    ]


def test_a_position_survives_its_commit() -> None:
    position = Position(LINEAGE, 7, 3)
    assert Position.parse(7, position.metadata()) == position


@pytest.mark.parametrize("metadata", [None, "", "{}", "[]", "x", '{"source":"a","target":"b","number":"x"}'])
def test_a_commit_of_another_application_is_no_position(metadata: str | None) -> None:
    with pytest.raises(PositionRefused, match="not written by a mirror"):
        Position.parse(7, metadata)


def test_a_mirror_resumes_only_at_positions_of_its_own_topics() -> None:
    found = Position(LINEAGE, 7, 3)
    assert resume_position(None, LINEAGE, "t-0") == Position(LINEAGE)
    assert resume_position(found, LINEAGE, "t-0") == found
    assert resume_position(found, Lineage("c/s", "c/new"), "t-0") == Position(Lineage("c/s", "c/new"))
    with pytest.raises(PositionRefused, match="t-0 is mirrored up to offset 7"):
        resume_position(found, Lineage("c/new", "c/t"), "t-0")


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 40), max_size=30), max_size=10),
    st.integers(1, 20),
    st.integers(1, 200),
)
def test_transactions_hold_all_records_in_order_within_their_limits(
    sizes: list[list[int]], records_max: int, bytes_max: int
) -> None:
    pa = pytest.importorskip("pyarrow")
    values = [[b"x" * size for size in batch] for batch in sizes]
    batches = [pa.RecordBatch.from_pydict({"value": pa.array(batch, pa.binary())}) for batch in values]
    made = list(split_transactions(batches, Limits(records_max, bytes_max)))
    seen = [value for chunk in made for batch in chunk for value in batch.column("value").to_pylist()]
    assert seen == [value for batch in values for value in batch]
    for chunk in made:
        records = sum(batch.num_rows for batch in chunk)
        assert 0 < records <= records_max
        assert records == 1 or sum(batch.nbytes for batch in chunk) <= bytes_max


def test_a_worker_keeps_the_writer_of_a_partition_that_nobody_else_has_written_since() -> None:
    target = validate(raw(), MirrorConfig, "m.yaml").target_of()
    writers = Writers()
    first = writers.get(target, FACTS["orders"], 0, None)
    assert writers.get(target, FACTS["orders"], 0, writers.worker) is first
    assert writers.get(target, FACTS["orders"], 0, "another") is not first


def raw(**more: Any) -> dict[str, Any]:
    return {
        "name": "dr",
        "source": {"alias": "east", "bootstrap": "east:9092"},
        "target": {"alias": "west", "bootstrap": "west:9092"},
        "topics": ["orders"],
        "checkpoint": "/c",
        **more,
    }


def test_a_configuration_says_all_that_tasks_and_spark_need() -> None:
    config = validate(raw(transaction={"timeout": "30 seconds"}), MirrorConfig, "m.yaml")
    target = config.target_of()
    assert (target.mirror, target.syncs) == ("ottla-mirror-dr.east", "ottla-mirror-dr.east.syncs.internal")
    assert target.limits.timeout_ms == 30_000
    assert dict(target.settings)["bootstrap.servers"] == "west:9092"
    options = config.spark_source()
    assert options["kafka.bootstrap.servers"] == "east:9092"
    assert (options["kafka.isolation.level"], options["failOnDataLoss"]) == ("read_committed", "true")
    assert "minPartitions" not in options


def test_executors_are_sent_certificates_and_not_the_names_of_the_drivers_files(tmp_path: Path) -> None:
    names = ("ca", "certificate", "key")
    for name in names:
        (tmp_path / name).write_text(f"-----{name}-----")
    tls = {name: str(tmp_path / name) for name in names}
    config = validate(raw(target={"alias": "west", "bootstrap": "w:1", "tls": tls}), MirrorConfig, "m.yaml")
    settings = dict(config.target_of().settings)
    assert {settings[f"ssl.{name}.pem"] for name in names} == {f"-----{name}-----" for name in names}
    assert str(tmp_path) not in repr(config.target_of())


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"target": {"alias": "east", "bootstrap": "w:1"}}, "m.yaml: source and target have the same alias"),
        ({"target": {"alias": "we.st", "bootstrap": "w:1"}}, "m.yaml: target.alias: "),
        ({"topics": ["west.orders"]}, "came from west: mirroring it back would create a loop"),
        ({"naming": {"policy": "identity"}, "groups": {}}, "groups cannot be carried over"),
        ({"naming": {"policy": "rename"}}, "m.yaml: naming.policy: "),
        ({"topicPattern": ".*"}, "give topics or topicPattern"),
        ({"transaction": {"maxRecords": 0}}, "m.yaml: transaction.maxRecords: "),
        ({"kafka": {"bootstrap": "w:1"}}, "m.yaml: kafka: unknown key"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_with_its_path(more: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validate(raw(**more), MirrorConfig, "m.yaml")
    assert told in str(refused.value)
