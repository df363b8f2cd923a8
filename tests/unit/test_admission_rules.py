"""Which mistakes in a spec the API server refuses by the CRDs alone, and which only the webhook can tell.

Every place in the operator that yields a `Problem` about a spec has a case here. A case is refused by the
schema or by a rule in CEL, or it names the reason why CEL cannot say it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest
import yaml

from ottla_operator.kubernetes.store import problems_on_kubernetes
from ottla_operator.resources import KINDS
from ottla_operator.resources.loading import parse_resource
from tests.judges.crd_validation import refusals

_OPERATOR: Final = Path("operator/ottla_operator")
_FILES: Final = (
    *sorted((_OPERATOR / "resources").glob("*.py")),
    _OPERATOR / "kubernetes/listeners.py",
    _OPERATOR / "kubernetes/store.py",
)
# Problems of YAML, of the schema and of transitions.
_NOT_OF_SPECS: Final = ("loading.py", "common.py")

# Why only the webhook, and the operator after it, can tell.
SETTINGS: Final = "settings have values of any type, and a rule in CEL sees no field of such a map"
NO_SCHEMA: Final = "the content of the field has no schema, and a rule in CEL does not see it"
KEYS: Final = (
    "keys of labels and annotations have no bound: the API server refuses rules over them as too expensive"
)
OF_SERVERS: Final = "a path of ZooKeeper's pods only, and a rule of a mount does not see which pods it is for"
ADDRESSES: Final = "functions for addresses came to CEL after the oldest Kubernetes that the chart allows"
FORMULA: Final = "a template has another value for each broker, and CEL does not compute it"
CRON: Final = "the times of a cron schedule are a language of their own"
ZONES: Final = "time zones are data of the operator's image"
FLAG: Final = "a flag of the operator decides"

REF: Final = {"clusterRef": {"name": "demo"}}
PIPELINE: Final = {**REF, "job": "lake"}


@dataclass(frozen=True)
class Case:
    kind: str
    spec: dict[str, Any]
    only_webhook: str = ""
    """Why; "": the CRD refuses it."""
    name: str = "demo"


def cluster(only_webhook: str = "", name: str = "demo", **spec: Any) -> Case:
    return Case("BrokerCluster", {"replicas": 3, **spec}, only_webhook, name)


def pod(only_webhook: str = "", metadata: Any = None, **spec: Any) -> Case:
    template = {"spec": spec, **({"metadata": metadata} if metadata else {})}
    return cluster(only_webhook, template={"pod": template})


def broker(only_webhook: str = "", **container: Any) -> Case:
    volumes = [{"name": "more", "emptyDir": {}}]
    return pod(only_webhook, volumes=volumes, containers=[{"name": "broker", **container}])


def mount(path: str, only_webhook: str = "", name: str = "more") -> Case:
    return broker(only_webhook, volumeMounts=[{"name": name, "mountPath": path}])


def user(*, name: str = "demo", **spec: Any) -> Case:
    return Case("User", {**REF, **spec}, name=name)


def acl(type_: str = "topic", **acl_fields: Any) -> Case:
    resource = {"type": type_, "name": "x", **acl_fields.pop("resource", {})}
    given = {n: v for n, v in resource.items() if v is not None}
    return user(authorization={"acls": [{"resource": given, "operations": ["Read"], **acl_fields}]})


def group(**spec: Any) -> Case:
    return Case("ConsumerGroup", {**REF, **spec})


def reset(**fields: Any) -> dict[str, Any]:
    return {"requestId": "1", "topics": ["x"], **fields}


def listener(name: str = "plain", port: int = 9092, **more: Any) -> dict[str, Any]:
    return {"name": name, "port": port, **more}


def access(type_: str, only_webhook: str = "", *, tls: bool = True, **configuration: Any) -> Case:
    external = listener("outer", 9094, type=type_, tls=tls, configuration=configuration)
    return cluster(only_webhook, listeners=[external])


def backup(only_webhook: str = "", **fields: Any) -> Case:
    return cluster(only_webhook, backup={"destination": "s3://b", "credentialsSecret": "s3", **fields})


def recovery(**fields: Any) -> Case:
    return cluster(bootstrap={"recovery": {"source": "s3://b", "credentialsSecret": "s3", **fields}})


def window(only_webhook: str = "", **fields: Any) -> Case:
    windows = [{"start": "22:00", "duration": "4h", **fields}]
    return cluster(only_webhook, rollingUpdate={"windows": windows})


def pipeline(only_webhook: str = "", name: str = "demo", **spec: Any) -> Case:
    return Case("Pipeline", {**PIPELINE, **spec}, only_webhook, name)


def connect(only_webhook: str = "", name: str = "demo", **spec: Any) -> Case:
    given = {"bootstrapServers": "x:9092", **spec}
    kept = {field: value for field, value in given.items() if value is not None}
    return Case("ConnectCluster", kept, only_webhook, name)


PAIR: Final = {"certificateAndKey": {"secretName": "x"}}
CERTIFICATE: Final = {"brokerCertChainAndKey": {"secretName": "own"}}
ISSUER: Final = {"issuerRef": {"name": "ours"}}
SECRET: Final = {
    "type": "scram-sha-512",
    "password": {"valueFrom": {"secretKeyRef": {"name": "demo", "key": "x"}}},
}

OAUTH: Final = {"type": "oauth", "validIssuerUri": "https://idp", "jwksEndpointUri": "https://idp/keys"}
TRUSTED: Final = {"secretName": "a", "certificate": "ca.crt"}
CUSTOM: Final = {"type": "custom", "sasl": True}


def authenticated(only_webhook: str = "", **authentication: Any) -> Case:
    return cluster(only_webhook, listeners=[listener(tls=True, authentication=authentication)])


def trusted(**source: str) -> Case:
    return authenticated(**OAUTH, tlsTrustedCertificates=[source])


CASES: Final = (
    Case("Connector", {"connectRef": {"name": "x"}, "class": "C", "alterOffsets": {"requestId": "1"}}),
    authenticated(type="oauth", validIssuerUri="https://idp"),
    authenticated(**{**OAUTH, "jwksEndpointUri": "file:/etc/passwd"}),
    authenticated(**OAUTH, checkAudience=True),
    authenticated(**OAUTH, sasl=True),
    authenticated(type="tls", clientId="x"),
    authenticated(type="custom"),
    trusted(certificate="ca.crt"),
    trusted(secretName="a", configMapName="b", certificate="ca.crt"),
    trusted(secretName="a"),
    authenticated(SETTINGS, **CUSTOM),
    authenticated(SETTINGS, **CUSTOM, listenerConfig={"ssl.keystore.type": "PEM"}),
    authenticated(SETTINGS, **CUSTOM, listenerConfig={"num.io.threads": 4}),
    authenticated(
        SETTINGS, **CUSTOM, listenerConfig={"sasl.enabled.mechanisms": "GSSAPI", "ssl.client.auth": 4}
    ),
    cluster(SETTINGS, config={"num.io.threads": "many"}),
    Case("BrokerPool", {**REF, "replicas": 1}, name="with.dot"),
    Case("BrokerPool", {**REF, "replicas": 1}, name="a" * 64),
    Case("BrokerPool", {**REF, "replicas": 1, "storage": {"size": "10 GB"}}),
    cluster(SETTINGS, config={"broker.id": 1}),
    cluster(SETTINGS, config={"zookeeper.set.acl": True}),
    cluster(SETTINGS, config={"inter.broker.protocol.version": "3.9"}, version="3.9"),
    cluster(SETTINGS, config={"super.users": "User:x"}, authorization={"type": "simple"}),
    cluster(SETTINGS, topicDefaults={"config": {"retention.ms": "long"}}),
    cluster(version="4.0"),
    cluster(zookeeper={"connect": "http://x:2181"}),
    cluster(zookeeper={"connect": "x:2181//a"}),
    cluster(zookeeper={"connect": "x:2181/a/"}),
    cluster(zookeeper={"connect": "x:2181", "managed": {}}),
    cluster(zookeeper={"managed": {"heap": "31M"}}),
    cluster(zookeeper={"managed": {"heap": "32767k"}}),
    cluster(zookeeper={"tlsTrustedCertificates": [TRUSTED]}, authorization={"type": "simple"}),
    cluster(zookeeper={"connect": "x:2181", "tlsTrustedCertificates": [TRUSTED]}),
    cluster(name="2nd"),
    cluster(name="a" * 41),
    cluster(name="with.dot"),
    cluster(listeners=[listener("replication")]),
    cluster(listeners=[listener("tcp-prometheus")]),
    cluster(listeners=[listener(), listener(port=9093)]),
    cluster(listeners=[listener(), listener("b")]),
    cluster(listeners=[listener(port=9091)]),
    cluster(listeners=[listener(authentication={"type": "tls"})]),
    cluster(listeners=[listener(configuration=CERTIFICATE)]),
    cluster(listeners=[listener(configuration=ISSUER)]),
    cluster(listeners=[listener(tls=True, configuration={**CERTIFICATE, **ISSUER})]),
    access("internal", publishNotReadyAddresses=True),
    access("nodeport", bootstrap={"loadBalancerIP": "10.0.0.1"}),
    access("nodeport", brokers=[{"broker": 0, "host": "x.example"}]),
    access("loadbalancer", ADDRESSES, bootstrap={"loadBalancerIP": "x"}),
    access("loadbalancer", ADDRESSES, loadBalancerSourceRanges=["x"]),
    access("nodeport", brokers=[{"broker": 0}, {"broker": 0}]),
    access("nodeport", FORMULA, advertisedPortTemplate="0 - {nodeId}"),
    access("ingress", tls=False, bootstrap={"host": "x.example"}, hostTemplate="b-{nodeId}.example"),
    access("ingress", hostTemplate="b-{nodeId}.example"),
    access("ingress", bootstrap={"host": "x.example"}),
    cluster(
        replicas=0,
        listeners=[
            listener(
                "outer",
                9094,
                type="ingress",
                tls=True,
                configuration={"bootstrap": {"host": "x.example"}},
            )
        ],
    ),
    access("ingress", FORMULA, bootstrap={"host": "x.example"}, hostTemplate="x.example"),
    access("tlsroute", bootstrap={"host": "x.example"}, hostTemplate="b-{nodeId}.example"),
    cluster(listeners=[listener(networkPolicyPeers=[{}])]),
    cluster(ADDRESSES, listeners=[listener(networkPolicyPeers=[{"ipBlock": {"cidr": "x"}}])]),
    window(ZONES, timeZone="Europe/Nowhere"),
    window(duration="30s"),
    window(duration="169h"),
    backup(CRON, schedule="61 * * * *"),
    backup(destination="file:///tmp"),
    cluster(backup={"destination": "s3://b"}),
    recovery(source="file:///tmp"),
    cluster(bootstrap={"recovery": {"source": "s3://b"}}),
    cluster(clusterCa={"renewalDays": 365}),
    cluster(clientsCa={**ISSUER, "generateCertificateAuthority": False}),
    cluster(clientsCa={"validityDays": 30}),
    cluster(authorization={"type": "simple", "superUsers": ["a;b"]}),
    cluster(authorization={"type": "simple", "superUsers": [" "]}),
    cluster(authorization={"type": "custom"}),
    cluster(authorization={"type": "simple", "authorizerClass": "company:ByTeam"}),
    cluster(storage={"size": "10 GB"}),
    cluster(storage={"size": -1}),
    cluster(rebalance={"replicationThrottle": "fast"}),
    cluster(rebalance={"thresholds": {"diskGap": "1Kb"}}),
    cluster(rebalance={"capacity": {"networkIn": "1.Gi"}}),
    pod(KEYS, metadata={"labels": {"app.kubernetes.io/name": "x"}}),
    pod(KEYS, metadata={"annotations": {"ottla.dev/config-hash": "x"}}),
    pod(volumes=[{"name": "data", "emptyDir": {}}]),
    pod(volumes=[{"name": "data-12", "emptyDir": {}}]),
    mount("/var/lib/ottla-volumes/3"),
    cluster(storage={"volumes": [{"id": 1}, {"id": 2}, {"id": 1}]}),
    cluster(storage={"volumes": [{"id": 1, "size": "much"}]}),
    cluster(storage={"volumes": []}),
    cluster(
        SETTINGS,
        listeners=[listener(configuration={"maxConnections": 5})],
        config={"listener.name.plain.max.connections": 7},
    ),
    access("internal", maxConnections=0),
    access("loadbalancer", finalizers=["cleanup"]),
    access("nodeport", finalizers=["a.b/cleanup"]),
    pod(volumes=[{"name": "more"}]),
    pod(volumes=[{"name": "more", "emptyDir": {}, "secret": {}}]),
    pod(containers=[{"name": "a", "image": "x"}, {"name": "a", "image": "x"}]),
    pod(containers=[{"name": "a", "image": "x"}], initContainers=[{"name": "a", "image": "x"}]),
    pod(initContainers=[{"name": "broker"}]),
    pod(containers=[{"name": "driver"}]),
    pod(containers=[{"name": "a"}]),
    pod(FLAG, containers=[{"name": "a", "image": "x"}]),
    broker(image="x"),
    broker(livenessProbe={}),
    broker(env=[{"name": "POD_NAME", "value": "x"}]),
    mount("/data", name="other"),
    mount("data"),
    mount("/data/../etc"),
    mount("/tmp"),
    mount("/tmp/x"),
    mount("/etc"),
    mount("//etc//ottla/x"),
    mount("/"),
    cluster(
        OF_SERVERS,
        zookeeper={
            "managed": {
                "template": {
                    "pod": {
                        "spec": {
                            "volumes": [{"name": "more", "emptyDir": {}}],
                            "containers": [
                                {
                                    "name": "zookeeper",
                                    "volumeMounts": [{"name": "more", "mountPath": "/etc/zookeeper"}],
                                }
                            ],
                        }
                    }
                }
            }
        },
    ),
    pipeline(executor={"template": {"pod": {"spec": {"serviceAccountName": "x"}}}}),
    pipeline(driver={"template": {"pod": {"spec": {"containers": [{"name": "executor"}]}}}}),
    pipeline(name="a" * 41),
    pipeline(name="with.dot"),
    pipeline(NO_SCHEMA, config={"kafka": {"bootstrap": "x"}}),
    pipeline(NO_SCHEMA, config={"spark": {"settings": {"spark.master": "x"}}}),
    pipeline(NO_SCHEMA, driver={"resources": {"limits": 1}}),
    pipeline(NO_SCHEMA, driver={"resources": {"limits": {"memory": "1Mi"}}}),
    pipeline(storage={"size": "big"}),
    connect(name="a" * 41),
    connect(name="with.dot"),
    connect(clusterRef={"name": "demo"}),
    connect(bootstrapServers=None, replicas=1),
    connect(user="x"),
    connect(bootstrapServers=None, clusterRef={"name": "demo"}, tls={}),
    connect(authentication={"type": "tls"}),
    connect(authentication={"type": "plain", "username": "x", "passwordSecret": {"secretName": "x"}, **PAIR}),
    connect(SETTINGS, config={"group.id": "x", "rest.port": 1}),
    connect(template={"pod": {"spec": {"containers": [{"name": "broker"}]}}}),
    Case(
        "Connector",
        {"connectRef": {"name": "demo"}, "class": "X", "config": {"tasks.max": 1}},
        SETTINGS,
    ),
    Case("Topic", {**REF, "topicName": ".."}),
    Case("Topic", {**REF, "topicName": "__x"}),
    Case("Topic", REF, name="a" * 250),
    Case("Topic", {**REF, "config": {"retention.ms": "long"}}, SETTINGS),
    Case("Quota", {**REF, "entity": {"user": "x"}, "limits": {}}),
    Case("Quota", {**REF, "entity": {}, "limits": {"producerByteRate": 1}}),
    group(offsetsStorage="zookeeper", deletionPolicy="Delete"),
    group(offsetsStorage="zookeeper", offsetReset=reset(to="latest")),
    group(offsetReset=reset(to="offset")),
    group(offsetReset=reset(to="latest", value=1)),
    user(userName="a b"),
    user(authentication={"type": "tls"}, name="a" * 65),
    user(authentication={**SECRET, "type": "tls"}),
    user(authentication=SECRET),
    acl("cluster", resource={"name": "x"}),
    acl("cluster", resource={"name": None, "patternType": "prefix"}),
    acl(resource={"name": None}),
    acl(operations=["ClusterAction"]),
    acl(host="host.example"),
)


def python_problems(case: Case) -> list[str]:
    """The problems that the operator finds."""
    resource, problems = parse_resource(case.kind, {"name": case.name}, case.spec)
    if resource is not None:
        problems = list(problems_on_kubernetes(resource, allow_sidecars=False))
    return [str(problem) for problem in problems]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{list(case.spec.items())[-1]}"[:60])
def test_a_mistake_is_refused_by_the_crd_or_its_reason_is_given(case: Case) -> None:
    assert python_problems(case), "the operator must refuse what the case is for"
    refused = refusals(case.kind, case.name, case.spec)
    assert bool(refused) == (not case.only_webhook), refused or "the CRD accepts it"


def sites() -> dict[tuple[str, int], range]:
    """The calls of Problem and ValueError about specs: file and line, and all lines of the call."""
    found = {}
    for file in _FILES:
        if file.name in _NOT_OF_SPECS:
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in (*_calls(tree), *_pairs(tree)):
            assert node.end_lineno is not None
            found[(str(file.resolve()), node.lineno)] = range(node.lineno, node.end_lineno + 1)
    return found


def _calls(tree: ast.AST) -> Iterator[ast.expr]:
    """Calls of Problem, and of ValueError in a model."""
    of_models = (node for each in ast.walk(tree) if isinstance(each, ast.ClassDef) for node in ast.walk(each))
    for name, nodes in (("Problem", ast.walk(tree)), ("ValueError", of_models)):
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
                yield node


def _pairs(tree: ast.AST) -> Iterator[ast.expr]:
    """`yield path, message` in functions of problems."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name.endswith("_problems"):
            for node in ast.walk(function):
                if isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple):
                    yield node


def executed(cases: tuple[Case, ...]) -> set[tuple[str, int]]:
    """The lines of the operator that run when the cases are parsed."""
    files = {str(file.resolve()) for file in _FILES}
    lines: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for case in cases:
            python_problems(case)
    finally:
        sys.settrace(before)
    return lines


def test_every_problem_that_the_operator_reports_has_a_case() -> None:
    lines = executed(CASES)
    missing = [
        f"{Path(file).name}:{line}"
        for (file, line), call in sites().items()
        if not any((file, number) in lines for number in call)
    ]
    assert len(sites()) > 40
    assert missing == [], (
        "these problems have no case in CASES: say each by a Rule of the model in CEL, or give the reason "
        "why only the webhook can"
    )


def valid() -> Iterator[tuple[str, str, Any]]:
    """Kind, name and spec of resources without problems: all samples, and what is near to a mistake."""
    for file in sorted(Path("manifests/samples").rglob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            if document["kind"] in KINDS:
                yield document["kind"], document["metadata"]["name"], document["spec"]
    sources = {"configMap": {}, "secret": {}, "emptyDir": {}, "projected": {"sources": []}}
    mounts = [{"name": name.lower(), "mountPath": f"/etc/ottlas/{name}"} for name in sources]
    main = {"name": "broker", "env": [{"name": "A"}], "volumeMounts": mounts}
    volumes = [{"name": name.lower(), name: value} for name, value in sources.items()]
    cases = (
        pod(volumes=volumes, containers=[main], serviceAccountName="x", metadata={"labels": {"a": "b"}}),
        cluster(zookeeper={"connect": "a:2181, [::1]:2181,b"}, storage={"size": "1.5Gi"}, version="3.8.1"),
        cluster(
            zookeeper={"connect": "a:2181/kafka/one"}, rebalance={"replicationThrottle": 0}, version="2.8"
        ),
        cluster(
            listeners=[listener(), listener("b", 1)], authorization={"type": "simple", "superUsers": ["a b"]}
        ),
        cluster(authorization={"type": "custom", "authorizerClass": "company.teams:ByTeam"}),
        access(
            "loadbalancer", loadBalancerSourceRanges=["10.0.0.0/8"], advertisedPortTemplate="9000 + {nodeId}"
        ),
        access("ingress", bootstrap={"host": "x.example"}, hostTemplate="b-{nodeId}.example"),
        backup(schedule="0 3 * * mon-fri", endpoint="http://minio:9000", destination="az://a/b/c"),
        recovery(source="gs://b/x/old-20261127T120000Z.ndjson.gz", name="old"),
        window(duration="168h", days=["Monday"], timeZone="Europe/Berlin"),
        cluster(listeners=[listener(tls=True, authentication={"type": "tls"}, configuration=CERTIFICATE)]),
        *(cluster(zookeeper={"managed": {"heap": heap}}) for heap in ("32m", "32768K", "1g", "100m")),
        Case("Topic", {**REF, "topicName": "_x"}),
        Case("Quota", {**REF, "entity": {"clientId": "<default>"}, "limits": {"requestPercentage": 1}}),
        group(offsetsStorage="zookeeper"),
        group(offsetReset=reset(to="shiftBy", value=-1), deletionPolicy="Delete"),
        user(authentication={"type": "tls"}, name="a" * 64),
        user(authentication=SECRET, name="other"),
        acl("cluster", resource={"name": None}, operations=["Create", "All"], host="::1"),
        acl("cluster", resource={"name": "kafka-cluster"}, operations=["ClusterAction"]),
        acl("group", resource={"name": "*"}, host="*"),
        pipeline(driver={"template": {"pod": {"spec": {"containers": [{"name": "driver"}]}}}}),
    )
    yield from ((case.kind, case.name, case.spec) for case in cases)


@pytest.mark.parametrize(("kind", "name", "spec"), list(valid()))
def test_the_crd_refuses_nothing_that_the_operator_accepts(kind: str, name: str, spec: Any) -> None:
    assert python_problems(Case(kind, spec, name=name)) == []
    assert refusals(kind, name, spec) == []
