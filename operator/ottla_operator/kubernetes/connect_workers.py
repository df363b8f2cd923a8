"""The `Workers` interface over the API server: workers of Kafka Connect as pods of a StatefulSet.

Used by the reconciler of one ConnectCluster. An annotation of the pod has the worker's revision.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from ottla_operator.kubernetes import manifests_connect, naming
from ottla_operator.kubernetes.api import Api, NotFound
from ottla_operator.kubernetes.child_objects import ChildObjects
from ottla_operator.kubernetes.manifests_common import Images, digest
from ottla_operator.kubernetes.observing import (
    Object,
    annotations_of,
    container_of,
    is_ready,
    name_of,
    pod_state,
    restarted_at,
)
from ottla_operator.planning.connect import WorkerLaunch, WorkerPod, WorkersState
from ottla_operator.platform.interfaces import Ensured
from ottla_operator.resources import AnyResource, BrokerCluster, ConnectCluster, User
from ottla_operator.resources.loading import parse_resource

log = logging.getLogger(__name__)

_KINDS: Final = (
    *("Pod", "ConfigMap", "StatefulSet", "Service", "ServiceAccount"),
    *("PodDisruptionBudget", "NetworkPolicy"),
)


class KubernetesWorkers:
    """The workers of one ConnectCluster."""

    def __init__(
        self, api: Api, images: Images, namespace: str, connect: str, clock_ms: Callable[[], int]
    ) -> None:
        self._api = api
        self._images = images
        self._namespace = namespace
        self._name = connect
        selector = ",".join(f"{key}={value}" for key, value in naming.connect_selector(connect).items())
        self._objects = ChildObjects(api, namespace, "", clock_ms, selector=selector)

    # ---- what the spec refers to

    async def cluster(self, name: str) -> BrokerCluster | None:
        found = await self._find("BrokerCluster", name)
        return found if isinstance(found, BrokerCluster) else None

    async def user(self, name: str) -> User | None:
        found = await self._find("User", name)
        return found if isinstance(found, User) else None

    async def _find(self, kind: str, name: str) -> AnyResource | None:
        """The resource with the spec that is in force. Raises ApiError."""
        try:
            item = await self._api.get(kind, self._namespace, name)
        except NotFound:
            return None
        status = dict(item.get("status") or {})
        last_valid = status.pop("lastValidSpec", None)
        status.pop("operator", None)
        for spec in (item.get("spec"), last_valid):
            resource, _ = parse_resource(kind, item["metadata"], spec, status)
            if resource is not None:
                return resource
        return None

    # ---- workers

    async def observe(self, connect: ConnectCluster) -> WorkersState:
        await self._objects.list(kinds=_KINDS)
        pods = self._objects.listed.objects.get("Pod", {})
        labels = naming.connect_selector(self._name)
        return WorkersState(
            pods=tuple(worker_pod(pods[name]) for name in sorted(pods)),
            selector=",".join(f"{key}={value}" for key, value in labels.items()),
            url=manifests_connect.url_of(connect),
        )

    def traits(self, connect: ConnectCluster) -> Mapping[str, str]:
        template = connect.spec.template.pod.model_dump(mode="json", exclude_unset=True)
        plugins = [plugin.model_dump(mode="json") for plugin in connect.spec.plugins]
        return {
            "image": manifests_connect.image_of(connect, self._images),
            "pod": digest([template, plugins, connect.spec.resources]),
        }

    async def ensure_children(self, connect: ConnectCluster, launch: WorkerLaunch) -> Ensured:
        ensured = Ensured()
        live = self._objects.listed.find("StatefulSet", naming.connect_name(self._name))
        restart = "" if live is None else restarted_at(live)
        for manifest in manifests_connect.build_all(connect, self._images, launch, restart):
            await ensured.attempt(self._objects.ensure(manifest))
        ensured.findings += self._objects.findings()
        return ensured


def worker_pod(pod: Object) -> WorkerPod:
    state, message = pod_state(pod, container_of(pod, "connect"))
    return WorkerPod(
        name=name_of(pod),
        ready=is_ready(pod),
        revision=annotations_of(pod).get(naming.HASH_ANNOTATION, ""),
        problem=(message or "has crashed") if state == "Crashed" else "",
    )
