"""Changes of topics by the console: view models by tables, the forms over a cluster in memory."""

from __future__ import annotations

import html
import logging
import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from ottla.client import errors
from ottla.client.admin_types import (
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ConfigType,
    NewTopic,
    TopicPartition,
)
from ottla_console.cluster.snapshot import Part
from ottla_console.pages.topic_changes.view import Creation, Invalid, manage_of, new_count, topic_of
from tests.worlds.console_cluster import FakeCluster

ORIGIN = {"origin": "http://127.0.0.1"}
NAME = "topic-00001"
MANAGE = f"topics/{NAME}/manage"


def post(browser: TestClient, path: str, **data: str) -> Any:
    found = re.search(r'name="csrf" value="([^"]+)"', browser.get(f"/c/test/{MANAGE}").text)
    token = found[1] if found else ""
    return browser.post(f"/c/test/{path}", data={"csrf": token, **data}, headers=ORIGIN)


def shown(browser: TestClient, path: str) -> str:
    return html.unescape(browser.get(f"/c/test/{path}").text)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (Creation("orders"), NewTopic("orders")),
        (Creation("orders", "12", "3"), NewTopic("orders", 12, 3)),
        (
            Creation("a.b", settings="\nretention.ms = 5\ncleanup.policy=compact\n"),
            NewTopic("a.b", -1, -1, {"retention.ms": "5", "cleanup.policy": "compact"}),
        ),
    ],
)
def test_the_form_becomes_a_topic(form: Creation, expected: NewTopic) -> None:
    assert topic_of(form) == expected


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (Creation(""), "a name has"),
        (Creation(".."), "a name has"),
        (Creation("a b"), "a name has"),
        (Creation("x" * 250), "a name has"),
        (Creation("a", "0"), "partitions must be"),
        (Creation("a", "many"), "partitions must be"),
        (Creation("a", "1", "-1"), "replicas must be"),
        (Creation("a", settings="retention.ms"), "NAME=VALUE"),
        (Creation("a", settings="=5"), "NAME=VALUE"),
    ],
)
def test_a_form_that_is_no_topic_says_what_is_allowed(form: Creation, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        topic_of(form)


def test_a_deletion_of_records_counts_them_by_partition() -> None:
    topic = FakeCluster.topic("t")
    starts = Part({TopicPartition("t", p): 10 for p in range(2)})
    ends = Part({TopicPartition("t", p): 100 for p in range(2)})
    view = manage_of("t", topic, starts, ends, {"before:0": "40", "before:1": "end"})
    assert view.before == {0: 40, 1: 100}
    assert (view.deleted, view.previewed) == (120, True)
    assert manage_of("t", topic, starts, ends, {}).previewed is False
    for wrong in ({"before:0": "9"}, {"before:0": "101"}, {"before:0": "x"}, {"before:2": "end"}):
        with pytest.raises(Invalid):
            manage_of("t", topic, starts, ends, wrong)


@pytest.mark.parametrize("text", ["", "3", "2", "x", "-4", "1000000000"])
def test_the_number_of_partitions_only_grows(text: str) -> None:
    assert new_count("4", 3) == 4
    with pytest.raises(Invalid, match="from 4"):
        new_count(text, 3)


def test_a_topic_is_checked_without_a_change_and_created() -> None:
    cluster = FakeCluster()
    with cluster.console(writes=True) as browser:
        checked = post(browser, "new-topic", name="orders", do="check")
        assert "3 partitions and 3 replicas each" in checked.text
        assert "orders" not in cluster.topics
        wrong = post(browser, "new-topic", name="or ders", do="create")
        assert wrong.status_code == 400
        made = post(browser, "new-topic", name="orders", do="create")
        assert made.headers["location"] == "/c/test/topics?q=orders"
        assert "orders" in cluster.topics
        cluster.fail["create_topics"] = errors.TopicAlreadyExistsError("Topic 'orders' already exists.")
        again = post(browser, "new-topic", name="orders", partitions="7", do="create")
        assert again.status_code == 502
        assert "already exists" in html.unescape(again.text)
        assert 'value="7"' in again.text


def test_partitions_are_added() -> None:
    cluster = FakeCluster()
    with cluster.console(writes=True) as browser:
        wrong = post(browser, f"topics/{NAME}/partitions", count="2")
        assert "can only grow" in wrong.text
        post(browser, f"topics/{NAME}/partitions", count="6")
        assert cluster.partition_counts == {NAME: 6}


def test_records_are_deleted_after_a_preview(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster()
    fields = {"before:0": "40", "before:2": "end"}
    with cluster.console(writes=True) as browser, caplog.at_level(logging.INFO, "ottla_console.audit"):
        assert "1,040 records at most are deleted" in shown(browser, f"{MANAGE}?before:0=40&before:2=end")
        assert browser.get(f"/c/test/{MANAGE}?before:0=x").status_code == 200
        assert "must be from 0 to 1000" in shown(browser, f"{MANAGE}?before:0=x")
        post(browser, f"topics/{NAME}/truncate", **fields)
        assert cluster.starts == {}
        post(browser, f"topics/{NAME}/truncate", **fields, do="delete")
    assert cluster.starts == {TopicPartition(NAME, 0): 40, TopicPartition(NAME, 2): 1000}
    assert "action=topic.delete-records resource=topic-00001 outcome=done before=0:40,2:1000" in caplog.text


def test_a_topic_is_deleted_after_its_name_is_typed() -> None:
    cluster = FakeCluster()
    with cluster.console(writes=True) as browser:
        post(browser, f"topics/{NAME}/delete", confirm="topic-00002")
        assert NAME in cluster.topics
        cluster.fail["delete_topic"] = errors.TopicAuthorizationFailedError()
        post(browser, f"topics/{NAME}/delete", confirm=NAME)
        assert "lacks Delete on the topic topic-00001" in shown(browser, "topics")
        del cluster.fail["delete_topic"]
        post(browser, f"topics/{NAME}/delete", confirm=NAME)
        assert NAME not in cluster.topics


def test_a_setting_is_shown_with_its_source_and_changed() -> None:
    cluster = FakeCluster()
    path = f"topics/{NAME}/setting"
    with cluster.console(writes=True) as browser:
        assert f"/c/test/{path}?setting=retention.ms" in shown(browser, f"topics/{NAME}/settings")
        page = shown(browser, f"{path}?setting=retention.ms")
        assert "How long records are kept." in page
        assert "default" in page
        assert browser.get(f"/c/test/{path}?setting=no.such").status_code == 404
        post(browser, path, setting="retention.ms", value=" 5 ", do="set")
        post(browser, path, setting="retention.ms", value="5", do="remove")
        cluster.fail["incremental_alter_configs"] = errors.InvalidConfigError("must be a number")
        refused = post(browser, path, setting="retention.ms", value="x", do="set")
        assert "must be a number" in refused.text
        assert 'value="x"' in refused.text
    resource = ConfigResource(ConfigType.TOPIC, NAME)
    assert cluster.config_changes == [
        (resource, [ConfigChange("retention.ms", "5")]),
        (resource, [ConfigChange("retention.ms", None, ConfigOperation.DELETE)]),
    ]


def test_without_writes_no_form_changes_a_topic() -> None:
    with FakeCluster().console() as browser:
        for path in ("new-topic", MANAGE, f"topics/{NAME}/setting?setting=retention.ms"):
            page = shown(browser, path)
            assert "read-only" in page
            assert 'name="do"' not in page
