"""An API server in memory, with a BrokerCluster and what belongs to it, as the console reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ottla_console.cluster.kubernetes_api import OBJECTS_MAX, KubernetesError
from ottla_console.cluster.resources import Object

ROOT = "/apis/ottla.dev/v1alpha1/namespaces/kafka/"
BEGAN = "2026-01-31T12:00:00Z"


def condition(type_: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": BEGAN,
    }


def resource(kind: str, name: str, *conditions: dict[str, Any], cluster: str = "demo") -> dict[str, Any]:
    return {
        "kind": kind,
        "metadata": {"namespace": "kafka", "name": name, "generation": 1},
        "spec": {"clusterRef": {"name": cluster}},
        "status": {"observedGeneration": 1, "conditions": list(conditions)},
    }


def event(of: Object, reason: str, message: str, at: str = BEGAN, **fields: Any) -> dict[str, Any]:
    involved = {"kind": of["kind"], "name": of["metadata"]["name"], "apiVersion": "ottla.dev/v1alpha1"}
    return {
        "kind": "Event",
        "metadata": {},
        "involvedObject": involved,
        "reason": reason,
        "message": message,
        "lastTimestamp": at,
        **fields,
    }


ROLLING: dict[str, Any] = {
    "observedGeneration": 4,
    "rollout": {"id": "roll-1", "targetHash": "abc", "updated": 1, "total": 3, "startedAt": BEGAN},
    "reassignment": {"id": "m", "reason": "ScaleUp", "moved": 6, "total": 24, "startedAt": BEGAN},
    "brokers": [
        {"id": 0, "podName": "demo-brokers-0", "state": "Running", "ready": True},
        {
            "id": 1,
            "podName": "demo-brokers-1",
            "state": "Running",
            "ready": True,
            "restartReasons": ["num.io.threads"],
            "waitingFor": "broker 2, which is starting on revision abc",
        },
        {"id": 2, "podName": "fast-2", "pool": "fast", "state": "Starting", "ready": False},
    ],
    "zookeeper": {
        "targetHash": "z",
        "updated": 1,
        "total": 1,
        "servers": [{"id": 0, "podName": "demo-zookeeper-0", "ready": True, "role": "leader"}],
    },
    "conditions": [
        condition("Ready", "False", "Rolling", "1 of 3 brokers are updated; broker 1 waits for broker 2"),
        condition("Available", "True", "AllPartitionsOnline"),
        condition(
            "FullyReplicated", "False", "UnderReplicated", "2 partitions (a-0, a-1) are under-replicated"
        ),
        condition("Rolling", "True", "Rolling", "1 of 3 brokers are updated"),
    ],
}


class FakeKubernetes:
    """`objects` by the path of their list; `fail`: what every request raises."""

    def __init__(self) -> None:
        cluster = {**resource("BrokerCluster", "demo"), "spec": {"replicas": 3}, "status": ROLLING}
        cluster["metadata"] = {"namespace": "kafka", "name": "demo", "generation": 4}
        orders = resource("Topic", "orders", condition("Ready", "True", "Created"))
        lost = resource("Topic", "lost", condition("Ready", "False", "Invalid", "partitions cannot shrink"))
        self.objects: dict[str, list[Any]] = {
            ROOT + "brokerclusters": [cluster],
            ROOT + "topics": [orders, lost, resource("Topic", "foreign", cluster="other")],
            ROOT + "users": [
                {"kind": "User", "metadata": {"name": "new"}, "spec": {"clusterRef": {"name": "demo"}}}
            ],
            "/api/v1/namespaces/kafka/events": [
                event(cluster, "RollStarted", "the roll to revision abc began"),
                event(
                    lost,
                    "Invalid",
                    "partitions cannot shrink",
                    "2026-01-31T12:01:00Z",
                    type="Warning",
                    count=3,
                ),
                event(resource("Topic", "foreign"), "Created", "of another cluster"),
            ],
        }
        self.fail: KubernetesError | None = None
        self.requests: list[str] = []
        self.closed = False

    async def get(self, path: str) -> Object:
        self._called(path)
        folder, _, name = path.rpartition("/")
        for each in self.objects.get(folder, ()):
            if each["metadata"]["name"] == name:
                return each
        raise KubernetesError(404, f"{name} not found")

    async def list(self, path: str, selector: str = "", most: int = OBJECTS_MAX) -> Sequence[Object]:
        self._called(path)
        if path not in self.objects:
            raise KubernetesError(404, "the server could not find the requested resource")
        return self.objects[path]

    def _called(self, path: str) -> None:
        self.requests.append(path)
        if self.fail is not None:
            raise self.fail

    async def close(self) -> None:
        self.closed = True
