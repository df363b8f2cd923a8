"""Conversion of listed pods and ConfigMaps to BrokerInstances and ZooKeeperState."""

from __future__ import annotations

from typing import Any

import pytest

from ottla_operator.conditions import parse_iso_time
from ottla_operator.kubernetes import naming, observing
from ottla_operator.kubernetes.observing import Listed
from ottla_operator.planning.observed import BrokerInstance
from ottla_operator.planning.rolling import CRASHES_MAX

CREATED, READY_AT = "2026-01-01T10:00:00Z", "2026-01-01T10:00:09Z"


def a_pod(
    ordinal: int = 0,
    *,
    uid: str = "p-1",
    state: dict[str, Any] | None = None,
    ready: bool = False,
    deleting: bool = False,
    component: str = naming.BROKER,
    revision: str = "",
    **seen: Any,
) -> dict[str, Any]:
    prefix = "demo-brokers" if component == naming.BROKER else "demo-zookeeper"
    metadata: dict[str, Any] = {
        "name": f"{prefix}-{ordinal}",
        "uid": uid,
        "creationTimestamp": CREATED,
        "labels": {**naming.labels("demo", component), "controller-revision-hash": revision},
    }
    if deleting:
        metadata["deletionTimestamp"] = READY_AT
    conditions = [{"type": "Ready", "status": str(ready), "lastTransitionTime": READY_AT}]
    container = {"name": component, "state": state or {}, "restartCount": 0, **seen}
    return {"metadata": metadata, "status": {"conditions": conditions, "containerStatuses": [container]}}


def a_running_pod(ordinal: int = 0, **more: Any) -> dict[str, Any]:
    return a_pod(ordinal, state={"running": {"startedAt": CREATED}}, ready=True, started=True, **more)


def a_config(config_hash: str = "h1", annotations: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "demo-broker-0",
            "labels": naming.labels("demo", naming.BROKER),
            "annotations": {
                naming.HASH_ANNOTATION: config_hash,
                naming.SETTINGS_ANNOTATION: '{"a": "1"}',
                **(annotations or {}),
            },
        }
    }


def the_broker(
    pod: dict[str, Any] | None, config: dict[str, Any] | None, known: dict[int, str] | None = None
) -> BrokerInstance:
    listed = Listed.of({"Pod": [pod] if pod else [], "ConfigMap": [config] if config else []})
    return observing.broker_instances(listed, "demo", known)[0]


def test_a_ready_pod_is_a_broker_in_service() -> None:
    broker = the_broker(a_running_pod(), a_config())
    assert (broker.state, broker.ready, broker.crashes) == ("Running", True, 0)
    assert broker.ready_since_ms == parse_iso_time(READY_AT)
    assert broker.started_at_ms == parse_iso_time(CREATED)
    assert (broker.config_hash, broker.settings) == ("h1", {"a": "1"})
    assert broker.name == "demo-brokers-0"


def test_a_broker_without_a_pod_is_stopped_and_was_not_stopped_by_us() -> None:
    broker = the_broker(None, a_config())
    assert (broker.state, broker.stopped_by_us, broker.config_hash) == ("Stopped", False, "h1")


def test_a_pod_that_is_being_deleted_is_stopping_although_it_is_ready() -> None:
    broker = the_broker(a_running_pod(deleting=True), a_config())
    assert (broker.state, broker.ready) == ("Stopping", False)


def test_log_recovery_is_distinguished_from_a_broker_that_stopped_responding() -> None:
    running = {"running": {"startedAt": CREATED}}
    recovering = the_broker(a_pod(state=running, started=False), a_config())
    assert (recovering.state, recovering.process_started) == ("Starting", True)
    broker = the_broker(a_pod(state=running, started=True), a_config())
    assert (broker.state, broker.ready, broker.message) == ("Running", False, "the pod is not ready")


def test_a_crash_has_its_cause() -> None:
    last = {"terminated": {"exitCode": 1, "message": "10:00 INFO    x: hm\n10:00 ERROR   x: no space\n"}}
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    broker = the_broker(a_pod(state=waiting, lastState=last, restartCount=3), a_config())
    assert (broker.state, broker.crashes) == ("Crashed", 3)
    assert broker.message == "ended with code 1: x: no space"


def test_an_oom_kill_is_named() -> None:
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    assert the_broker(a_pod(state=ended), a_config()).message == "was killed for lack of memory (OOMKilled)"


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull"])
def test_an_image_that_cannot_be_pulled_stalls_a_roll_at_once(reason: str) -> None:
    waiting = {"waiting": {"reason": reason, "message": "no such image"}}
    broker = the_broker(a_pod(state=waiting, image="ottla:bad"), a_config())
    assert (broker.state, broker.message) == ("Crashed", "the image ottla:bad cannot be pulled")
    assert broker.crashes >= CRASHES_MAX


def test_an_unschedulable_pod_has_the_schedulers_message() -> None:
    pod = a_pod()
    pod["status"]["conditions"].append(
        {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    )
    broker = the_broker(pod, a_config())
    assert (broker.state, broker.message) == ("Starting", "0/3 nodes are available")
    assert not broker.process_started


def test_a_pod_that_no_scheduler_has_handled_names_the_scheduler() -> None:
    pod = a_pod()
    pod["spec"] = {"schedulerName": "edited"}
    message = "no scheduler has handled the pod, whose schedulerName is 'edited'"
    assert the_broker(pod, a_config()).message == message
    pod["spec"]["nodeName"] = "node-1"
    assert the_broker(pod, a_config()).message == ""
    del pod["spec"]["nodeName"]
    pod["status"]["conditions"].append({"type": "PodScheduled", "status": "True"})
    assert the_broker(pod, a_config()).message == ""


def test_a_restarted_container_has_the_full_timeout() -> None:
    again = {"running": {"startedAt": "2026-01-02T00:00:00Z"}}
    broker = the_broker(a_pod(state=again, started=False, restartCount=1), a_config())
    assert broker.started_at_ms == parse_iso_time("2026-01-02T00:00:00Z")


def test_crashes_before_the_pod_was_ready_do_not_count() -> None:
    assert the_broker(a_running_pod(restartCount=7), a_config()).crashes == 0


def test_a_pod_to_be_replaced_has_the_replaced_revision() -> None:
    config = a_config(
        "new",
        {
            naming.REPLACES_ANNOTATION: "old-pod",
            naming.REPLACED_HASH_ANNOTATION: "old",
            naming.REPLACED_SETTINGS_ANNOTATION: '{"a": "0"}',
        },
    )
    before = the_broker(a_running_pod(uid="old-pod"), config)
    assert (before.config_hash, before.settings) == ("old", {"a": "0"})
    after = the_broker(a_running_pod(uid="new-pod"), config)
    assert (after.config_hash, after.settings) == ("new", {"a": "1"})


def test_a_pod_without_a_config_map_has_the_revision_of_the_status() -> None:
    assert the_broker(a_running_pod(), None, {0: "h7"}).config_hash == "h7"
    assert the_broker(a_running_pod(), None).config_hash == observing.UNKNOWN_HASH


def test_pods_of_other_components_are_no_brokers() -> None:
    strange = a_running_pod()
    strange["metadata"]["name"] = "demo-brokers-debug-0"
    zookeeper = a_running_pod(component=naming.ZOOKEEPER)
    listed = Listed.of({"Pod": [strange, zookeeper], "ConfigMap": []})
    assert observing.broker_instances(listed, "demo") == {}


# ---- ZooKeeper


def members(*ready: bool) -> Listed:
    pods = [
        a_running_pod(n, component=naming.ZOOKEEPER) if up else a_pod(n, component=naming.ZOOKEEPER)
        for n, up in enumerate(ready)
    ]
    return Listed.of({"Pod": pods})


@pytest.mark.parametrize(
    ("ready", "running"),
    [((True, True, False), True), ((True, False, False), False), ((True,), True), ((), False)],
)
def test_zookeeper_is_running_with_a_ready_majority(ready: tuple[bool, ...], running: bool) -> None:
    wanted = max(len(ready), 1)
    state = observing.zookeeper_state(members(*ready), "demo", wanted, "zk:2181")
    assert state.running is running
    assert bool(state.message) is not running
