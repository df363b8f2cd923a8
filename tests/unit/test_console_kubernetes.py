"""The console on Kubernetes: conditions, what a roll waits for, Events, over an API server in memory."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from ottla.client.admin_types import LogDirDescription
from ottla_console.cluster.jobs import instant_ms
from ottla_console.cluster.kubernetes_api import KubernetesError, OnKubernetes
from ottla_console.cluster.resources import Object, Resources, State, state_of
from ottla_console.cluster.snapshot import Part
from ottla_console.pages.brokers.list_view import list_of
from ottla_console.pages.overview.view import overview_of
from ottla_console.pages.resources.view import view_of
from ottla_console.settings import BrokerClusterName, SettingsError, read_clusters
from ottla_console.views.formats import ago
from ottla_console.views.tables import Query
from tests.unit.test_console_views import TOPIC, snapshot
from tests.worlds.console_cluster import FakeCluster
from tests.worlds.console_kubernetes import BEGAN, ROOT, FakeKubernetes, condition

EVENTS = "/api/v1/namespaces/kafka/events"


def state(**status: Any) -> State:
    """Of the fake's objects; `status` replaces fields of the BrokerCluster's."""
    objects = FakeKubernetes().objects
    cluster = copy.deepcopy(objects[ROOT + "brokerclusters"][0])
    cluster["status"] |= status
    return state_of(cluster, objects[EVENTS], [*objects[ROOT + "topics"], *objects[ROOT + "users"]])


def test_a_roll_shows_its_progress_and_which_broker_waits_for_what() -> None:
    roll, move = state().progress
    assert (roll.done, roll.total, roll.since_ms) == (1, 3, instant_ms(BEGAN))
    assert roll.waits_for == "Broker 1 waits for broker 2, which is starting on revision abc"
    assert (move.title, move.done, move.total) == ("Reassignment (ScaleUp)", 6, 24)


@pytest.mark.parametrize(
    ("status", "title", "waits_for"),
    [
        (
            {"upgrade": {"fromVersion": "3.8", "toVersion": "3.9", "phase": "Binaries"}},
            "Upgrade from 3.8 to 3.9",
            "Broker 1 waits for broker 2, which is starting on revision abc",
        ),
        (
            {
                "rollout": None,
                "zookeeper": {
                    "updated": 0,
                    "total": 1,
                    "servers": [{"id": 0, "waitingFor": "a maintenance window"}],
                },
            },
            "Rolling restart of ZooKeeper",
            "Server 0 waits for a maintenance window",
        ),
        (
            {
                "rollout": None,
                "reassignment": None,
                "reassignRequest": {"id": "r", "phase": "Refused", "message": "broker 9 is unknown"},
            },
            "Requested reassignment: refused",
            "broker 9 is unknown",
        ),
    ],
)
def test_operations_that_wait_say_for_what(status: dict[str, Any], title: str, waits_for: str) -> None:
    first = state(**status).progress[0]
    assert (first.title, first.waits_for) == (title, waits_for)


def test_resources_of_other_clusters_and_their_events_are_left_out() -> None:
    found = state()
    assert [(each.kind, each.name, each.well) for each in found.resources] == [
        ("Topic", "lost", False),
        ("Topic", "orders", True),
        ("User", "new", False),
    ]
    assert [(each.of, each.warning, each.count) for each in found.events] == [
        ("Topic/lost", True, 3),
        ("BrokerCluster/demo", False, 1),
    ]


def test_unusual_conditions_are_those_that_a_resource_at_rest_does_not_have() -> None:
    assert [each.type for each in state().unusual] == ["FullyReplicated", "Rolling"]


def test_a_cluster_without_a_status_is_shown_without_one() -> None:
    bare = {"kind": "BrokerCluster", "metadata": {"namespace": "kafka", "name": "demo", "generation": 1}}
    found = state_of(bare, (), ())
    assert (found.ready, found.progress, found.outdated) == (None, (), True)


def test_the_overview_says_why_the_cluster_is_not_ready_if_the_brokers_find_nothing_wrong() -> None:
    assert overview_of(snapshot(), Part(state(), (), 1)).state.title == "Not ready: Rolling"
    ready = state(conditions=[condition("Ready", "True", "AllBrokersReady")])
    assert overview_of(snapshot(), Part(ready, (), 1)).state.level == "ok"
    full = snapshot(log_dirs={0: (LogDirDescription("/data", None, 100, 5, {}),)})
    assert overview_of(full, Part(state(), (), 1)).state.title == "Not ready: Rolling"
    behind = snapshot(topics={"b": TOPIC("b", isr=(0, 1))})
    assert overview_of(behind, Part(state(), (), 1)).state.title == "3 partitions not in sync"


def test_resources_that_are_not_ready_come_first_and_are_searched() -> None:
    view = view_of(Part(state(), (), 1), Query(), 0)
    assert [row.name for row in view.table.rows] == ["lost", "new", "orders"]
    view = view_of(Part(state(), (), 1), Query("topic ord"), 0)
    assert [row.name for row in view.table.rows] == ["orders"]


def test_the_list_of_brokers_has_pools_where_there_are_any() -> None:
    view = list_of(snapshot(), Query("fast"), state())
    assert [(row.broker.id, row.pool) for row in view.table.rows] == [(2, "fast")]
    assert "pool" in [each.key for each in view.table.columns]
    assert "pool" not in [each.key for each in list_of(snapshot(), Query(), state(brokers=[])).table.columns]


def test_pages_show_what_the_operator_says() -> None:
    cluster = FakeCluster()
    cluster.kubernetes = kubernetes = FakeKubernetes()
    with cluster.console() as browser:
        overview = browser.get("/c/test/").text
        assert "Not ready: Rolling" in overview
        assert "Broker 1 waits for broker 2, which is starting on revision abc" in overview
        assert "partitions cannot shrink" in overview
        page = browser.get("/c/test/resources").text
        assert "demo-brokers-1" in page
        assert "(3 times)" in page
        assert "waits for broker 2" in browser.get("/c/test/brokers").text
        assert "1 of 3" in browser.get("/c/test/reassignments").text
    assert kubernetes.requests.count(EVENTS) == 1, "a state that is fresh is not read again"
    assert kubernetes.closed


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KubernetesError(0, "the API server does not respond: refused"), "No response: BrokerCluster demo"),
        (
            KubernetesError(403, 'topics is forbidden: User "x" cannot list'),
            "service account needs get of brokerclusters",
        ),
        (KubernetesError(404, "not found"), "the namespace kafka has none of this name"),
    ],
)
def test_an_api_server_that_fails_is_named_and_the_rest_is_shown(error: KubernetesError, text: str) -> None:
    cluster = FakeCluster()
    cluster.kubernetes = FakeKubernetes()
    cluster.kubernetes.fail = error
    with cluster.console() as browser:
        for path in ("", "resources"):
            page = browser.get(f"/c/test/{path}")
            assert page.status_code == 200
            assert text in page.text
        assert "All partitions are in sync" in browser.get("/c/test/").text


def test_what_was_known_stays_when_the_api_server_is_gone() -> None:
    clock = [0.0]
    cluster = FakeCluster()
    cluster.kubernetes = FakeKubernetes()
    with cluster.console(clock=clock) as browser:
        browser.get("/c/test/resources")
        cluster.kubernetes.fail = KubernetesError(0, "gone")
        clock[0] += 10
        page = browser.get("/c/test/resources").text
        assert "gone" in page
        assert "demo-brokers-1" in page


def test_a_reading_that_takes_long_is_repeated_seldom() -> None:
    clock = [0.0]

    class Slow(FakeKubernetes):
        async def get(self, path: str) -> Object:
            clock[0] += 3
            return await super().get(path)

    async def scenario() -> None:
        api = Slow()
        resources = Resources(
            OnKubernetes(api, BrokerClusterName("kafka", "demo")), lambda: 1, lambda: clock[0]
        )
        readings = []
        for now_s in (0.0, 10.0, 29.0, 31.0):  # 3 s, and 27 of rest
            clock[0] = now_s
            await resources.state(1)
            readings.append(api.requests.count(EVENTS))
        await resources.close()
        assert readings == [1, 1, 1, 2]

    asyncio.run(scenario())


def test_objects_of_an_unknown_form_are_a_problem_and_no_failure() -> None:
    cluster = FakeCluster()
    cluster.kubernetes = FakeKubernetes()
    cluster.kubernetes.objects[ROOT + "brokerclusters"][0]["status"] = {"rollout": {"id": "r"}}
    with cluster.console() as browser:
        page = browser.get("/c/test/resources")
    assert page.status_code == 200
    assert "it has not the form that this console knows" in page.text


def test_a_cluster_elsewhere_has_no_page_in_the_navigation() -> None:
    with FakeCluster().console() as browser:
        assert "/c/test/resources" not in browser.get("/c/test/").text
        assert "--kubernetes NAMESPACE/NAME" in browser.get("/c/test/resources").text


def test_the_resource_is_configured_by_namespace_and_name(tmp_path: Any) -> None:
    assert BrokerClusterName.parse("kafka/demo") == BrokerClusterName("kafka", "demo")
    for wrong in ("demo", "kafka/", "kafka/demo/x", "Kafka/demo"):
        with pytest.raises(SettingsError, match="NAMESPACE/NAME"):
            BrokerClusterName.parse(wrong)
    file = tmp_path / "console.yaml"
    entry = "{name: a, bootstrap: 'b:1', kubernetes: {namespace: kafka, name: demo}}"
    file.write_text(f"clusters: [{entry}]")
    assert read_clusters(file)[0].kubernetes == BrokerClusterName("kafka", "demo")
    file.write_text(f"clusters: [{entry.replace('kafka', 'KAFKA')}]")
    with pytest.raises(SettingsError, match=r"clusters\.0\.kubernetes\.namespace"):
        read_clusters(file)


@pytest.mark.parametrize(("at", "text"), [(-1, "–"), (1_000, "59 s ago"), (70_000, "0 ms ago")])
def test_times_are_shown_by_their_age(at: int, text: str) -> None:
    assert ago(at, 60_000) == text
