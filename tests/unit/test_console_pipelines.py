"""Pipelines of the console with their lag, and a topic's completeness: by status ports, consumer groups, and
Kubernetes."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from ottla.client.admin_types import TopicPartition
from ottla.security.https import HttpProblem
from ottla_console.cluster.jobs import Job, TopicAudit, Window, instant_ms, job_of, job_of_group
from ottla_console.cluster.resources import state_of
from ottla_console.cluster.snapshot import Part, Snapshot
from ottla_console.pages.pipelines.view import completeness_of, pipelines_of
from ottla_console.settings import SettingsError, read_clusters
from ottla_console.views.tables import Query
from ottla_pipeline.completeness.report import AuditResult, topic_details
from ottla_pipeline.completeness.verdicts import TierRule, WindowVerdict
from ottla_pipeline.progress import Batch, QueryProgress, Status
from tests.worlds.console_cluster import FakeCluster
from tests.worlds.console_kubernetes import condition, resource

NOW_MS = 1_780_000_600_000
MINUTE_MS = 60_000
START_MS = NOW_MS - 10 * MINUTE_MS
TOPIC = FakeCluster.topic("topic-00001")


def lake(**changes: Any) -> Status:
    """The status of a lake job after a batch, by the pipeline's own code."""
    status = Status("lake", "orders", queries=1, state="Running", application_id="local-1", **changes)
    batch = Batch(7, 500, 1200, "2026-05-28T20:36:30.000Z")
    status.add(QueryProgress("q", batch, {("orders", 0): 90}, {("orders", 0): 100}))
    return status


def audit(*rows: WindowVerdict, problems: tuple[str, ...] = ()) -> dict[str, object]:
    """The status of an audit of topic-00001 with these verdicts, by the pipeline's own code."""
    found = AuditResult(
        "check", NOW_MS, MINUTE_MS, "missing", rows, problems, (), {"brokers": NOW_MS, "lake": NOW_MS}, {}, 1
    )
    rules = {"brokers": TierRule(MINUTE_MS), "lake": TierRule(MINUTE_MS)}
    status = Status("audit", "check", state="Running")
    status.details["audit"] = topic_details(found, ["topic-00001"], rules)
    return status.to_json()


def verdict(status: str, tier: str = "lake", missing: int = 0) -> WindowVerdict:
    return WindowVerdict("topic-00001", START_MS, tier, status, 100, 100 - missing, missing)


def served(documents: dict[str, object]) -> Any:
    """Fetches these documents; other URLs do not respond."""

    def fetch(url: str, **_: object) -> bytes:
        if url not in documents:
            raise HttpProblem("[Errno 111] Connection refused")
        return json.dumps(documents[url]).encode()

    return fetch


def jobs(*documents: object) -> Part[tuple[Job, ...]]:
    return Part(tuple(job_of(each, "http://x") for each in documents), (), NOW_MS)


# --- a status as a job ---


def test_a_status_of_the_pipeline_becomes_a_job_with_its_last_batch() -> None:
    job = job_of(lake().to_json(), "http://lake:9404")
    assert (job.name, job.kind, job.state, job.group) == ("orders", "lake", "Running", "ottla-lake-orders")
    assert (job.lag, job.records, job.batch, job.batch_records, job.batch_ms) == (10, 500, 7, 500, 1200)
    assert job.batch_ended_ms == instant_ms("2026-05-28T20:36:30Z")
    assert not job.failing
    assert job_of(lake(error="disk is full").to_json(), "").failing


@pytest.mark.parametrize(
    "document", [None, [], {}, {"job": "lake"}, {"job": 1, "name": "x"}, {"status": "up"}, "ok"]
)
def test_a_document_that_is_no_status_is_refused(document: object) -> None:
    with pytest.raises(ValueError, match="not that of a job"):
        job_of(document, "")


def test_fields_of_other_types_count_as_not_given() -> None:
    odd = {
        "job": "lake", "name": "x", "lag": "many", "records": -1, "lastBatch": {"id": True, "endedAt": 5},
        "details": [], "error": {}, "state": 3,
    }  # fmt: skip
    job = job_of(odd, "")
    assert (job.lag, job.records, job.batch, job.batch_ended_ms, job.state) == (
        None,
        None,
        None,
        -1,
        "unknown",
    )
    odd["details"] = {"audit": {"topics": {"a": 1, "b": {"windows": [3, {"start": "x"}]}}}}
    assert job_of(odd, "").audits == {
        "b": TopicAudit("x", -1, False, 0, 0, 0, (Window(-1, "", "", 0, 0),)),
    }


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-01-31T12:00:00Z", 1_769_860_800_000),
        ("2026-01-31T12:00:00", 1_769_860_800_000),
        ("", -1),
        (None, -1),
        ("soon", -1),
    ],
)
def test_an_instant_without_a_zone_is_utc(text: str | None, ms: int) -> None:
    assert instant_ms(text) == ms


def test_a_group_of_a_job_is_recognized_by_its_name() -> None:
    assert job_of_group("ottla-lake-a-b") == Job("a-b", "lake", "", "its consumer group", "ottla-lake-a-b")
    assert job_of_group("ottla-console") is None
    assert job_of_group("billing") is None


# --- the list ---


def snapshot(**groups: dict[tuple[str, int], int]) -> Snapshot:
    from ottla.client.admin_types import GroupListing

    return Snapshot(
        groups=Part({each: GroupListing(each, "", "Empty", "classic") for each in groups}, (), NOW_MS),
        committed=Part(
            {
                group: {TopicPartition(*tp): offset for tp, offset in offsets.items()}
                for group, offsets in groups.items()
            },
            (),
            NOW_MS,
        ),
        end_offsets=Part({TopicPartition("orders", 0): 1000}, (), NOW_MS),
    )


def test_the_lag_is_that_of_the_group_which_the_brokers_know_at_any_time() -> None:
    known = snapshot(**{"ottla-lake-orders": {("orders", 0): 400}, "billing": {("orders", 0): 1}})
    view = pipelines_of(known, jobs(lake().to_json()), None, NOW_MS, Query())
    (row,) = view.table.rows
    assert (row.lag, row.has_group, row.topics) == (600, True, ("orders",))
    alone = pipelines_of(snapshot(), jobs(lake().to_json()), None, NOW_MS, Query())
    assert (alone.table.rows[0].lag, alone.table.rows[0].has_group) == (10, False)


def test_a_job_without_a_known_status_is_listed_by_its_group() -> None:
    known = snapshot(**{"ottla-mirror-east": {("orders", 0): 990}, "billing": {}})
    view = pipelines_of(known, Part((), (), NOW_MS), None, NOW_MS, Query())
    (row,) = view.table.rows
    assert (row.job.name, row.job.kind, row.lag) == ("east", "mirror", 10)


def test_pipelines_on_kubernetes_are_listed_and_a_status_port_knows_better() -> None:
    pipeline = resource("Pipeline", "orders", condition("Ready", "True", "Running"))
    pipeline["spec"] |= {"job": "lake", "config": {"group": "mine"}}
    pipeline["status"] |= {"lag": 77, "lastBatch": {"id": 3, "records": 5, "durationMs": 9, "endedAt": "x"}}
    failing = resource("Pipeline", "late", condition("Failing", "True", "InvalidConfig", "source: missing"))
    failing["spec"] |= {"job": "windows"}
    cluster = {"metadata": {"name": "demo", "namespace": "kafka"}, "status": {}}
    state = Part(state_of(cluster, (), (pipeline, failing)), (), NOW_MS)
    view = pipelines_of(snapshot(), Part((), (), NOW_MS), state, NOW_MS, Query())
    assert {row.job.name: (row.job.state, row.lag, row.job.group) for row in view.table.rows} == {
        "orders": ("Running", 77, "mine"),
        "late": ("Failing", None, "ottla-windows-late"),
    }
    (problem,) = view.failing
    assert (problem.what, problem.reason) == ("the pipeline late", "source: missing")
    both = pipelines_of(snapshot(), jobs(lake().to_json()), state, NOW_MS, Query())
    assert {row.job.name: row.lag for row in both.table.rows} == {"orders": 10, "late": None}


# --- completeness ---


@pytest.mark.parametrize(
    ("rows", "says", "level"),
    [
        ((verdict("complete", "brokers"), verdict("complete")), "Every tier has all records", "ok"),
        ((verdict("missing", missing=17),), "17 records are missing, in 1 window.", "alarm"),
        ((verdict("missing", missing=1),), "1 record is missing, in 1 window.", "alarm"),
        ((verdict("unknown"),), "It is not known whether 1 window of tiers are complete", "warn"),
    ],
)
def test_the_result_of_an_audit_is_a_sentence(rows: Any, says: str, level: str) -> None:
    view = completeness_of("topic-00001", TOPIC, jobs(audit(*rows)), None, NOW_MS)
    (found,) = view.audits
    assert says in found.verdict
    assert found.level == level


def test_the_worst_of_several_audits_comes_first() -> None:
    good, bad = audit(verdict("complete")), audit(verdict("missing", missing=2))
    bad["name"] = "other"
    view = completeness_of("topic-00001", TOPIC, jobs(good, bad), None, NOW_MS)
    assert [each.audit.job for each in view.audits] == ["other", "check"]


def test_problems_of_an_audit_and_windows_that_have_not_ended_are_not_complete() -> None:
    trouble = completeness_of(
        "topic-00001", TOPIC, jobs(audit(problems=("3 audit events were not read",))), None, NOW_MS
    )
    assert trouble.audits[0].level == "warn"
    early = audit()
    early["details"]["audit"]["topics"]["topic-00001"]["completeUntil"] = None  # type: ignore[index]
    view = completeness_of("topic-00001", TOPIC, jobs(early), None, NOW_MS)
    assert (view.audits[0].verdict, view.audits[0].level) == ("No window has ended yet.", "warn")


def test_a_topic_on_kubernetes_has_the_audit_of_its_status() -> None:
    topic = resource("Topic", "mine", condition("Complete", "False", "Missing", "17 records are missing"))
    topic["status"] |= {
        "topicName": "topic-00001",
        "audit": {
            "pipeline": "check", "completeUntil": "2026-01-31T12:00:00Z", "missing": 17, "duplicated": 0,
            "differingWindows": 1,
            "windows": [
                {"start": "2026-01-31T12:00:00Z", "tier": "lake", "status": "missing", "missing": 17},
            ],
        },
    }  # fmt: skip
    cluster = {"metadata": {"name": "demo", "namespace": "kafka"}, "status": {}}
    state = Part(state_of(cluster, (), (topic,)), (), NOW_MS)
    view = completeness_of("topic-00001", TOPIC, Part((), (), NOW_MS), state, NOW_MS)
    (found,) = view.audits
    assert found.verdict == "17 records are missing, in 1 window."
    assert found.audit.windows == (Window(1_769_860_800_000, "lake", "missing", 17, 0),)


def test_those_who_may_not_describe_a_topic_do_not_see_its_audit() -> None:
    view = completeness_of("topic-00001", None, jobs(audit(verdict("missing", missing=17))), None, NOW_MS)
    assert (view.exists, view.audits) == (False, ())


# --- the pages ---


def test_the_pages_show_jobs_and_their_audit_and_which_port_does_not_respond() -> None:
    cluster = FakeCluster()
    cluster.pipelines = ("http://lake:9404", "http://check:9404/", "http://gone:9404")
    documents = {
        "http://lake:9404/status": lake().to_json(),
        "http://check:9404/status": audit(verdict("missing", missing=17)),
    }
    with cluster.console(fetch=served(documents)) as browser:
        page = html.unescape(browser.get("/c/test/pipelines").text)
        assert re.search(r"orders.*Running.*500 records in 1 s", page, re.DOTALL)
        assert "No response: the job at http://gone:9404." in page
        assert "Connection refused" in page
        topic = html.unescape(browser.get("/c/test/topics/topic-00001/completeness").text)
        assert "17 records are missing" in topic
        assert f"/c/test/topics/topic-00001/records?from=time&time={START_MS}" in topic
        assert 'aria-current="page">Completeness</a>' in topic
        other = browser.get("/c/test/topics/topic-00000/completeness").text
        assert "No audit reports on this topic" in other
        assert browser.get("/c/test/topics/hidden/completeness").status_code == 404


def test_hostile_names_and_errors_of_jobs_are_text() -> None:
    cluster = FakeCluster()
    cluster.pipelines = ("http://lake:9404",)
    evil = lake(error="<script>alert(1)</script>\u202e").to_json() | {"name": "<b>evil</b>", "state": "<i>"}
    with cluster.console(fetch=served({"http://lake:9404/status": evil})) as browser:
        page = browser.get("/c/test/pipelines").text
        assert "&lt;b&gt;evil" in page
        assert not re.search(r"<script>|<b>|<i>|\u202e", page)


def test_without_pipelines_the_list_says_how_they_are_found_and_topics_have_no_tab_for_audits() -> None:
    with FakeCluster().console() as browser:
        assert "No pipelines are known" in browser.get("/c/test/pipelines").text
        assert "Completeness" not in browser.get("/c/test/topics/topic-00001").text


@pytest.mark.parametrize(
    "url", ["lake:9404", "file:///etc/passwd", "http://", "http://a:b@lake", "http://x?y=1"]
)
def test_a_url_that_is_no_status_port_is_refused(tmp_path: Path, url: str) -> None:
    file = tmp_path / "console.yaml"
    file.write_text(json.dumps({"clusters": [{"name": "a", "bootstrap": "b:1", "pipelines": [url]}]}))
    with pytest.raises(SettingsError, match="status port"):
        read_clusters(file)
