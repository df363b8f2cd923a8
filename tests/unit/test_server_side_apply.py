"""The owners of fields in the fake API server are those that a Kubernetes 1.35 has for the same requests."""

from __future__ import annotations

import copy
import json
from typing import Any

from ottla_operator.kubernetes import managed_fields
from tests.worlds.server_side_apply import applied, updated

Item = dict[str, Any]

OURS, AT = "ottla-operator", "2026-11-27T09:52:06Z"
SELECTOR = {"matchLabels": {"app": "x"}}
SERVICE: Item = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "s", "namespace": "n", "labels": {"a": "b"}},
    "spec": {
        "selector": {"app": "x"},
        "ports": [{"name": "plain", "port": 9092, "targetPort": 9092, "protocol": "TCP"}],
    },
}
SET: Item = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "t", "namespace": "n"},
    "spec": {
        "selector": SELECTOR,
        "template": {
            "metadata": {"annotations": {"mine": "yes"}},
            "spec": {
                "containers": [
                    {
                        "name": "broker",
                        "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                        "ports": [{"name": "p", "containerPort": 9092, "protocol": "TCP"}],
                        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                    }
                ],
                "volumes": [{"name": "tmp", "emptyDir": {}}],
            },
        },
        "volumeClaimTemplates": [{"metadata": {"name": "data"}}],
    },
}
# As the API server wrote them.
PORT_9093 = (
    '{"f:spec":{"f:ports":{"k:{\\"port\\":9093,\\"protocol\\":\\"TCP\\"}":{".":{},"f:name":{},"f:port":{},'
    '"f:protocol":{},"f:targetPort":{}}},"f:selector":{}}}'
)
ADDED = (
    '{"f:spec":{"f:template":{"f:metadata":{"f:annotations":{"f:o":{}}},"f:spec":{"f:containers":'
    '{"k:{\\"name\\":\\"broker\\"}":{"f:env":{"k:{\\"name\\":\\"B\\"}":{".":{},"f:name":{},"f:value":{}}},"f:ports":'
    '{"k:{\\"containerPort\\":1,\\"protocol\\":\\"TCP\\"}":{".":{},"f:containerPort":{},"f:name":{},"f:protocol":{}}}}},'
    '"f:nodeSelector":{},"f:volumes":{"k:{\\"name\\":\\"v2\\"}":{".":{},"f:emptyDir":{},"f:name":{}}}}}}}'
)
APPLIED_SET = (
    '{"f:spec":{"f:selector":{},"f:template":{"f:metadata":{"f:annotations":{"f:mine":{}}},"f:spec":{"f:containers":'
    '{"k:{\\"name\\":\\"broker\\"}":{".":{},"f:env":{"k:{\\"name\\":\\"A\\"}":{".":{},"f:name":{},"f:valueFrom":'
    '{"f:fieldRef":{}}}},"f:name":{},"f:ports":{"k:{\\"containerPort\\":9092,\\"protocol\\":\\"TCP\\"}":{".":{},'
    '"f:containerPort":{},"f:name":{},"f:protocol":{}}},"f:volumeMounts":{"k:{\\"mountPath\\":\\"/tmp\\"}":{".":{},'
    '"f:mountPath":{},"f:name":{}}}}},"f:volumes":{"k:{\\"name\\":\\"tmp\\"}":{".":{},"f:emptyDir":{},"f:name":{}}}}},'
    '"f:volumeClaimTemplates":{}}}'
)


def owners(item: Item) -> dict[tuple[str, str], Item]:
    entries = item["metadata"]["managedFields"]
    return {(each["manager"], each["operation"]): each["fieldsV1"] for each in entries}


def edited_service() -> Item:
    before = applied(None, SERVICE, OURS, AT)
    after = copy.deepcopy(before)
    after["spec"]["selector"]["extra"] = "1"
    after["spec"]["ports"][0]["port"] = 9093
    return updated(before, after, "kubectl-patch", AT)


def edited_set() -> Item:
    before = applied(None, SET, OURS, AT)
    after = copy.deepcopy(before)
    template = after["spec"]["template"]
    template["metadata"]["annotations"]["o"] = "1"
    template["spec"]["nodeSelector"] = {"d": "e"}
    template["spec"]["volumes"].insert(0, {"name": "v2", "emptyDir": {}})
    [container] = template["spec"]["containers"]
    container["env"].insert(0, {"name": "B", "value": "1"})
    container["ports"].insert(0, {"name": "q", "containerPort": 1, "protocol": "TCP"})
    return updated(before, after, "kubectl-patch", AT)


def test_an_edited_list_key_and_a_selector_belong_to_the_editor() -> None:
    assert owners(edited_service()) == {
        (OURS, "Apply"): {"f:metadata": {"f:labels": {"f:a": {}}}},
        ("kubectl-patch", "Update"): json.loads(PORT_9093),
    }


def test_added_fields_belong_to_the_editor() -> None:
    assert owners(edited_set()) == {
        (OURS, "Apply"): json.loads(APPLIED_SET),
        ("kubectl-patch", "Update"): json.loads(ADDED),
    }


def test_an_apply_after_a_takeover_restores_the_object() -> None:
    """Without the takeover, the apply would add a second port of the same name."""
    for live, manifest in ((edited_service(), SERVICE), (edited_set(), SET)):
        kept = applied(live, manifest, OURS, AT)
        assert kept["spec"] != manifest["spec"]
        live["metadata"]["managedFields"] = managed_fields.taken_over(
            live, managed_fields.foreign_fields(live)
        )
        assert set(owners(live)) == {(OURS, "Apply")}
        assert applied(live, manifest, OURS, AT)["spec"] == manifest["spec"]
