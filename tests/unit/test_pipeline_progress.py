"""How far a job is, out of what Spark reports of its batches."""

from __future__ import annotations

from typing import Any

from ottla_pipeline.progress import Status, parse_progress

ENDED = "2026-01-01T00:00:00.000Z"


def source(
    end: str | None, latest: str | None, kind: str = "KafkaV2[Subscribe[a]]", start: str | None = None
) -> dict[str, Any]:
    return {"description": kind, "startOffset": start, "endOffset": end, "latestOffset": latest}


def progress(query: str, batch: int, rows: int, *sources: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": query,
        "batchId": batch,
        "numInputRows": rows,
        "durationMs": {"triggerExecution": 120},
        "sources": list(sources),
    }


def test_lag_is_what_was_there_and_not_yet_read() -> None:
    report = parse_progress(
        progress("q", 3, 40, source('{"a":{"0":10,"1":30}}', '{"a":{"0":15,"1":30}}')), ENDED
    )
    assert report.reached == {("a", 0): 10, ("a", 1): 30}
    assert report.lag == 5
    assert report.batch.to_json() == {"id": 3, "records": 40, "durationMs": 120, "endedAt": ENDED}


def test_a_record_that_a_batch_reads_twice_is_counted_once() -> None:
    twice = source('{"a":{"0":13,"1":2}}', '{"a":{"0":13,"1":2}}', start='{"a":{"0":10}}')
    assert parse_progress(progress("q", 3, 10, twice), ENDED).batch.records == 5


def test_rows_that_came_too_late_are_added_up_over_operators_and_batches() -> None:
    status, where = Status("python", "j", queries=1), source('{"a":{"0":9}}', '{"a":{"0":9}}')
    for batch, dropped in enumerate(([0], [2, 3], [1])):
        operators = [{"numRowsDroppedByWatermark": number} for number in dropped]
        status.add(parse_progress({**progress("q", batch, 9, where), "stateOperators": operators}, ENDED))
    assert (status.late_rows, status.to_json()["lateRows"]) == (6, 6)


def test_a_partition_not_yet_read_lags_by_all_it_holds() -> None:
    assert parse_progress(progress("q", 0, 0, source('{"a":{"0":1}}', '{"a":{"0":1,"1":7}}')), ENDED).lag == 7


def test_sources_that_are_not_kafka_have_no_offsets() -> None:
    report = parse_progress(progress("q", 0, 5, source("17", "18", kind="RateStreamV2[rows=5]")), ENDED)
    assert (report.reached, report.lag) == ({}, 0)


def test_a_topic_read_by_two_queries_is_as_far_as_the_slower() -> None:
    status = Status("windows", "w", queries=2)
    status.add(parse_progress(progress("left", 0, 9, source('{"a":{"0":9}}', '{"a":{"0":9}}')), ENDED))
    assert (status.lag, status.caught_up) == (None, False)  # the other has not said anything yet
    status.add(parse_progress(progress("right", 0, 4, source('{"a":{"0":4}}', '{"a":{"0":9}}')), ENDED))
    assert status.reached() == {("a", 0): 4}
    assert (status.lag, status.caught_up) == (5, False)
    status.mark_idle("right")
    assert (status.lag, status.caught_up) == (0, True)
    assert status.records == 13


def test_an_idle_query_that_reports_again_has_its_lag_again() -> None:
    status = Status("lake", "l", queries=1)
    status.mark_idle("q")
    assert status.caught_up
    status.add(parse_progress(progress("q", 1, 2, source('{"a":{"0":2}}', '{"a":{"0":8}}')), ENDED))
    assert status.lag == 6
