"""A BrokerCluster on Kubernetes: creation, changes and observation by tests."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from tests.e2e.kube import Kube, Object, stage_of, wait_for

TAG = os.environ.get("OTTLA_E2E_TAG", "dev")
"""Of the images, where several trees share a cluster."""
IMAGE = f"ottla:{TAG}"
SPARK_IMAGE = f"ottla-spark:{TAG}"
CONNECT_IMAGE = f"ottla-connect:{TAG}"
SYSTEM = os.environ.get("OTTLA_E2E_SYSTEM", "ottla-system")
"""The namespace of the operator."""
NAMESPACE = os.environ.get("OTTLA_E2E_NAMESPACE", "ottla-e2e")
CHILD_KINDS = (
    "statefulset",
    "configmap",
    "service",
    "serviceaccount",
    "poddisruptionbudget",
    "networkpolicy",
)


def cluster_spec(**more: Any) -> Object:
    """A spec with small resources, without `replicas`."""
    return {
        "config": {
            "min.insync.replicas": 2,
            "default.replication.factor": 3,
            "offsets.topic.replication.factor": 3,
            "offsets.topic.num.partitions": 4,
        },
        "storage": {"size": "256Mi", "deleteClaim": True},
        "zookeeper": {"managed": {"replicas": 3, "storage": {"size": "128Mi", "deleteClaim": True}}},
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        "template": {"pod": {"spec": {"terminationGracePeriodSeconds": 30}}},
        "rollingUpdate": {"minReadySeconds": 1, "timeout": "3m"},
        **more,
    }


class Cluster:
    def __init__(self, kube: Kube, namespace: str, name: str) -> None:
        self.kube, self.namespace, self.name = kube, namespace, name

    # ---- resources

    def resource(self, kind: str, name: str, spec: Mapping[str, Any]) -> Object:
        return {
            "apiVersion": "ottla.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": dict(spec),
        }

    def create(self, spec: Mapping[str, Any]) -> None:
        self.kube.apply(self.resource("BrokerCluster", self.name, spec))

    def create_topic(
        self, name: str, *, partitions: int = 6, replicas: int = 3, timeout_s: float = 60
    ) -> None:
        spec = {"clusterRef": {"name": self.name}, "partitions": partitions, "replicas": replicas}
        self.kube.apply(self.resource("Topic", name, spec))
        wait_for(f"topic {name} is Ready", lambda: self.is_ready("topic", name), timeout_s)

    def patch(self, spec: Mapping[str, Any]) -> None:
        self.kube.patch("brokercluster", self.name, self.namespace, {"spec": dict(spec)})

    def as_in_the_chart(self) -> None:
        """Undoes the changes of tests."""
        changed = dict.fromkeys(("queued.max.requests", "num.io.threads", "log.retention.ms"))
        pod = {"metadata": None, "spec": {"volumes": None}}
        self.patch(
            {
                "replicas": 3,
                "image": None,
                "config": changed,
                "template": {"pod": pod},
                "zookeeper": {"managed": {"heap": None}},
                "rollingUpdate": {"strategy": None},
            }
        )

    def annotate(self, name: str, value: str | None) -> None:
        """Sets an annotation; None removes it."""
        self.kube.patch(
            "brokercluster", self.name, self.namespace, {"metadata": {"annotations": {name: value}}}
        )

    def scale(self, replicas: int) -> None:
        self.kube.kubectl("scale", "brokercluster", self.name, "-n", self.namespace, f"--replicas={replicas}")

    # ---- looking

    @property
    def spec(self) -> Object:
        found = self.kube.get("brokercluster", self.name, self.namespace) or {}
        return dict(found["spec"])

    @property
    def status(self) -> Object:
        found = self.kube.get("brokercluster", self.name, self.namespace)
        return (found or {}).get("status") or {}

    def condition(self, type_: str, kind: str = "brokercluster", name: str = "") -> Object:
        """The condition; empty when there is none, or when it is about an older spec."""
        found = self.kube.get(kind, name or self.name, self.namespace) or {}
        for condition in (found.get("status") or {}).get("conditions") or ():
            current = condition["observedGeneration"] == found["metadata"]["generation"]
            if condition["type"] == type_ and current:
                return dict(condition)
        return {}

    def is_ready(self, kind: str = "brokercluster", name: str = "") -> bool:
        return self.condition("Ready", kind, name).get("status") == "True"

    def wait_ready(self, timeout_s: float = 240) -> float:
        """Waits until the cluster is Ready with all brokers and the present spec; returns the seconds."""
        began = time.monotonic()
        last: list[str] = [""]

        def ready() -> bool:
            condition = self.condition("Ready")
            last[0] = f"{condition.get('reason')}: {condition.get('message')}"
            return condition.get("status") == "True"

        try:
            wait_for(f"{self.name} is Ready", ready, timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; {last[0]}") from None
        return time.monotonic() - began

    def wait_rolled(self, before: Mapping[str, str], timeout_s: float) -> float:
        """Waits until every broker's pod is new and Ready; returns the seconds."""
        began = time.monotonic()

        def replaced() -> bool:
            now = self.brokers()
            return set(now) == set(before) and not set(now.values()) & set(before.values())

        wait_for("every pod is a new one", replaced, timeout_s)
        self.wait_ready(timeout_s)
        return time.monotonic() - began

    def is_in_sync(self) -> bool:
        return self.condition("FullyReplicated").get("status") == "True"

    def holds_replicas(self, broker: int, topic: str = "events") -> bool:
        address = self.status["bootstrapServers"]
        text = self.in_pod("ottla", "topics", "describe", topic, "-b", address, "-o", "json")
        return broker in _replicas(json.loads(text))

    def brokers(self) -> dict[str, str]:
        """Names and uids of the brokers' pods."""
        return self._pods("broker")

    def zookeepers(self) -> dict[str, str]:
        return self._pods("zookeeper")

    def stages(self, component: str = "broker") -> dict[str, str]:
        """The stage of each pod, by name."""
        return {pod["metadata"]["name"]: stage_of(pod) for pod in self._listed(component)}

    def stages_by_uid(self) -> dict[str, str]:
        """The stage of each broker's pod, by uid."""
        return {pod["metadata"]["uid"]: stage_of(pod) for pod in self._listed("broker")}

    def _pods(self, component: str) -> dict[str, str]:
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self._listed(component)}

    def _listed(self, component: str) -> list[Object]:
        selector = f"ottla.dev/cluster={self.name},ottla.dev/component={component}"
        return self.kube.list("pod", self.namespace, selector)

    def children(self) -> list[tuple[str, str, str]]:
        """(kind, name, uid) of everything that the operator applies."""
        return [
            (kind, item["metadata"]["name"], item["metadata"]["uid"])
            for kind in CHILD_KINDS
            for item in self.kube.list(kind, self.namespace, f"ottla.dev/cluster={self.name}")
        ]

    def broker_addresses(self) -> str:
        """Addresses of the first three brokers by name: a node cannot always reach cluster IPs."""
        service = f"{self.name}-brokers"
        return ",".join(f"{service}-{broker}.{service}.{self.namespace}.svc:9092" for broker in range(3))

    def in_pod(self, *command: str, broker: int = 0) -> str:
        pod = f"{self.name}-brokers-{broker}"
        return self.kube.kubectl("exec", pod, "-n", self.namespace, "-c", "broker", "--", *command)


def _replicas(described: object) -> set[int]:
    """Whatever stands under `replicas`, at any depth."""
    if isinstance(described, dict):
        here = described.get("replicas")
        own = set(here) if isinstance(here, list) else set()
        return own.union(*(_replicas(inner) for inner in described.values()))
    if isinstance(described, list):
        return set().union(*(_replicas(inner) for inner in described))
    return set()
