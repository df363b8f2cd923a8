"""`kubectl ottla adopt`: the Topic resources that it creates for topics that no resource manages."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from ottla_operator.kubectl import command
from ottla_operator.kubectl.adopting import ExistingTopic, plan_adoption
from ottla_operator.resources.loading import parse_resource

NAMESPACE = "shop"


def cluster(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "demo", "namespace": NAMESPACE}, "spec": {"replicas": 3, **spec}}


def resource(name: str, of: str = "demo", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"clusterRef": {"name": of}, **spec}}


def topic(name: str, **settings: str) -> ExistingTopic:
    return ExistingTopic(name, 6, 3, {n.replace("_", "."): v for n, v in settings.items()})


def adopted(*names: str, resources: tuple[dict[str, Any], ...] = (), hidden: bool = False) -> dict[str, str]:
    """The resource's name by topic."""
    plan = plan_adoption(
        cluster(), [topic(name) for name in names], resources, hidden=hidden, reclaim_policy="Retain"
    )
    return {m["spec"].get("topicName", m["metadata"]["name"]): m["metadata"]["name"] for m in plan.manifests}


def test_a_resource_states_all_that_the_topic_has() -> None:
    existing = [topic("orders", retention_ms="1000", leader_replication_throttled_replicas="0:1")]
    plan = plan_adoption(cluster(), existing, [], hidden=False, reclaim_policy="Retain")
    (manifest,) = plan.manifests
    assert manifest["metadata"] == {"name": "orders", "namespace": NAMESPACE}
    assert manifest["spec"] == {
        "clusterRef": {"name": "demo"},
        "partitions": 6,
        "replicas": 3,
        "config": {"retention.ms": "1000"},
        "reclaimPolicy": "Retain",
    }
    parsed, problems = parse_resource("Topic", manifest["metadata"], manifest["spec"])
    assert parsed is not None, problems


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders.eu", "orders.eu"),
        ("Orders_EU", "orders-eu-b6ce662b"),
        ("a..b", "a.b-f62b4241"),
        ("-x.-y-", "x.y-5b9a6aa8"),
        ("A" * 249, None),
    ],
)
def test_a_name_that_kubernetes_does_not_allow_is_replaced(name: str, expected: str | None) -> None:
    found = adopted(name)[name]
    assert parse_resource("Topic", {"name": found}, {"clusterRef": {"name": "demo"}, "topicName": name})[0]
    assert adopted(name) == {name: found}, "the same name each time"
    if expected is not None:
        assert found == expected


def test_topics_that_differ_in_what_kubernetes_does_not_allow_get_different_names() -> None:
    assert len(set(adopted("a_b", "a-b", "A-B", "a+b".replace("+", "__")).values())) == 4


def test_internal_hidden_and_managed_topics_are_left_out() -> None:
    names = ("__consumer_offsets", "_schemas", ".hidden", "orders", "renamed", "free")
    resources = (resource("orders"), resource("other", topicName="renamed"))
    assert adopted(*names, resources=resources) == {"free": "free"}
    assert adopted(*names, resources=resources, hidden=True).keys() == {"_schemas", ".hidden", "free"}


def test_a_name_that_another_clusters_topic_has_is_replaced() -> None:
    found = adopted("orders", resources=(resource("orders", of="other"),))
    assert found["orders"].startswith("orders-")


def test_defaults_of_the_cluster_that_change_a_topic_are_named() -> None:
    with_defaults = cluster(topicDefaults={"config": {"retention.ms": 5, "cleanup.policy": "delete"}})
    existing = [topic("orders", retention_ms="1000"), topic("same", retention_ms="1", cleanup_policy="x")]
    plan = plan_adoption(with_defaults, existing, [], hidden=False, reclaim_policy="Delete")
    assert plan.changed == {"orders": {"cleanup.policy": "delete"}}
    assert [manifest["spec"].get("adopt") for manifest in plan.manifests] == [True, None]


class FakeKubectl:
    """Answers in the place of kubectl, and collects what is created."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        match arguments:
            case ("get", "-o", "json", "brokerclusters.ottla.dev", "demo"):
                return json.dumps(cluster())
            case ("get", "-o", "json", "topics.ottla.dev"):
                return json.dumps({"items": [resource("orders")]})
            case ("get", "-o", "json", "pods", *_):
                pods = [{"metadata": {"name": f"demo-brokers-{n}"}} for n in (0, 1)]
                pods[1]["status"] = {"containerStatuses": [{"ready": True}]}  # type: ignore[dict-item]
                return json.dumps({"items": pods})
            case ("exec", "demo-brokers-1", "-c", "broker", "--", "env", _, "ottla", "topics", "list", *_):
                names = ("__consumer_offsets", "clicks", "orders")
                return json.dumps([{"topic": name, "partitions": 2, "replicas": 1} for name in names])
            case ("exec", _, "-c", "broker", "--", "env", _, "ottla", "topics", "describe", *_):
                return json.dumps([{"topic": "clicks", "settings": {"retention.ms": "9"}}])
            case ("create", "-f", "-"):
                assert stdin is not None
                self.created += yaml.safe_load_all(stdin)
                return ""
        raise AssertionError(arguments)


@pytest.fixture
def kubectl(monkeypatch: pytest.MonkeyPatch) -> FakeKubectl:
    fake = FakeKubectl()
    monkeypatch.setattr(command.Kubectl, "__init__", lambda self: None)
    monkeypatch.setattr(command.Kubectl, "run", lambda self, *arguments, **more: fake(*arguments, **more))
    return fake


def test_all_topics_that_nothing_manages_become_resources(kubectl: FakeKubectl) -> None:
    done = CliRunner().invoke(command.main, ["adopt", "demo", "--all"])
    assert done.output.splitlines() == [
        "clicks: is Topic/clicks, 2 partitions of 1 replicas",
        "__consumer_offsets: left out, internal",
        "orders: left out, Topic/orders manages it",
    ]
    assert [(each["metadata"]["name"], each["spec"]["config"]) for each in kubectl.created] == [
        ("clicks", {"retention.ms": "9"})
    ]


@pytest.mark.parametrize("flags", ["--dry-run", "-o yaml"])
def test_a_dry_run_and_yaml_create_nothing(kubectl: FakeKubectl, flags: str) -> None:
    done = CliRunner().invoke(command.main, f"adopt demo --all {flags}".split())
    assert done.exit_code == 0
    assert "clicks" in done.output
    assert kubectl.created == []


@pytest.mark.parametrize(
    ("typed", "code", "message"),
    [
        ("adopt demo", 2, "name topics, or give --all"),
        ("adopt demo --all clicks", 2, "name topics, or give --all"),
        ("adopt demo nothing", 1, "demo has no topic nothing"),
        ("adopt demo orders", 0, "nothing to adopt"),
    ],
)
def test_an_adoption_needs_names_or_all(kubectl: FakeKubectl, typed: str, code: int, message: str) -> None:
    done = CliRunner().invoke(command.main, typed.split())
    assert (done.exit_code, message in done.output) == (code, True)
    assert kubectl.created == []
