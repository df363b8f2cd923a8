"""Validation of resources and files: accepted specs, errors with their paths, and the CRDs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from ottla_operator.resources import KINDS, BrokerCluster, Problem, Topic
from ottla_operator.resources.common import config_text, parse_duration_ms, parse_quantity
from ottla_operator.resources.crds import build_crd, files, main, render_template
from ottla_operator.resources.loading import load_files, load_folder, parse_resource

REPOSITORY = Path(__file__).parents[2]
REF: dict[str, Any] = {"clusterRef": {"name": "demo"}}
PLAIN: dict[str, Any] = {"name": "plain", "port": 9092}
SECURE: dict[str, Any] = {"name": "secure", "port": 9093, "tls": True}
SIMPLE: dict[str, Any] = {"type": "simple"}


def password(secret: str) -> dict[str, Any]:
    return {"valueFrom": {"secretKeyRef": {"name": secret, "key": "password"}}}


def acls(**fields: object) -> dict[str, Any]:
    """A User's spec with one ACL."""
    acl = {"resource": {"type": "topic", "name": "t"}, "operations": ["Describe"], **fields}
    return {**REF, "authorization": {"type": "simple", "acls": [acl]}}


def problems(kind: str, spec: object, name: str = "thing") -> list[str]:
    _, found = parse_resource(kind, {"name": name}, spec)
    return [str(problem) for problem in found]


@pytest.mark.parametrize(
    ("kind", "spec", "expected"),
    [
        (
            "Topic",
            {**REF, "partitions": "six"},
            "spec.partitions: 'six' is not allowed: must be a whole number",
        ),
        (
            "Topic",
            {**REF, "partitions": 0},
            "spec.partitions: 0 is not allowed: input should be greater than or equal to 1",
        ),
        (
            "Topic",
            {**REF, "partitions": True},
            "spec.partitions: true is not allowed: must be a whole number",
        ),
        ("Topic", {}, "spec.clusterRef: is required"),
        ("Topic", {"clusterRef": {}}, "spec.clusterRef.name: is required"),
        (
            "Topic",
            {"cluster_ref": {"name": "x"}, **REF},
            "spec.cluster_ref: unknown field; allowed: clusterRef, topicName",
        ),
        (
            "Topic",
            {**REF, "reclaimPolicy": "Keep"},
            "spec.reclaimPolicy: 'Keep' is not allowed: input should be 'Delete' or 'Retain'",
        ),
        (
            "Topic",
            {**REF, "config": {"retention.hours": 1}},
            "spec.config[retention.hours]: Unknown topic config name",
        ),
        (
            "Topic",
            {**REF, "config": {"retention.ms": "long"}},
            "spec.config[retention.ms]: Invalid value long for retention.ms",
        ),
        (
            "Topic",
            {**REF, "config": {"cleanup.policy": "shred"}},
            "spec.config[cleanup.policy]: Invalid value shred",
        ),
        (
            "Topic",
            {**REF, "topicName": "a b"},
            "spec.topicName: 'a b' is not allowed: string should match pattern",
        ),
        (
            "Topic",
            {**REF, "topicName": "__mine"},
            "spec.topicName: '__mine' is not allowed: names that start with __",
        ),
        ("Topic", "nothing", "spec: 'nothing' is not allowed: must be a mapping"),
        ("Topic", None, "spec: is required"),
        ("Topic", {"clusterRef": "demo"}, "spec.clusterRef: 'demo' is not allowed: must be a mapping"),
        ("Topic", {**REF, "partitions": "3"}, "spec.partitions: '3' is not allowed: must be a whole number"),
        ("Topic", {**REF, "adopt": None}, "spec.adopt: null is not allowed: must be true or false"),
        (
            "Topic",
            {**REF, "config": {"retention.ms": date(2020, 1, 1)}},
            "spec.config[retention.ms]: 2020-01-01 is not allowed: must be a string or a whole number or",
        ),
        ("Topic", {**REF, "config": {5: 6}}, "spec.config[5]: 5 is not allowed: must be a string"),
        ("BrokerCluster", {}, "spec.replicas: is required"),
        (
            "BrokerCluster",
            {"replicas": 3, "scaleDown": {"policy": "Hope"}},
            "spec.scaleDown.policy: 'Hope' is not allowed: input should be 'Drain',",
        ),
        (
            "BrokerCluster",
            {"replicas": 1, "scaleDown": {"polcy": "x"}},  # codespell:ignore polcy
            "spec.scaleDown.polcy: unknown field; allowed: policy",  # codespell:ignore polcy
        ),
        (
            "BrokerCluster",
            {"replicas": 1, "listeners": [{"name": "a", "port": 99999}]},
            "spec.listeners[0].port: 99999 is not allowed",
        ),
        (
            "BrokerCluster",
            {"replicas": 1, "config": {"broker.id": 7}},
            "spec.config[broker.id]: is set by the operator",
        ),
        (
            "BrokerCluster",
            {"replicas": 1, "config": {"num.partitions": 0}},
            "spec.config[num.partitions]: '0' is not allowed: must be at least 1",
        ),
        (
            "BrokerCluster",
            {"replicas": 1, "zookeeper": {"connect": "a:1", "managed": {}}},
            "spec.zookeeper: connect and managed exclude each other",
        ),
        (
            "BrokerCluster",
            {"replicas": 1, "zookeeper": {"connect": "a:b"}},
            "spec.zookeeper.connect: 'a:b' is not allowed: must be HOST:PORT",
        ),
        (
            "BrokerCluster",
            {"replicas": 1, "config": {"zookeeper.set.acl": True}},
            "spec.config[zookeeper.set.acl]: is set by the operator for its own ZooKeeper",
        ),
        (
            "BrokerCluster",
            {"replicas": 1, "storage": {"size": "big"}},
            "spec.storage.size: 'big' is not a quantity",
        ),
        (
            "BrokerCluster",
            {"replicas": 1, "rollingUpdate": {"timeout": "soon"}},
            "spec.rollingUpdate.timeout: 'soon' is not allowed",
        ),
        (
            "Quota",
            {**REF, "entity": {}, "limits": {"producerByteRate": 1}},
            "spec.entity: user, clientId or both are required",
        ),
        (
            "Quota",
            {**REF, "entity": {"user": "a"}, "limits": {}},
            "spec.limits: is empty; at least one of producerByteRate",
        ),
        (
            "Quota",
            {**REF, "entity": {"user": "a"}, "limits": {"producerByteRate": -1}},
            "spec.limits.producerByteRate: -1 is not allowed",
        ),
        (
            "BrokerCluster",
            {"replicas": 1, "defaultQuotas": {"consumerByteRate": 0.5}},
            "spec.defaultQuotas.consumerByteRate: 0.5 is not allowed",
        ),
        ("ConsumerGroup", {**REF, "maxLag": -1}, "spec.maxLag: -1 is not allowed"),
        (
            "ConsumerGroup",
            {
                **REF,
                "offsetsStorage": "zookeeper",
                "offsetReset": {"requestId": "1", "topics": ["t"], "to": "latest"},
            },
            "spec.offsetReset: is not allowed with `offsetsStorage: zookeeper`",
        ),
        (
            "ConsumerGroup",
            {**REF, "offsetsStorage": "zookeeper", "deletionPolicy": "Delete"},
            "spec.deletionPolicy: Delete is not allowed with `offsetsStorage: zookeeper`",
        ),
        (
            "ConsumerGroup",
            {**REF, "offsetReset": {"requestId": "1", "topics": ["t"], "to": "offset"}},
            "spec.offsetReset.value: is required with `to: offset`",
        ),
        (
            "BrokerCluster",
            {"replicas": 1, "listeners": [SECURE, {**PLAIN, "authentication": {"type": "tls"}}]},
            "spec.listeners[1].authentication.type: tls requires tls: true on the listener",
        ),
        (
            "BrokerCluster",
            {"replicas": 1, "listeners": [{**SECURE, "authentication": {"type": "kerberos"}}]},
            "spec.listeners[0].authentication.type: 'kerberos' is not allowed",
        ),
        (
            "BrokerCluster",
            {"replicas": 1, "authorization": {**SIMPLE, "superUsers": ["CN=a", "b;c"]}},
            "spec.authorization.superUsers[1]: 'b;c' is not allowed",
        ),
        (
            "BrokerCluster",
            {"replicas": 1, "authorization": {"type": "custom"}},
            "spec.authorization.authorizerClass: type custom requires authorizerClass",
        ),
        (
            "BrokerCluster",
            {"replicas": 1, "authorization": {**SIMPLE, "authorizerClass": "a:B"}},
            "spec.authorization.authorizerClass: type custom requires authorizerClass",
        ),
        (
            "BrokerCluster",
            {"replicas": 1, "authorization": {"type": "custom", "authorizerClass": "io.example.Java"}},
            "spec.authorization.authorizerClass: 'io.example.Java' is not allowed",
        ),
        (
            "BrokerCluster",
            {"replicas": 1, "authorization": SIMPLE, "config": {"super.users": "User:a"}},
            "spec.config[super.users]: is set by the operator: from spec.authorization",
        ),
        (
            "BrokerCluster",
            {"replicas": 1, "clientsCa": {"validityDays": 30}},
            "spec.clientsCa.renewalDays: 30 is not allowed: must be below validityDays, which is 30",
        ),
        (
            "User",
            {**REF, "authentication": {"type": "plain"}},
            "spec.authentication.type: 'plain' is not allowed: input should be 'scram-sha-512' or 'tls'",
        ),
        (
            "User",
            {**REF, "userName": "a b"},
            "spec.userName: 'a b' is not allowed",
        ),
        (
            "User",
            {**REF, "userName": "a" * 65, "authentication": {"type": "tls"}},
            f"spec.userName: '{'a' * 65}' is too long for a certificate; allowed: up to 64 characters",
        ),
        (
            "User",
            {**REF, "authentication": {"type": "tls", "password": password("mine")}},
            "spec.authentication.password: is allowed for type scram-sha-512 only",
        ),
        (
            "User",
            {**REF, "authentication": {"type": "scram-sha-512", "password": password("thing")}},
            "spec.authentication.password.valueFrom.secretKeyRef.name: 'thing' is the Secret",
        ),
        (
            "User",
            {**REF, "authentication": {"type": "scram-sha-512", "password": {"valueFrom": {}}}},
            "spec.authentication.password.valueFrom.secretKeyRef: is required",
        ),
        (
            "User",
            acls(resource={"type": "topic"}),
            "spec.authorization.acls[0].resource.name: is required for type topic; `*` is allowed for all",
        ),
        (
            "User",
            acls(resource={"type": "cluster", "name": "demo"}),
            "spec.authorization.acls[0].resource.name: is not allowed for type cluster",
        ),
        (
            "User",
            acls(resource={"type": "cluster", "patternType": "prefix"}),
            "spec.authorization.acls[0].resource.patternType: prefix is not allowed for type cluster",
        ),
        (
            "User",
            acls(operations=["Describe", "Write"], resource={"type": "group", "name": "g"}),
            "spec.authorization.acls[0].operations[1]: Write is not an operation on type group",
        ),
        (
            "User",
            acls(operations=["read"]),
            "spec.authorization.acls[0].operations[0]: 'read' is not allowed: input should be 'All', 'Read'",
        ),
        (
            "User",
            acls(operations=[]),
            "spec.authorization.acls[0].operations: [] is not allowed",
        ),
        (
            "User",
            acls(host="a.example"),
            "spec.authorization.acls[0].host: 'a.example' is not an address; allowed: an IP address, or `*`",
        ),
    ],
)
def test_an_error_names_the_field_and_what_is_allowed(kind: str, spec: object, expected: str) -> None:
    found = problems(kind, spec)
    assert len(found) == 1, found
    assert found[0].startswith(expected)


def test_all_errors_are_reported_at_once() -> None:
    assert len(problems("Topic", {"partitions": 0, "replicas": 0, "config": {}, "x": 1})) == 4


def test_an_invalid_name_is_reported_with_its_path() -> None:
    assert problems("Topic", REF, name="Not_A_Name")[0].startswith(
        "metadata.name: 'Not_A_Name' is not allowed"
    )


def test_fields_for_kubernetes_only_are_accepted_with_a_note() -> None:
    spec = {
        "replicas": 3,
        "image": "ottla:1",
        "listeners": [{"name": "plain", "port": 9092}],
        "rack": {"topologyKey": "zone"},
        "resources": {"limits": {"cpu": 1}},
        "template": {"pod": {"metadata": {"labels": {"a": "b"}}}},
        "storage": {"size": "10Gi", "class": "fast", "deleteClaim": True},
        "rebalance": {"replicationThrottle": "10Mi"},
        "zookeeper": {"managed": {"image": "ottla:1", "heap": "512m", "template": {"pod": {}}}},
    }
    cluster, found = parse_resource("BrokerCluster", {"name": "demo"}, spec)
    assert not found
    assert isinstance(cluster, BrokerCluster)
    assert cluster.spec.storage.storage_class == "fast"
    assert [note.split()[0] for note in cluster.ignored_by_up()] == [
        *("spec.image", "spec.listeners", "spec.rack", "spec.resources", "spec.template"),
        *("spec.zookeeper.managed.image", "spec.zookeeper.managed.template"),
    ]


def test_secured_listeners_have_an_effect_on_every_platform() -> None:
    spec = {"replicas": 1, "image": "ottla:1", "listeners": [SECURE], "clientsCa": {"validityDays": 90}}
    cluster, found = parse_resource("BrokerCluster", {"name": "demo"}, spec)
    assert cluster is not None, found
    assert [note.split()[0] for note in cluster.ignored_by_up()] == ["spec.image"]


@pytest.mark.parametrize(
    ("names", "wrong"), [(["a", "a"], "spec.listeners[1].name"), (["replication"], "spec.listeners[0].name")]
)
def test_listeners_have_names_of_their_own(names: list[str], wrong: str) -> None:
    listeners = [{"name": name, "port": 9092} for name in names]
    (found,) = problems("BrokerCluster", {"replicas": 3, "listeners": listeners})
    assert found.startswith(f"{wrong}: ")
    assert "must be unique" in found


def test_a_min_isr_that_the_replicas_cannot_reach_is_noted() -> None:
    def notes(replicas: int | None, least: int) -> list[str]:
        spec = {**REF, "replicas": replicas, "config": {"min.insync.replicas": least}}
        resource, found = parse_resource("Topic", {"name": "t"}, spec)
        assert resource is not None, found
        return list(resource.notes())

    assert "no write with acks=all can succeed" in notes(2, 3)[0]
    assert not notes(2, 2)
    assert not notes(None, 3)


@pytest.mark.parametrize(
    ("replicas", "config", "noted"),
    [
        (3, {"min.insync.replicas": 2}, ""),
        (3, {"min.insync.replicas": 2, "default.replication.factor": 3}, ""),
        (1, {"min.insync.replicas": 2}, "2 is more than spec.replicas, which is 1: no write"),
        (
            3,
            {"min.insync.replicas": 2, "default.replication.factor": 1},
            "1 is less than min.insync.replicas",
        ),
        (3, {"default.replication.factor": 4}, "4 is more than spec.replicas, which is 3"),
        (3, {"min.insync.replicas": 2, "offsets.topic.replication.factor": 1}, "can commit offsets"),
    ],
)
def test_factors_that_the_brokers_cannot_reach_are_noted(
    replicas: int, config: dict[str, Any], noted: str
) -> None:
    cluster, found = parse_resource("BrokerCluster", {"name": "d"}, {"replicas": replicas, "config": config})
    assert cluster is not None, found
    notes = list(cluster.notes())
    assert len(notes) == bool(noted), notes
    assert noted in "".join(notes)


def test_a_broker_setting_without_effect_is_noted() -> None:
    cluster, found = parse_resource(
        "BrokerCluster",
        {"name": "d"},
        {"replicas": 1, "config": {"num.partitons": 3}},  # codespell:ignore partitons
    )
    assert not found
    assert cluster is not None
    assert "did you mean num.partitions?" in "".join(cluster.notes())


@pytest.mark.parametrize(
    ("kind", "old", "new", "problem"),
    [
        ("Topic", {**REF, "partitions": 3}, {**REF, "partitions": 2}, "spec.partitions"),
        ("Topic", {**REF, "partitions": 3}, REF, "spec.partitions"),
        ("Topic", {**REF, "partitions": 3}, {**REF, "partitions": 4}, None),
        ("Topic", REF, {**REF, "topicName": "b"}, "spec.topicName"),
        ("Topic", REF, {"clusterRef": {"name": "other"}}, "spec.clusterRef"),
        (
            "Quota",
            {**REF, "entity": {"user": "a"}, "limits": {"producerByteRate": 1}},
            {**REF, "entity": {"user": "b"}, "limits": {"producerByteRate": 1}},
            "spec.entity",
        ),
        ("ConsumerGroup", {**REF, "groupId": "a"}, {**REF, "groupId": "b"}, "spec.groupId"),
        ("User", {**REF, "userName": "a"}, {**REF, "userName": "b"}, "spec.userName"),
        ("User", REF, {**REF, "authentication": {"type": "tls"}}, None),
        (
            "BrokerCluster",
            {"replicas": 3, "zookeeper": {"managed": {"replicas": 1}}},
            {"replicas": 3},
            "spec.zookeeper.managed.replicas",
        ),
        ("BrokerCluster", {"replicas": 3}, {"replicas": 3, "zookeeper": {"managed": {}}}, None),
        ("BrokerCluster", {"replicas": 3}, {"replicas": 5}, None),
        ("BrokerCluster", {"replicas": 3}, {"replicas": 3, "authorization": SIMPLE}, "spec.listeners"),
        ("BrokerCluster", {"replicas": 3, "listeners": [SECURE]}, {"replicas": 3}, "spec.listeners"),
        ("BrokerCluster", {"replicas": 3}, {"replicas": 3, "listeners": [PLAIN]}, None),
        (
            "BrokerCluster",
            {"replicas": 3, "listeners": [SECURE]},
            {"replicas": 3, "listeners": [PLAIN], "authorization": SIMPLE},
            None,
        ),
    ],
)
def test_changes_of_immutable_fields_are_rejected(
    kind: str, old: dict[str, Any], new: dict[str, Any], problem: str | None
) -> None:
    before, _ = parse_resource(kind, {"name": "x"}, old)
    after, _ = parse_resource(kind, {"name": "x"}, new)
    assert before is not None
    assert after is not None
    found = [p.path for p in after.transition_problems(before)]
    assert found == ([problem] if problem else [])


def test_settings_of_a_custom_authorizer_are_not_warned_about() -> None:
    custom = {"type": "custom", "authorizerClass": "company:ByTeam"}
    config = {"authorizer.teams.file": "/teams.json", "authorizr.typo": "x"}
    for authorization, warned in ((custom, ["authorizr.typo"]), (SIMPLE, list(config))):
        spec = {"replicas": 1, "authorization": authorization, "config": config}
        cluster, _ = parse_resource("BrokerCluster", {"name": "x"}, spec)
        assert isinstance(cluster, BrokerCluster)
        notes = list(cluster.notes())
        assert all(f"unknown setting {name} " in str(notes) for name in warned)
        assert len(notes) == len(warned)


def test_settings_are_converted_to_the_text_that_kafka_uses() -> None:
    assert [config_text(v) for v in (True, False, 5, 1.0, 0.5, "a")] == [
        "true",
        "false",
        "5",
        "1",
        "0.5",
        "a",
    ]


def test_quantities_and_durations_are_parsed() -> None:
    assert [parse_quantity(q) for q in ("1", 5, "10Ki", "1.5k", "2Gi", "x", "-1")] == [
        *(1, 5, 10240, 1500, 2 * 2**30),
        *(None, None),
    ]
    assert parse_duration_ms("1h30m5s10ms") == 5_405_010


# ---- files


def write(path: Path, *documents: object) -> Path:
    path.write_text("---\n".join(yaml.safe_dump(document) for document in documents))
    return path


def topic(name: str, **spec: object) -> dict[str, object]:
    return {
        "apiVersion": "ottla.dev/v1alpha1",
        "kind": "Topic",
        "metadata": {"name": name},
        "spec": {**REF, **spec},
    }


def test_an_invalid_resource_does_not_affect_others(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", topic("good"), topic("bad", partitions="x"), topic("fine"))
    loaded = load_folder(tmp_path)
    assert [(d.name, bool(d.problems)) for d in loaded.documents] == [
        ("good", False),
        ("bad", True),
        ("fine", False),
    ]
    assert str(loaded.documents[1].source) == f"{tmp_path / 'a.yaml'} (document 2)"
    assert not loaded.errors


def test_an_unreadable_file_is_an_error_with_its_line_and_keeps_its_resources(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", topic("good"))
    broken = tmp_path / "b.yaml"
    broken.write_text("kind: Topic\nspec: [1,\n")
    loaded = load_folder(tmp_path)
    assert [d.name for d in loaded.documents] == ["good"]
    assert loaded.unreadable == {broken}
    assert loaded.errors[0].startswith(f"{broken}: line 3")


@pytest.mark.parametrize(
    ("document", "error"),
    [
        (
            {"kind": "Pod", "apiVersion": "v1"},
            "unknown resource v1 Pod; allowed: ottla.dev/v1alpha1 of kind BrokerCluster",
        ),
        ({**topic("x"), "apiVersion": "ottla.dev/v2"}, "unknown resource ottla.dev/v2 Topic"),
        ({**topic("x"), "metadata": {}}, "Topic: metadata.name is required"),
        ({**topic("x"), "kind": ["Topic"]}, "unknown resource ottla.dev/v1alpha1 ['Topic']"),
        (["a", "list"], "not a resource"),
    ],
)
def test_a_document_of_another_kind_is_an_error_of_its_file(
    tmp_path: Path, document: object, error: str
) -> None:
    loaded = load_files([write(tmp_path / "a.yaml", document)])
    assert not loaded.documents
    assert error in loaded.errors[0]


@pytest.mark.parametrize("text", ["a: 2020-99-99", "a: !!bool maybe", "a: !!timestamp soon", "[" * 1000])
def test_a_file_that_yaml_cannot_parse_is_an_error_of_that_file(tmp_path: Path, text: str) -> None:
    write(tmp_path / "a.yaml", topic("good"))
    (tmp_path / "b.yaml").write_text(text)
    loaded = load_folder(tmp_path)
    assert [d.name for d in loaded.documents] == ["good"]
    assert loaded.unreadable == {tmp_path / "b.yaml"}
    assert loaded.errors[0].startswith(f"{tmp_path / 'b.yaml'}: ")


def test_a_duplicate_resource_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", topic("same"), topic("same"))
    loaded = load_folder(tmp_path)
    assert len(loaded.documents) == 1
    assert "Topic/same is also defined in" in loaded.errors[0]


def test_a_status_in_a_file_is_ignored_and_another_top_level_field_is_not(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", {**topic("a"), "status": {"x": 1}}, {**topic("b"), "sepc": {}})
    first, second = load_folder(tmp_path).documents
    assert not first.problems
    assert second.problems == (Problem("sepc", "unknown field; allowed: apiVersion, kind, metadata, spec"),)


def test_the_samples_are_valid() -> None:
    samples = REPOSITORY / "manifests" / "samples"
    loaded = [
        load_folder(samples / name)
        for name in ("", "secured", "certificates", "pipelines", "pools", "connect")
    ]
    assert not [error for folder in loaded for error in folder.errors]
    documents = [document for folder in loaded for document in folder.documents]
    assert {d.kind for d in documents} == set(KINDS)
    assert not [d.problems for d in documents if d.problems]


# ---- CustomResourceDefinitions


def test_the_crds_in_the_repository_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert main(["--check"]) == 0


def bounds(schema: object) -> Iterator[float]:
    """All minima and maxima in a schema."""
    if isinstance(schema, dict):
        for name, value in schema.items():
            if name in ("minimum", "maximum") and isinstance(value, int | float):
                yield value
            yield from bounds(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from bounds(item)


@pytest.mark.parametrize("kind", KINDS)
def test_the_bounds_of_numbers_are_exact_in_the_api_server(kind: str) -> None:
    """It reads them as float64: with a maximum of 2^63 - 1 it refuses every integer."""
    assert [bound for bound in bounds(build_crd(kind)) if abs(bound) > 2**53] == []


@pytest.mark.parametrize("stale", ["crds", "chart"])
def test_an_outdated_crd_fails_the_check(tmp_path: Path, stale: str) -> None:
    folders = ["--folder", str(tmp_path / "crds"), "--chart-folder", str(tmp_path / "chart")]
    assert main(folders) == 0
    assert main(["--check", *folders]) == 0
    (tmp_path / stale / "topics.yaml").write_text("old")
    assert main(["--check", *folders]) == 1


def test_the_crds_of_the_chart_are_the_same_and_kept_on_uninstall() -> None:
    for kind in KINDS:
        first, *lines, last = render_template(kind).splitlines()[1:]
        assert (first, last) == ("{{- if .Values.crds.install }}", "{{- end }}")
        crd = yaml.safe_load("\n".join(lines))
        assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        assert crd == build_crd(kind)


def nodes(schema: Any, path: str = "") -> list[tuple[str, dict[str, Any]]]:
    """All schemas inside a schema, with their paths."""
    found = [(path, schema)]
    for name, field in schema.get("properties", {}).items():
        found += nodes(field, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            found += nodes(schema[key], f"{path}.{key}")
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_schemas_are_structural(kind: str) -> None:
    """The rules of apiextensions.k8s.io/v1 for every node of a structural schema."""
    schema = build_crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for path, node in nodes(schema):
        typed = "type" in node or node.get("x-kubernetes-int-or-string")
        assert typed, f"{path} has no type: {node}"
        assert not {"$ref", "$defs", "anyOf", "oneOf", "const", "title", "prefixItems"} & set(node), path
        assert not ("properties" in node and "additionalProperties" in node), path
        assert isinstance(node.get("exclusiveMinimum", True), bool), path


@pytest.mark.parametrize("kind", KINDS)
def test_each_field_has_a_description_with_its_default(kind: str) -> None:
    """For `kubectl explain`, which does not show defaults."""
    schema = build_crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    # The API server has one of its own for metadata, and refuses others.
    assert schema["properties"].pop("metadata") == {"type": "object"}
    for path, node in nodes(schema):
        for name, field in node.get("properties", {}).items():
            text = field.get("description", "")
            assert len(text) > 5, f"{path}.{name} has no description"
            default = field.get("default")
            if path.startswith(".spec") and isinstance(default, str | int):
                assert re.search(r"Default: ", text), f"{path}.{name}: {text}"


@pytest.mark.parametrize("kind", KINDS)
def test_crds_follow_the_kubernetes_api_conventions(kind: str) -> None:
    crd = build_crd(kind)["spec"]
    version = crd["versions"][0]
    assert crd["names"]["categories"] == ["ottla"]
    assert "quota" not in crd["names"]["shortNames"]
    assert "status" in version["subresources"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    assert status["conditions"]["x-kubernetes-list-type"] == "map"
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
    names = [column["name"] for column in version["additionalPrinterColumns"]]
    assert names[0] == "Ready"
    assert "Age" in names


def test_the_cluster_has_a_scale_subresource_and_topics_their_rules() -> None:
    assert build_crd("BrokerCluster")["spec"]["versions"][0]["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    spec = build_crd("Topic")["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    validations = [rule for rule in spec["x-kubernetes-validations"] if "oldSelf" in rule["rule"]]
    rules = {rule["message"]: rule["rule"] for rule in validations}
    assert len(rules) == len(Topic.definition.transition_rules) == 3
    assert "self.partitions >= oldSelf.partitions" in "".join(rules.values())


def test_the_files_are_named_after_the_plurals() -> None:
    assert {path.name for path in files(Path("x"), Path("y"))} == {
        *("brokerclusters.yaml", "topics.yaml", "quotas.yaml", "consumergroups.yaml", "users.yaml"),
        *("brokerpools.yaml", "pipelines.yaml", "connectclusters.yaml", "connectors.yaml"),
    }
