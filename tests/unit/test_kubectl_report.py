"""`kubectl ottla report`: what the archive holds, and that it holds no secret."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from ottla_operator.kubectl import command
from ottla_operator.kubectl.report import REDACTED, Report, redacted, redacted_text

_SECRETS = ("hunter2", "MIIEvQ", "c2VjcmV0", "s3cr3t")
_PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQ\n-----END PRIVATE KEY-----"


def _item(kind: str, name: str, **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "shop", "managedFields": [{"manager": "x"}]}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **more}


_OBJECTS: dict[str, list[dict[str, Any]]] = {
    "brokerclusters.ottla.dev": [
        _item("BrokerCluster", "demo", spec={"replicas": 3}),
        _item("BrokerCluster", "other", spec={}),
    ],
    "topics.ottla.dev": [
        _item("Topic", "orders", spec={"clusterRef": {"name": "demo"}}),
        _item("Topic", "theirs", spec={"clusterRef": {"name": "other"}}),
        _item("Topic", "demo", spec={"clusterRef": {"name": "other"}}),
    ],
    "connectclusters.ottla.dev": [
        _item("ConnectCluster", "main", spec={"clusterRef": {"name": "demo"}}),
        _item("ConnectCluster", "outside", spec={"bootstrapServers": "kafka:9092"}),
    ],
    "connectors.ottla.dev": [
        _item("Connector", "from-file", spec={"connectRef": {"name": "main"}}),
        _item("Connector", "elsewhere", spec={"connectRef": {"name": "outside"}}),
    ],
    "ingresses": [_item("Ingress", "demo-public-0", spec={})],
    "certificates.cert-manager.io": [_item("Certificate", "demo-public-listener", spec={})],
    "pods": [
        _item("Pod", "demo-brokers-0", status={"containerStatuses": [{"name": "broker", "restartCount": 1}]})
    ],
    "configmaps": [
        _item(
            "ConfigMap", "demo-broker-0", data={"server.properties": "a=b\nssl.key.password=hunter2\nc=d\n"}
        )
    ],
    "secrets": [_item("Secret", "alice", data={"password": "c2VjcmV0"})],
}


class FakeKubectl:
    """Answers `get`, `logs` and `version` in the place of kubectl."""

    def __init__(self) -> None:
        self.refused: set[str] = set()

    def __call__(self, *arguments: str) -> str:
        if arguments[0] == "logs":
            return f"started {arguments[-1]}\nsasl.jaas.config=Module required password=s3cr3t;\n"
        if arguments[0] == "version":
            return "serverVersion: 1\n"
        if arguments[1].startswith("tlsroutes"):
            raise click.ClickException('error: the server doesn\'t have a resource type "tlsroutes"')
        if arguments[1] in self.refused:
            raise click.ClickException(f"{arguments[1]} is forbidden")
        of_operator = "ottla-system" in arguments
        return json.dumps({"items": [] if of_operator else _OBJECTS.get(arguments[1], [])})


@pytest.fixture
def parts() -> Callable[..., dict[str, str]]:
    def collect(*refused: str) -> dict[str, str]:
        kubectl = FakeKubectl()
        kubectl.refused.update(refused)
        return {part.path: part.text for part in Report(kubectl, "demo", "ottla-system").parts()}

    return collect


def test_the_report_has_the_clusters_resources_objects_and_logs(parts: Callable[..., dict[str, str]]) -> None:
    found = parts()

    def names(file: str) -> list[str]:
        return [item["metadata"]["name"] for item in yaml.safe_load_all(found[file])]

    assert names("resources/brokerclusters.yaml") == ["demo"]
    assert names("resources/topics.yaml") == ["orders"]
    assert names("resources/connectclusters.yaml") == ["main"]
    assert names("resources/connectors.yaml") == ["from-file"]
    assert names("objects/ingresses.yaml") == ["demo-public-0"]
    assert names("objects/certificates.yaml") == ["demo-public-listener"]
    assert "objects/configmaps.yaml" in found
    assert found["logs/demo-brokers-0.broker.txt"].startswith("started --timestamps")
    assert found["logs/demo-brokers-0.broker.previous.txt"].startswith("started --previous")
    assert "not-read.txt" not in found


def test_the_report_has_no_secret(parts: Callable[..., dict[str, str]]) -> None:
    text = "\n".join(parts().values())
    assert not [secret for secret in _SECRETS if secret in text]
    assert "password: " in text  # the keys of a Secret stay
    assert "managedFields" not in text


def test_objects_that_may_not_be_read_are_named_and_the_others_included(
    parts: Callable[..., dict[str, str]],
) -> None:
    found = parts("secrets", "nodes")
    assert found["not-read.txt"].splitlines() == [
        "objects/secrets: secrets is forbidden",
        "nodes: nodes is forbidden",
    ]
    assert "objects/configmaps.yaml" in found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ssl.key.password=hunter2\nnext=1", f"ssl.key.password={REDACTED}\nnext=1"),
        ('"clientSecret": "hunter2", "a": 1', f'"clientSecret": {REDACTED}, "a": 1'),
        ("sasl.jaas.config=X required user=a password=b;", f"sasl.jaas.config={REDACTED}"),
        (f"key {_PEM} end", f"key {REDACTED} end"),
        ("ssl.keystore.key=" + _PEM.replace("\n", "\\n"), f"ssl.keystore.key={REDACTED}"),
        ("the password of alice was changed", "the password of alice was changed"),
        ("min.insync.replicas=2", "min.insync.replicas=2"),
    ],
)
def test_secret_values_in_text_are_redacted(text: str, expected: str) -> None:
    assert redacted_text(text) == expected


def test_the_environment_of_a_container_is_redacted_by_name() -> None:
    env = [{"name": "DB_PASSWORD", "value": "hunter2"}, {"name": "POD", "value": "demo-0"}]
    assert redacted({"env": env})["env"] == [
        {"name": "DB_PASSWORD", "value": REDACTED},
        {"name": "POD", "value": "demo-0"},
    ]


def test_references_to_secrets_are_kept() -> None:
    spec = {"secretKeyRef": {"name": "alice", "key": "password"}, "automountServiceAccountToken": False}
    assert redacted(spec) == spec


def test_the_archive_is_written_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubectl = FakeKubectl()
    monkeypatch.setattr(command.Kubectl, "__init__", lambda self: None)
    monkeypatch.setattr(command.Kubectl, "run", lambda self, *arguments: kubectl(*_order(arguments)))
    target = tmp_path / "report.tar.gz"
    done = CliRunner().invoke(command.main, ["report", "demo", "-f", str(target)])
    assert done.exit_code == 0, done.output
    with tarfile.open(target) as tar:
        names = tar.getnames()
    assert all(name.startswith("ottla-demo-") for name in names)
    assert f"{len(names)} files" in done.output


def _order(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """`get -o json KIND` as `get KIND -o json`."""
    return ("get", arguments[3]) if arguments[1:2] == ("-o",) and arguments[0] == "get" else arguments
