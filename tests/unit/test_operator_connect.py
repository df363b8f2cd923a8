"""ConnectClusters and Connectors: their objects, what is changed in Kafka Connect, what is reported."""

from __future__ import annotations

from typing import Any

import pytest

from ottla_operator.kubernetes import manifests_connect, naming
from ottla_operator.kubernetes.manifests_common import Images
from ottla_operator.planning.connect import (
    WorkerLaunch,
    WorkerPod,
    WorkersState,
    launch_of_workers,
    plan_connect,
)
from ottla_operator.planning.connectors import ConnectState, back_off_ms
from ottla_operator.planning.pipeline_config import LaunchRefused
from ottla_operator.resources import BrokerCluster, ConnectCluster, Connector, User
from ottla_operator.resources.loading import parse_resource
from tests.worlds.connect_simulation import CONNECT, Connect, SimulatedConnect

COPY = {"connectRef": {"name": "main"}, "class": "Copy", "config": {"topic": "orders"}}
TRACE = (
    "org.apache.kafka.X: no\n\tat a.b(C.java:1)\nCaused by: java.io.IOException: disk\n\tat d.e(F.java:2)\n"
)


def parsed(kind: str, name: str, spec: dict[str, Any], status: dict[str, Any] | None = None) -> Any:
    metadata = {"name": name, "namespace": "shop", "uid": "u-1", "generation": 1}
    resource, problems = parse_resource(kind, metadata, spec, status)
    assert resource is not None, problems
    return resource


def problems(kind: str, spec: dict[str, Any], name: str = "main") -> list[str]:
    return [str(problem) for problem in parse_resource(kind, {"name": name}, spec)[1]]


def connect(**spec: Any) -> ConnectCluster:
    found = parsed("ConnectCluster", "main", {"clusterRef": {"name": "demo"}, **spec})
    assert isinstance(found, ConnectCluster)
    return found


def cluster(*listeners: dict[str, Any]) -> BrokerCluster:
    statuses = [
        {
            "name": each["name"],
            "bootstrapServers": f"demo:{each['port']}",
            "certificates": ["CA 1\n", "CA 2\n"],
        }
        for each in listeners
    ]
    status = {
        "bootstrapServers": statuses[0]["bootstrapServers"] if statuses else "demo:9092",
        "listeners": statuses,
    }
    found = parsed("BrokerCluster", "demo", {"replicas": 1, "listeners": list(listeners)}, status)
    assert isinstance(found, BrokerCluster)
    return found


def user(kind: str) -> User:
    spec = {"clusterRef": {"name": "demo"}, "authentication": {"type": kind}}
    found = parsed("User", "alice", spec, {"secret": "alice", "secretVersion": "7"})
    assert isinstance(found, User)
    return found


PLAIN = {"name": "plain", "port": 9092}
SCRAM = {"name": "scram", "port": 9094, "tls": True, "authentication": {"type": "scram-sha-512"}}
TLS = {"name": "tls", "port": 9093, "tls": True, "authentication": {"type": "tls"}}


def launched(spec: ConnectCluster, of: BrokerCluster | None, by: User | None = None) -> WorkerLaunch:
    found = launch_of_workers(spec, of, by, {})
    assert isinstance(found, WorkerLaunch), found
    return found


# ---- settings of workers


def test_group_and_internal_topics_are_named_by_the_resource() -> None:
    settings = launched(connect(), cluster()).properties
    assert settings["group.id"] == "main"
    assert settings["config.storage.topic"] == "main-configs"
    assert settings["offset.storage.replication.factor"] == "-1"
    assert settings["bootstrap.servers"] == "demo:9092"
    assert settings["producer.security.protocol"] == "PLAINTEXT"
    given = {
        "group.id": "mine",
        "config.storage.topic": "there",
        "config.providers": "own,env",
        "plugin.path": "/x",
    }
    settings = launched(connect(config=given), cluster()).properties
    assert (settings["group.id"], settings["config.storage.topic"]) == ("mine", "there")
    assert settings["config.providers"] == "directory,env,file,own"
    assert settings["plugin.path"] == "/opt/connect/plugins,/x"


@pytest.mark.parametrize(
    ("listener", "kind", "protocol", "expected"),
    [
        (
            SCRAM,
            "scram-sha-512",
            "SASL_SSL",
            {"sasl.jaas.config": "${directory:/etc/ottla-secrets/alice:sasl.jaas.config}"},
        ),
        (TLS, "tls", "SSL", {"ssl.keystore.location": "/etc/ottla-secrets/alice/user.p12"}),
    ],
)
def test_workers_and_their_clients_use_the_credentials_of_a_user(
    listener: dict[str, Any], kind: str, protocol: str, expected: dict[str, str]
) -> None:
    launch = launched(connect(user="alice"), cluster(PLAIN, listener), user(kind))
    assert launch.secrets == ("alice",)
    assert launch.properties["bootstrap.servers"] == f"demo:{listener['port']}"
    for prefix in ("", "producer.", "consumer.", "admin."):
        assert launch.properties[f"{prefix}security.protocol"] == protocol
        assert launch.properties[f"{prefix}ssl.truststore.certificates"] == "CA 1\nCA 2"
        for name, value in expected.items():
            assert launch.properties[f"{prefix}{name}"] == value


def test_another_cluster_is_reached_with_the_secrets_that_the_spec_names() -> None:
    spec = {
        "bootstrapServers": "elsewhere:9093",
        "tls": {"trustedCertificates": [{"secretName": "a"}, {"secretName": "b", "certificate": "x.crt"}]},
        "authentication": {
            "type": "scram-sha-256",
            "username": "bob",
            "passwordSecret": {"secretName": "b", "password": "p"},
        },
    }
    found = parsed("ConnectCluster", "main", spec)
    launch = launched(found, None)
    assert launch.secrets == ("a", "b")
    trusted = "${directory:/etc/ottla-secrets/a:ca.crt}\n${directory:/etc/ottla-secrets/b:x.crt}"
    assert launch.properties["ssl.truststore.certificates"] == trusted
    assert launch.properties["sasl.mechanism"] == "SCRAM-SHA-256"
    assert launch.properties["sasl.jaas.config"].endswith(
        'required username="bob" password="${directory:/etc/ottla-secrets/b:p}";'
    )


def test_a_new_password_or_image_is_another_revision() -> None:
    before = launched(connect(user="alice"), cluster(SCRAM), user("scram-sha-512")).revision
    changed = user("scram-sha-512")
    status = changed.status.model_copy(update={"secret_version": "8"})
    changed = changed.model_copy(update={"status": status})
    assert launched(connect(user="alice"), cluster(SCRAM), changed).revision != before
    found = launch_of_workers(connect(user="alice"), cluster(SCRAM), user("scram-sha-512"), {"image": "x"})
    assert isinstance(found, WorkerLaunch)
    assert found.revision != before


@pytest.mark.parametrize(
    ("spec", "of", "by", "reason"),
    [
        ({}, None, None, "ClusterNotFound"),
        ({"user": "alice"}, cluster(SCRAM), None, "UserNotFound"),
        ({}, cluster(SCRAM), None, "UserNotFound"),
        ({"user": "alice"}, cluster(PLAIN), user("tls"), "NotSupported"),
    ],
)
def test_workers_are_not_started_without_what_they_need(
    spec: dict[str, Any], of: BrokerCluster | None, by: User | None, reason: str
) -> None:
    found = launch_of_workers(connect(**spec), of, by, {})
    assert isinstance(found, LaunchRefused)
    assert found.reason == reason


def test_workers_wait_for_a_cluster_that_is_recovered_from_a_backup() -> None:
    """Their internal topics would refuse it."""
    recovery = {"source": "s3://b", "credentialsSecret": "s3"}
    status = {"bootstrapServers": "demo:9092"}
    of = parsed("BrokerCluster", "demo", {"replicas": 1, "bootstrap": {"recovery": recovery}}, status)
    found = launch_of_workers(connect(), of, None, {})
    assert isinstance(found, LaunchRefused)
    assert found.reason == "ClusterNotReady"
    done = {"recovery": {"source": "s3://b/x", "completedAt": "2026-11-27T12:00:00Z"}, **status}
    of = parsed("BrokerCluster", "demo", {"replicas": 1, "bootstrap": {"recovery": recovery}}, done)
    assert isinstance(launch_of_workers(connect(), of, None, {}), WorkerLaunch)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({}, "spec: either clusterRef or bootstrapServers is required"),
        ({**CONNECT, "user": "x"}, "spec.user: is allowed with clusterRef only; use authentication"),
        (
            {"clusterRef": {"name": "a"}, "tls": {}},
            "spec.tls: is allowed with bootstrapServers only; use user",
        ),
        (
            {**CONNECT, "authentication": {"type": "tls", "username": "x"}},
            "spec.authentication.certificateAndKey: is required for type tls",
        ),
        (
            {**CONNECT, "config": {"producer.sasl.mechanism": "PLAIN"}},
            "spec.config[producer.sasl.mechanism]: is set by the operator: from other fields of the spec",
        ),
        (
            {**CONNECT, "config": {"bootstrap.servers": "x"}},
            "spec.config[bootstrap.servers]: is set by the operator: "
            "from spec.clusterRef or spec.bootstrapServers",
        ),
    ],
)
def test_a_spec_that_cannot_work_is_refused(spec: dict[str, Any], problem: str) -> None:
    assert problem in problems("ConnectCluster", spec)


# ---- objects


def test_workers_have_names_for_each_other_and_no_token() -> None:
    launch = launched(
        connect(replicas=2, plugins=[{"name": "debezium", "artifacts": [{"reference": "dbz:1"}]}]), cluster()
    )
    spec = connect(replicas=2, plugins=[{"name": "debezium", "artifacts": [{"reference": "dbz:1"}]}])
    objects = {
        (each["kind"], each["metadata"]["name"]): each
        for each in manifests_connect.build_all(spec, Images(connect="c:1"), launch)
    }
    stateful_set = objects["StatefulSet", "main-connect"]["spec"]
    pod = stateful_set["template"]["spec"]
    assert stateful_set["replicas"] == 2
    assert pod["automountServiceAccountToken"] is False
    container = pod["containers"][0]
    assert container["image"] == "c:1"
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables["CONNECT_REST_HOST"] == "$(POD_NAME).main-connect.shop.svc"
    mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert mounted["plugin-debezium-0"] == "/opt/connect/plugins/debezium/0"
    assert {
        "name": "plugin-debezium-0",
        "image": {"reference": "dbz:1", "pullPolicy": "IfNotPresent"},
    } in pod["volumes"]
    service = objects["Service", "main-connect-api"]["spec"]
    assert service["selector"] == naming.connect_selector("main")
    rest = objects["NetworkPolicy", "main-connect"]["spec"]["ingress"][1]
    assert rest["ports"][0]["port"] == 8083
    assert rest["from"] == [{"podSelector": {"matchLabels": naming.connect_selector("main")}}]
    for each in objects.values():
        assert each["metadata"]["labels"][naming.CONNECT_LABEL] == "main"
        assert each["metadata"]["labels"][naming.CLUSTER_LABEL] == "demo"


# ---- status of the workers


@pytest.mark.parametrize(
    ("pods", "answers", "reason"),
    [
        ([], False, "Starting"),
        ([WorkerPod("a", False, "r", "has crashed")], False, "WorkerFailing"),
        ([WorkerPod("a", True, "old")], True, "Rolling"),
        ([WorkerPod("a", False, "r")], False, "Starting"),
        ([WorkerPod("a", True, "r")], False, "NotAnswering"),
        ([WorkerPod("a", True, "r")], True, "Ready"),
    ],
)
def test_ready_says_what_the_workers_lack(pods: list[WorkerPod], answers: bool, reason: str) -> None:
    state = ConnectState(answers=answers)
    plan = plan_connect(connect(), WorkerLaunch("r"), WorkersState(pods), state)
    assert [finding.reason for finding in plan.findings] == [reason]


# ---- connectors


@pytest.fixture
def api() -> SimulatedConnect:
    return SimulatedConnect()


@pytest.fixture
def world(api: SimulatedConnect) -> Connect:
    found = Connect(api)
    found.store.put("ConnectCluster", "main", CONNECT)
    return found


def status_of(world: Connect, name: str = "copy") -> Any:
    found = world.store.items[f"Connector/{name}"]
    assert isinstance(found, Connector)
    return found.status


def test_a_connector_is_created_once_and_a_change_is_put(world: Connect, api: SimulatedConnect) -> None:
    world.store.put("Connector", "copy", {**COPY, "tasksMax": 2})
    result = world.run(4)
    assert api.steps == ["create connector copy"]
    assert result.idle
    assert result.converged
    assert world.ready("Connector/copy").reason == "Running"
    assert status_of(world).tasks_running == 2
    world.store.put("Connector", "copy", {**COPY, "config": {"topic": "others", "batch": 5}})
    world.run(4)
    assert api.steps[1:] == ["configure connector copy"]
    assert api.connectors["copy"].config == {
        "topic": "others",
        "batch": "5",
        "name": "copy",
        "connector.class": "Copy",
        "tasks.max": "1",
    }


def test_a_configuration_that_connect_refuses_is_not_put(world: Connect, api: SimulatedConnect) -> None:
    world.store.put("Connector", "copy", COPY)
    world.run()
    world.store.put("Connector", "copy", {**COPY, "config": {}})
    world.run()
    assert world.ready("Connector/copy").reason == "InvalidConfig"
    assert world.ready("Connector/copy").message == "spec.config[topic]: is required"
    assert api.connectors["copy"].config["topic"] == "orders"


@pytest.mark.parametrize("name", ["connector.class", "name", "tasks.max"])
def test_settings_that_are_fields_are_refused(name: str) -> None:
    (problem,) = problems("Connector", {**COPY, "config": {name: "1"}})
    assert problem.startswith(f"spec.config[{name}]: is set by the operator")


def test_paused_and_stopped_connectors_are_ready(world: Connect, api: SimulatedConnect) -> None:
    world.store.put("Connector", "copy", {**COPY, "state": "stopped"})
    world.run(4)
    assert world.ready("Connector/copy").reason == "Stopped"
    assert api.steps == ["create connector copy"]
    for state in ("paused", "running"):
        world.store.put("Connector", "copy", {**COPY, "state": state})
        world.run()
    assert api.steps[1:] == ["change connector copy to paused", "change connector copy to running"]
    assert world.ready("Connector/copy").status == "True"


def test_a_connector_that_someone_paused_by_the_rest_api_runs_again(
    world: Connect, api: SimulatedConnect
) -> None:
    world.store.put("Connector", "copy", COPY)
    world.run()
    api._change("copy", "paused")
    world.run()
    assert api.connectors["copy"].state == "RUNNING"


def test_a_restart_is_executed_once_for_each_request(world: Connect, api: SimulatedConnect) -> None:
    world.store.put("Connector", "copy", COPY)
    world.run()
    for value in ("one", "two"):
        world.store.put("Connector", "copy", COPY, annotations={"ottla.dev/restart-requested-at": value})
        world.run(4)
    restarts = [step for step in api.steps if step.startswith("restart")]
    assert restarts == ["restart connector copy: ottla.dev/restart-requested-at requests it"] * 2


def test_one_task_is_restarted_once_for_each_request(world: Connect, api: SimulatedConnect) -> None:
    world.store.put("Connector", "copy", {**COPY, "tasksMax": 2})
    world.run()
    for value in ("1", "1@one", "1@one", "0@two"):
        annotations = {"ottla.dev/restart-task-requested-at": value}
        world.store.put("Connector", "copy", {**COPY, "tasksMax": 2}, annotations=annotations)
        world.run(4)
        (note,) = world.store.items["Connector/copy"].notes() if value == "1" else ("must be TASK@TIME",)
        assert "must be TASK@TIME" in note
    restarts = [step for step in api.steps if step.startswith("restart")]
    assert restarts == ["restart task 1 of connector copy", "restart task 0 of connector copy"]


def test_offsets_of_a_stopped_connector_are_listed_altered_and_reset(
    world: Connect, api: SimulatedConnect
) -> None:
    def listed() -> list[tuple[str, int]]:
        return [(each.partition["file"], each.offset["at"]) for each in status_of(world).offsets]

    def apply(state: str, **alter: Any) -> None:
        more = {"alterOffsets": alter} if alter else {}
        world.store.put("Connector", "copy", {**COPY, "state": state, **more})
        world.run(4)

    apply("running")
    api.offsets["copy"] = {"a": 1, "b": 2}
    world.run(2)
    assert listed() == []
    offsets = [
        {"partition": {"file": "a"}, "offset": {"at": 7}},
        {"partition": {"file": "b"}},
    ]
    apply("running", requestId="1", offsets=offsets)
    assert [*world.store.items["Connector/copy"].notes()] == ["spec.alterOffsets waits for state: stopped"]
    assert api.offsets["copy"] == {"a": 1, "b": 2}
    apply("stopped", requestId="1", offsets=offsets)
    assert listed() == [("a", 7)]
    assert status_of(world).handled_offsets == "1"
    assert world.ready("Connector/copy").reason == "Stopped"
    api.offsets["copy"]["a"] = 9
    apply("running", requestId="1", offsets=offsets)
    apply("stopped", requestId="1", offsets=offsets)
    assert listed() == [("a", 9)], "a request is executed once"
    apply("stopped", requestId="2", reset=True)
    assert listed() == []
    assert api.steps[-1] == "reset the offsets of connector copy"


def test_offsets_of_a_running_connector_are_listed_on_request(world: Connect, api: SimulatedConnect) -> None:
    world.store.put("Connector", "copy", {**COPY, "listOffsets": True})
    api.offsets["copy"] = {"a": 1}
    world.run()
    assert status_of(world).offsets[0].offset == {"at": 1}


@pytest.mark.parametrize("alter", [{}, {"reset": False}, {"reset": True, "offsets": [{"partition": {}}]}])
def test_a_change_of_offsets_either_alters_or_resets(alter: dict[str, Any]) -> None:
    (problem,) = problems("Connector", {**COPY, "alterOffsets": {"requestId": "1", **alter}})
    assert problem == "spec.alterOffsets: either offsets or reset: true is required"


def test_a_failed_task_is_reported_with_its_causes(world: Connect, api: SimulatedConnect) -> None:
    world.store.put("Connector", "copy", {**COPY, "tasksMax": 3})
    world.run()
    api.fail_task("copy", TRACE)
    world.run(5)
    ready = world.ready("Connector/copy")
    assert ready.reason == "TaskFailed"
    assert ready.message == (
        "1 of 3 tasks have failed; task 0: org.apache.kafka.X: no Caused by: java.io.IOException: disk"
    )
    assert status_of(world).tasks[0].trace == TRACE
    assert not any(step.startswith("restart") for step in api.steps)


def test_a_connector_that_fails_repeatedly_is_restarted_with_a_back_off(
    world: Connect, api: SimulatedConnect
) -> None:
    assert [back_off_ms(count) // 60_000 for count in range(9)] == [0, 2, 6, 12, 20, 30, 42, 56, 60]
    world.store.put("Connector", "copy", {**COPY, "autoRestart": {"maxRestarts": 3}})
    world.run()
    minutes = []
    for minute in range(60):
        api.fail_task("copy", TRACE)
        before = len(api.steps)
        world.run(1, 60)
        minutes += [minute] * (len(api.steps) - before)
    assert minutes == [0, 2, 8]
    assert status_of(world).auto_restart.count == 3


def test_the_count_of_restarts_ends_after_a_time_without_failures(
    world: Connect, api: SimulatedConnect
) -> None:
    world.store.put("Connector", "copy", {**COPY, "autoRestart": {}})
    world.run()
    api.fail_task("copy", TRACE)
    world.run(1)
    assert status_of(world).auto_restart.count == 1
    world.run(1, 121)
    world.run(1)
    assert status_of(world).auto_restart is None


def test_a_deleted_connector_is_deleted_in_connect_first(world: Connect, api: SimulatedConnect) -> None:
    world.store.put("Connector", "copy", COPY)
    world.run()
    world.store.delete("Connector/copy", world.now_ms)
    world.run(1)
    assert api.steps[-1] == "delete connector copy"
    world.run(1)
    assert "Connector/copy" not in world.store.items


def test_a_deletion_does_not_wait_for_ever_for_workers(world: Connect, api: SimulatedConnect) -> None:
    world.store.put("Connector", "copy", COPY)
    world.run()
    api.reachable = False
    world.store.delete("Connector/copy", world.now_ms)
    world.run(3, 20)
    assert "Connector/copy" in world.store.items
    world.run(1)
    assert "Connector/copy" not in world.store.items


def test_a_deletion_without_a_connect_cluster_is_complete(world: Connect, api: SimulatedConnect) -> None:
    world.store.put("Connector", "copy", COPY)
    world.run()
    del world.store.items["ConnectCluster/main"]
    world.run()
    assert world.ready("Connector/copy").reason == "ConnectNotFound"
    world.store.delete("Connector/copy", world.now_ms)
    world.run(1)
    assert world.store.items == {}


def test_a_step_that_is_refused_is_tried_again(world: Connect, api: SimulatedConnect) -> None:
    world.store.put("Connector", "copy", COPY)
    api.refuses = "Rebalancing"
    world.run()
    assert world.ready("Connector/copy").reason == "Rebalancing"
    api.refuses = ""
    world.run()
    assert world.ready("Connector/copy").reason == "Running"


def test_a_paused_resource_changes_nothing(world: Connect, api: SimulatedConnect) -> None:
    world.store.put("Connector", "copy", COPY, annotations={"ottla.dev/pause-reconciliation": "true"})
    world.run()
    assert api.steps == []
