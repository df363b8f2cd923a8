"""`kubectl ottla plan`: reads by kubectl, writes nothing, and names what the operator then does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import click
import pytest
import yaml
from click.testing import CliRunner

from ottla_operator.kubectl import command
from ottla_operator.kubernetes.api import _PLURALS, NotFound
from ottla_operator.resources import API_VERSION
from tests.worlds.kubernetes_simulation import NAMESPACE, KubernetesSimulation

pytestmark = pytest.mark.budget(8)  # whole reconciliations over a model of the cluster

_KINDS = {plural: kind for kind, (_, plural) in _PLURALS.items()}
_ORDERS = {
    "name": "orders",
    "id": "id-1",
    "config": {"min.insync.replicas": "2"},
    "minIsr": 2,
    "internal": False,
    "partitions": [[n, n, [n, (n + 1) % 3, (n + 2) % 3], [0, 1, 2], [], []] for n in range(3)],
}


class KubectlOver(command.Kubectl):
    """kubectl, over the simulated API server; it refuses to write."""

    def __init__(self, sim: KubernetesSimulation) -> None:
        self._sim = sim
        self._command = ["kubectl", "--namespace", NAMESPACE]
        self.refused: set[str] = set()
        self.answer: dict[str, Any] = {
            "clusterId": "c", "controller": 0, "brokers": [0, 1, 2], "topics": [_ORDERS], "settings": {},
            "quotas": [], "sizes": [["orders", n, 1_000_000] for n in range(3)],
            "groups": [
                {
                    "group": "billing",
                    "state": "Stable",
                    "coordinator": 1,
                    "members": ["app@10.0.0.9"],
                    "topics": ["orders"],
                }
            ],
            "connections": {"0": {"PLAIN": 3}},
        }  # fmt: skip

    def run(self, *arguments: str, stdin: str | None = None) -> str:
        match arguments:
            case ("get", "--raw", url):
                return json.dumps(self._read(url))
            case ("get", "pods", *_):
                selector = arguments[arguments.index("-l") + 1]
                return json.dumps(self._request("list", "Pod", "", selector))
            case ("get", "deployment", "ottla", "--namespace", "ottla-system", *_):
                if "Deployment" in self.refused:
                    raise click.ClickException("Error from server (Forbidden): deployments")
                images = self._sim.images
                env = [
                    {"name": "OTTLA_BROKER_IMAGE", "value": images.broker},
                    {"name": "OTTLA_IMAGE_PULL_POLICY", "value": images.pull_policy},
                ]
                container = {"env": env, "args": []}
                return json.dumps({"spec": {"template": {"spec": {"containers": [container]}}}})
            case ("exec", *_):
                assert stdin is not None
                assert "def probe" in stdin
                return f"{json.dumps(self.answer)}\n"
        raise AssertionError(f"kubectl {' '.join(arguments)} is not a read")

    def _read(self, url: str) -> Mapping[str, Any]:
        parts = urlsplit(url)
        path = parts.path.strip("/").split("/")
        at = next(n for n, part in enumerate(path) if part in _KINDS)
        kind, name = _KINDS[path[at]], path[at + 1] if len(path) > at + 1 else ""
        if kind in self.refused:
            raise click.ClickException(f'Error from server (Forbidden): {kind} is forbidden: User "me"')
        selector = parse_qs(parts.query).get("labelSelector", [""])[0]
        return self._request("get" if name else "list", kind, name, selector)

    def _request(self, verb: str, kind: str, name: str, selector: str) -> Mapping[str, Any]:
        query = {"labelSelector": selector}
        try:
            # It awaits nothing.
            self._sim.api._request(verb, kind, f"x/{name}", query=query).send(None)
        except StopIteration as answered:
            return dict(answered.value)
        except NotFound as error:
            raise click.ClickException(f"Error from server (NotFound): {error.message}") from None
        raise AssertionError("the simulated API server has awaited something")


def a_cluster(**spec: Any) -> KubernetesSimulation:
    sim = KubernetesSimulation()
    sim.images = replace(sim.images, operator="ottla-system/ottla")
    sim.apply_cluster(**spec)
    sim.reconcile_until_ready()
    for _ in range(5):
        sim.reconcile()
    return sim


def plan(
    sim: KubernetesSimulation,
    tmp_path: Path,
    *arguments: str,
    kubectl: KubectlOver | None = None,
    **spec: Any,
) -> tuple[int, str]:
    """The exit code and the output of a plan of this spec."""
    content = {
        "replicas": 3,
        "storage": {"size": "1Gi", "deleteClaim": True},
        "rollingUpdate": {"minReadySeconds": 0},
        **spec,
    }
    resource = {
        "apiVersion": API_VERSION,
        "kind": "BrokerCluster",
        "metadata": {"name": "demo"},
        "spec": content,
    }
    file = tmp_path / "new.yaml"
    file.write_text(yaml.safe_dump(resource))
    before = list(sim.api.writes)
    result = CliRunner().invoke(
        command.main, ["plan", "-f", str(file), *arguments], obj=kubectl or KubectlOver(sim)
    )
    assert sim.api.writes == before, "a plan writes nothing"
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, result.output


def test_the_plan_of_a_new_cluster_has_its_recovery(tmp_path: Path) -> None:
    source = "s3://b/old-20261127T120000Z.ndjson.gz"
    recovery = {"source": source, "credentialsSecret": "s3"}
    sim = KubernetesSimulation()
    code, output = plan(sim, tmp_path, "-o", "json", bootstrap={"recovery": recovery})
    report = json.loads(output)
    kinds = [step["kind"] for step in report["steps"]]
    assert kinds[-2:] == ["RecoveryStarted", "RecoveryCompleted"]
    assert source in report["steps"][-1]["step"]
    assert (code, report["completes"]) == (1, True)
    assert any("is not read" in note for note in report["notes"])


def test_without_a_change_the_exit_code_is_0(tmp_path: Path) -> None:
    code, output = plan(a_cluster(), tmp_path)
    assert "nothing is to be done" in output
    assert code == 0


def test_the_plan_of_a_roll_names_restarts_partitions_and_clients(tmp_path: Path) -> None:
    sim = a_cluster()
    code, output = plan(sim, tmp_path, "-o", "json", config={"queued.max.requests": 77})
    report = json.loads(output)
    assert code == 1
    assert report["changes"][0]["fields"] == ["spec.config[queued.max.requests]"]
    assert [each["broker"] for each in report["restarts"]["brokers"]] == [1, 2, 0]
    assert {each["partition"] for each in report["partitions"]["atMinIsr"]} == {
        f"orders-{n}" for n in range(3)
    }
    assert [each.get("group") for each in report["clients"]] == ["billing", None]
    assert report["completes"]
    assert "Forbidden" not in output


def test_the_children_of_the_plan_are_those_that_the_operator_then_changes(tmp_path: Path) -> None:
    sim = a_cluster()
    spec: dict[str, Any] = {
        "storage": {"size": "2Gi", "deleteClaim": True},
        "template": {"podDisruptionBudget": {"maxUnavailable": 2}},
    }
    _, output = plan(sim, tmp_path, "-o", "json", **spec)
    planned = [step["step"] for step in json.loads(output)["steps"] if step["kind"] == "Applied"]
    sim.apply_cluster(**spec)
    sim.recorder.events.clear()
    sim.reconcile()
    done = [message for _, reason, message, _ in sim.recorder.events if reason == "Applied"]
    assert planned == done
    assert "grow volume data-demo-brokers-0 to 2Gi" in planned


def test_zookeeper_servers_are_replaced_in_the_order_of_the_operator(tmp_path: Path) -> None:
    sim = a_cluster()
    spec: dict[str, Any] = {"zookeeper": {"managed": {"heap": "300m"}}}
    _, output = plan(sim, tmp_path, "-o", "json", **spec)
    planned = json.loads(output)["restarts"]["zooKeeperServers"]
    sim.apply_cluster(**spec)
    done: list[str] = []
    for _ in range(40):
        done += [step for step in sim.reconcile() if step.startswith("replace pod demo-zookeeper")]
    assert planned == [step.removeprefix("replace pod ") for step in done]
    assert len(planned) == 3


@pytest.mark.parametrize(
    ("spec", "refused"),
    [
        (
            {"zookeeper": {"managed": {"replicas": 5}}},
            "spec.zookeeper.managed.replicas: zookeeper.managed.replicas is immutable",
        ),
        ({"storage": {"size": "much"}}, "spec.storage.size: 'much' is not a quantity"),
        ({"replicas": 0.5}, "spec.replicas"),
    ],
)
def test_a_resource_that_an_apply_refuses_is_an_error(
    tmp_path: Path, spec: dict[str, Any], refused: str
) -> None:
    code, output = plan(a_cluster(), tmp_path, **spec)
    assert code == 2
    assert f"refused: BrokerCluster/demo: {refused}" in output


def test_the_loss_of_a_broker_is_rehearsed(tmp_path: Path) -> None:
    code, output = plan(a_cluster(), tmp_path, "--fail", "broker-2", config={"queued.max.requests": 77})
    assert code == 1
    assert "if broker 2 is lost for good at the worst moment (after step" in output
    assert "below min.insync.replicas: orders 0, 1, 2" in output
    assert "the operator waits:" in output


def test_a_broker_that_does_not_exist_cannot_fail(tmp_path: Path) -> None:
    code, output = plan(a_cluster(), tmp_path, "--fail", "7")
    assert code == 2
    assert "broker 7 does not exist" in output


def test_an_object_that_the_caller_may_not_read_is_a_note(tmp_path: Path) -> None:
    sim = a_cluster(listeners=[{"name": "tls", "port": 9093, "tls": True}])
    kubectl = KubectlOver(sim)
    kubectl.refused.add("Secret")
    listeners = [{"name": "tls", "port": 9093, "tls": True}]
    code, output = plan(sim, tmp_path, kubectl=kubectl, listeners=listeners)
    assert "without permission to read: Secret" in output
    assert "create Secret" not in output
    assert code in (0, 1)


def test_without_the_operators_deployment_its_images_are_those_of_the_pods(tmp_path: Path) -> None:
    sim = a_cluster()
    kubectl = KubectlOver(sim)
    kubectl.refused.add("Deployment")
    code, output = plan(sim, tmp_path, kubectl=kubectl)
    assert "the Deployment ottla-system/ottla of the operator cannot be read" in output
    assert "nothing is to be done" in output
    assert code == 0


def test_an_operator_with_another_image_rolls_without_a_change(tmp_path: Path) -> None:
    sim = a_cluster()
    sim.images = replace(sim.images, broker="ottla:2", zookeeper="ottla:2")
    code, output = plan(sim, tmp_path)
    assert code == 1
    assert output.startswith("no resource changes\n\ndue already, without the change:")
    assert "restart broker 1: image has changed" in output


@pytest.mark.parametrize(
    "spec",
    [
        {"rack": {"topologyKey": "zone"}},
        {"image": "ottla:2"},
        {"resources": {"limits": {"memory": "1Gi"}}},
        {"replicas": 4},
        {"replicas": 2},
    ],
    ids=["rack", "image", "resources", "scale up", "scale down"],
)
def test_the_plan_has_the_steps_that_the_operator_takes_on_kubernetes(
    tmp_path: Path, spec: dict[str, Any]
) -> None:
    sim = a_cluster()
    kubectl = KubectlOver(sim)
    # The simulated API server has a cluster without topics.
    kubectl.answer = {**kubectl.answer, "topics": [], "groups": []}
    _, output = plan(sim, tmp_path, "-o", "json", kubectl=kubectl, **spec)
    planned = [(step["kind"], step["step"]) for step in json.loads(output)["steps"]]
    sim.apply_cluster(**spec)
    sim.recorder.events.clear()
    for _ in range(60):
        sim.reconcile()
    kinds = {kind for kind, _ in planned}
    assert kinds & {"StopBroker", "StartBroker"}
    for kind in ("StopBroker", "RemoveBroker"):
        done = [message for _, reason, message, _ in sim.recorder.events if reason == kind]
        assert [step for of, step in planned if of == kind] == list(dict.fromkeys(done))
