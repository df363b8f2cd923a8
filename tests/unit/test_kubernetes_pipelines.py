"""Pipelines on Kubernetes: the objects of a driver, its single pod, and its observed state."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ottla_operator.kubernetes import manifests_pipelines, naming
from ottla_operator.kubernetes.drivers import driver_instance
from ottla_operator.kubernetes.manifests_common import Images
from ottla_operator.kubernetes.observing import Listed
from ottla_operator.planning.pipeline_config import DriverLaunch, Login
from ottla_operator.resources import Pipeline
from ottla_operator.resources.loading import parse_resource
from tests.worlds.kubernetes_simulation import KubernetesSimulation

IMAGES = Images("ottla:1", "ottla:1", "Never", "ottla-spark:1", "driver-role")
LAUNCH = DriverLaunch("abc", "demo-bootstrap.shop.svc:9092")
STORED = {"size": "1Gi", "deleteClaim": True}


def a_pipeline(**spec: Any) -> Pipeline:
    metadata = {"name": "lake", "namespace": "shop", "uid": "u-1", "generation": 1}
    content = {"clusterRef": {"name": "demo"}, "job": "lake", "storage": STORED, **spec}
    pipeline, problems = parse_resource("Pipeline", metadata, content)
    assert isinstance(pipeline, Pipeline), problems
    return pipeline


def by_kind(pipeline: Pipeline, launch: DriverLaunch = LAUNCH) -> dict[str, dict[str, Any]]:
    return {item["kind"]: item for item in manifests_pipelines.build_all(pipeline, IMAGES, launch)}


def config_of(pipeline: Pipeline, launch: DriverLaunch = LAUNCH) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(by_kind(pipeline, launch)["ConfigMap"]["data"]["pipeline.yaml"])
    return found


# ---- manifests


def test_all_objects_are_owned_by_the_pipeline_and_labelled() -> None:
    for manifest in by_kind(a_pipeline()).values():
        metadata = manifest["metadata"]
        assert (metadata["name"], metadata["namespace"]) == ("lake-driver", "shop")
        assert metadata["ownerReferences"][0]["uid"] == "u-1"
        assert metadata["labels"][naming.CLUSTER_LABEL] == "demo"
        assert metadata["labels"][naming.PIPELINE_LABEL] == "lake"


def test_executors_reach_the_driver_by_its_dns_name() -> None:
    objects = by_kind(a_pipeline(executor={"instances": 2, "resources": {"requests": {"cpu": "1500m"}}}))
    container = objects["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]
    command = container["command"]
    assert command[2:4] == ["ottla-pipeline", "lake"]
    assert command[command.index("--master") + 1] == "k8s://https://kubernetes.default.svc"
    settings = config_of(a_pipeline(executor={"instances": 2}))["spark"]["settings"]
    assert settings["spark.driver.host"] == "lake-driver-0.lake-driver.shop.svc"
    assert settings["spark.kubernetes.driver.pod.name"] == "lake-driver-0"
    assert settings["spark.executor.instances"] == "2"
    assert settings["spark.kubernetes.container.image"] == "ottla-spark:1"
    assert (
        int(settings["spark.executor.memory"][:-1]) + int(settings["spark.executor.memoryOverhead"][:-1])
        == 1024
    )
    assert objects["Service"]["spec"]["publishNotReadyAddresses"] is True
    assert objects["RoleBinding"]["roleRef"]["name"] == "driver-role"


def test_without_executors_the_driver_has_no_role_binding() -> None:
    objects = by_kind(a_pipeline(executor={"instances": 0}))
    command = objects["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[command.index("--master") + 1] == "local[*]"
    assert "RoleBinding" not in objects


def test_driver_and_executors_share_the_volume() -> None:
    objects = by_kind(a_pipeline())
    spec = objects["StatefulSet"]["spec"]
    assert spec["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] == "1Gi"
    assert "persistentVolumeClaimRetentionPolicy" not in spec, "a StatefulSet may be deleted by hand"
    assert spec["template"]["spec"]["containers"][0]["workingDir"] == "/var/lib/ottla"
    assert config_of(a_pipeline())["checkpoint"] == "/var/lib/ottla/checkpoint"
    template = json.loads(objects["ConfigMap"]["data"]["executor.yaml"])
    claims = [volume.get("persistentVolumeClaim") for volume in template["spec"]["volumes"]]
    assert {"claimName": "data-lake-driver-0"} in claims
    assert template["spec"]["automountServiceAccountToken"] is False


def test_without_storage_there_is_no_default_checkpoint() -> None:
    pipeline = a_pipeline(storage=None)
    assert "checkpoint" not in config_of(pipeline)
    assert "volumeClaimTemplates" not in by_kind(pipeline)["StatefulSet"]["spec"]


def test_credentials_are_mounted_and_not_in_the_configuration() -> None:
    launch = DriverLaunch("abc", "x:1", Login("scram-sha-512", True, "alice", "alice", "1", "demo-ca"))
    spec = by_kind(a_pipeline(), launch)["StatefulSet"]["spec"]["template"]["spec"]
    mounted = {volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume}
    assert mounted == {"alice", "demo-ca"}
    assert (
        config_of(a_pipeline(), launch)["kafka"]["sasl"]["passwordFile"]
        == "/etc/ottla-secrets/alice/password"
    )


def test_pod_templates_are_merged_into_driver_and_executors() -> None:
    pod = {"spec": {"nodeSelector": {"disk": "fast"}}}
    objects = by_kind(a_pipeline(driver={"template": {"pod": pod}}, executor={"template": {"pod": pod}}))
    template = json.loads(objects["ConfigMap"]["data"]["executor.yaml"])
    driver = objects["StatefulSet"]["spec"]["template"]
    assert template["spec"]["nodeSelector"] == driver["spec"]["nodeSelector"] == {"disk": "fast"}


def test_a_users_file_is_mounted_where_the_configuration_names_it() -> None:
    mount = {"name": "jobs", "mountPath": "/opt/jobs", "readOnly": True}
    volume = {"name": "jobs", "configMap": {"name": "jobs"}}
    pod = {"spec": {"containers": [{"name": "driver", "volumeMounts": [mount]}], "volumes": [volume]}}
    pipeline = a_pipeline(
        job="python", config={"function": "/opt/jobs/totals.py:totals"}, driver={"template": {"pod": pod}}
    )
    assert list(pipeline.problems()) == []
    template = by_kind(pipeline)["StatefulSet"]["spec"]["template"]["spec"]
    container = template["containers"][0]
    assert container["command"][2:4] == ["ottla-pipeline", "python"]
    assert mount in container["volumeMounts"]
    assert volume in template["volumes"]
    assert config_of(pipeline)["function"] == "/opt/jobs/totals.py:totals"


def test_a_function_in_the_spec_is_passed_on_unchanged() -> None:
    source = "def totals(job):\n    pass\n"
    pipeline = a_pipeline(job="python", config={"function": "totals", "source": source})
    assert config_of(pipeline)["source"] == source


# ---- observed state


def listed(pod: dict[str, Any] | None, replicas: int = 1) -> Listed:
    template = {"metadata": {"annotations": {naming.HASH_ANNOTATION: "abc"}}}
    stateful_set = {"metadata": {"name": "lake-driver"}, "spec": {"replicas": replicas, "template": template}}
    metadata = {"name": "lake-driver-0", "uid": "u", **template["metadata"]}
    pods = [] if pod is None else [{"metadata": {**metadata, **pod.pop("metadata", {})}, "status": pod}]
    return Listed.of({"StatefulSet": [stateful_set], "Pod": pods})


def container(**seen: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "driver", "restartCount": 2, **seen}]}


CRASH = {"exitCode": 2, "message": "lake: pipeline.yaml: a: is missing\n"}
RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


@pytest.mark.parametrize(
    ("pod", "replicas", "state", "code", "message"),
    [
        (None, 0, "Stopped", None, ""),
        (None, 1, "Starting", None, ""),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, 1, "Stopping", None, ""),
        (
            container(state={"waiting": {"reason": "ErrImagePull"}}),
            1,
            "Crashed",
            None,
            "the image  cannot be pulled",
        ),
        (
            container(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState={"terminated": CRASH}),
            *(1, "Crashed", 2, "ended with code 2: lake: pipeline.yaml: a: is missing"),
        ),
        (
            {
                **container(
                    state=RUNNING, started=True, lastState={"terminated": {**CRASH, "exitCode": 137}}
                ),
                "conditions": [{"type": "Ready", "status": "True"}],
            },
            *(1, "Running", 137, "ended with code 137: lake: pipeline.yaml: a: is missing"),
        ),
        (
            container(
                state={"waiting": {"reason": "CrashLoopBackOff"}},
                lastState={"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
            ),
            *(
                1,
                "Crashed",
                137,
                "was killed by the kernel for lack of memory (OOMKilled); see spec.driver.resources",
            ),
        ),
    ],
)
def test_the_state_of_a_driver_is_read_from_its_pod(
    pod: dict[str, Any] | None, replicas: int, state: str, code: int | None, message: str
) -> None:
    seen = driver_instance(listed(pod, replicas), "lake", None)
    assert (seen.state, seen.exit_code, seen.message) == (state, code, message)
    assert seen.revision == ("" if state == "Stopped" else "abc")
    assert seen.backing_off


# ---- with reconciler and simulated API server


SPEC = {"clusterRef": {"name": "demo"}, "job": "lake", "storage": STORED, "config": {"x": 1}}


def hash_of_pod(sim: KubernetesSimulation) -> str:
    pod = sim.api.items.get(("Pod", "lake-driver-0"))
    return "" if pod is None else str(pod["metadata"]["annotations"][naming.HASH_ANNOTATION])


@pytest.fixture
def sim() -> KubernetesSimulation:
    sim = KubernetesSimulation()
    sim.apply_cluster(replicas=1)
    sim.api.apply_resource("Pipeline", "lake", SPEC)
    sim.reconcile_until(lambda: hash_of_pod(sim) != "")
    return sim


def test_a_change_replaces_the_pod_and_suspend_deletes_it(sim: KubernetesSimulation) -> None:
    first = hash_of_pod(sim)
    sim.api.apply_resource("Pipeline", "lake", {**SPEC, "config": {"x": 2}})
    sim.reconcile_until(lambda: hash_of_pod(sim) not in ("", first))
    sim.api.apply_resource("Pipeline", "lake", {**SPEC, "suspend": True})
    sim.reconcile_until(lambda: sim.condition(kind="Pipeline", name="lake") == ("True", "Suspended"))
    assert hash_of_pod(sim) == ""
    sim.api.apply_resource("Pipeline", "lake", SPEC)
    sim.reconcile_until(lambda: hash_of_pod(sim) == first)


def test_rollout_restart_replaces_the_pod_once(sim: KubernetesSimulation) -> None:
    def uid() -> str:
        return str(sim.api.items.get(("Pod", "lake-driver-0"), {"metadata": {"uid": ""}})["metadata"]["uid"])

    first, key = uid(), naming.RESTARTED_AT_ANNOTATION
    annotations = sim.api.items["StatefulSet", "lake-driver"]["spec"]["template"]["metadata"]["annotations"]
    annotations[key] = "2026-11-27T10:00:00Z"
    sim.reconcile_until(lambda: uid() not in ("", first))
    for _ in range(3):
        sim.reconcile()
    second = uid()
    for _ in range(2):
        template = sim.api.items["StatefulSet", "lake-driver"]["spec"]["template"]
        assert template["metadata"]["annotations"].pop(key) == "2026-11-27T10:00:00Z"
        for _ in range(5):
            sim.reconcile()
        assert uid() == second, "its removal restarts nothing"


def test_a_deleted_object_is_created_again(sim: KubernetesSimulation) -> None:
    for kind in ("ConfigMap", "Service", "ServiceAccount", "RoleBinding"):
        sim.api.delete_resource(kind, "lake-driver")
        assert "lake-driver" not in sim.api.names(kind)
    sim.reconcile()
    for kind in ("ConfigMap", "Service", "ServiceAccount", "RoleBinding"):
        assert "lake-driver" in sim.api.names(kind)


def test_a_deleted_pipeline_leaves_no_objects(sim: KubernetesSimulation) -> None:
    sim.api.delete_resource("Pipeline", "lake")
    sim.reconcile_until(lambda: ("Pipeline", "lake") not in sim.api.items)
    sim.api.tick()
    assert not [key for key in sim.api.items if key[1].startswith("lake-driver")]


def test_delete_claim_has_the_volume_deleted_with_the_pipeline_only(sim: KubernetesSimulation) -> None:
    def owners() -> list[str]:
        claim = sim.api.items["PersistentVolumeClaim", "data-lake-driver-0"]
        return [owner["kind"] for owner in claim["metadata"].get("ownerReferences", ())]

    sim.reconcile_until(lambda: owners() == ["Pipeline"])
    sim.api.delete_resource("StatefulSet", "lake-driver")
    sim.api.tick()
    assert ("PersistentVolumeClaim", "data-lake-driver-0") in sim.api.items
    sim.api.apply_resource("Pipeline", "lake", {**SPEC, "storage": {"size": "1Gi"}})
    sim.reconcile_until(lambda: owners() == [])
