"""The `Drivers` interface over the API server: drivers of pipelines as pods.

Used by the reconciler of one cluster. An annotation of the pod has the driver's revision. The kubelet
restarts a crashed container with back-off, so the operator never does (`DriverInstance.backing_off`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ottla_operator.kubernetes import manifests_pipelines, naming, volumes
from ottla_operator.kubernetes.api import Api
from ottla_operator.kubernetes.child_objects import ChildObjects
from ottla_operator.kubernetes.manifests_common import Images
from ottla_operator.kubernetes.observing import (
    Listed,
    Object,
    annotations_of,
    container_of,
    last_restart,
    name_of,
    pod_state,
)
from ottla_operator.planning.observed import DriverInstance, JobProgress
from ottla_operator.planning.pipeline_config import DriverLaunch
from ottla_operator.planning.pipelines import EXIT_CANNOT_START
from ottla_operator.platform import processes
from ottla_operator.platform.interfaces import Ensured
from ottla_operator.platform.processes import exit_message
from ottla_operator.resources import Pipeline

_KINDS: Final = (
    *("Pod", "ConfigMap", "StatefulSet", "Service", "ServiceAccount", "RoleBinding"),
    "PersistentVolumeClaim",
)


class KubernetesDrivers:
    """The drivers of the pipelines of one BrokerCluster."""

    def __init__(
        self, api: Api, images: Images, namespace: str, cluster: str, clock_ms: Callable[[], int]
    ) -> None:
        self._images = images
        self._objects = ChildObjects(api, namespace, cluster, clock_ms, naming.PIPELINE)

    def traits(self, pipeline: Pipeline) -> Mapping[str, str]:
        restart = self._last_restart(pipeline)
        image = manifests_pipelines.image_of(pipeline, self._images)
        return {"image": image, **({"restart": restart} if restart else {})}

    def _last_restart(self, pipeline: Pipeline) -> str:
        listed = self._objects.listed
        live = listed.find("StatefulSet", naming.driver_name(pipeline.metadata.name))
        pod = _pod(listed, pipeline)
        return last_restart(live, [] if pod is None else [pod])

    # ---- observing

    async def observe(self, pipelines: Iterable[Pipeline]) -> Mapping[str, DriverInstance]:
        pipelines = list(pipelines)
        await self._objects.list(kinds=_KINDS)
        for pipeline in pipelines:
            await self._find_relabelled(pipeline)
        listed = self._objects.listed
        progress = await processes.fetch_progress(
            {
                pipeline.key: f"{address}:{manifests_pipelines.STATUS_PORT}"
                for pipeline in pipelines
                if (address := _address(_pod(listed, pipeline)))
            }
        )
        return {p.key: driver_instance(listed, p.metadata.name, progress.get(p.key)) for p in pipelines}

    async def _find_relabelled(self, pipeline: Pipeline) -> None:
        name = pipeline.metadata.name
        live = self._objects.listed.find("StatefulSet", naming.driver_name(name))
        if live is None or live["spec"].get("replicas") == 0:
            return
        pod, labels = naming.driver_pod(name), naming.pipeline_selector(pipeline.spec.cluster_ref.name, name)
        await self._objects.find_relabelled("Pod", pod, labels)
        if pipeline.spec.storage is not None:
            await self._objects.find_relabelled("PersistentVolumeClaim", naming.data_claim(pod), labels)

    # ---- steps

    async def ensure_children(self, pipeline: Pipeline, launch: DriverLaunch) -> Ensured:
        ensured = Ensured()
        await self._objects.restore_labels(ensured)
        name, listed = pipeline.metadata.name, self._objects.listed
        live = listed.find("StatefulSet", naming.driver_name(name))
        restart = self._last_restart(pipeline)
        manifests = manifests_pipelines.build_all(pipeline, self._images, launch, restart)
        for manifest in manifests:
            is_set = manifest["kind"] == "StatefulSet"
            kept = volumes.never_shrinking(manifest, live) if is_set else manifest
            await ensured.attempt(self._objects.ensure(kept))
        claim = listed.find("PersistentVolumeClaim", naming.data_claim(naming.driver_pod(name)))
        storage = pipeline.spec.storage
        if claim is not None and storage is not None:
            if volumes.is_smaller(claim, storage.size):
                await ensured.attempt(self._objects.grow(claim, storage.size, "spec.storage"))
            await ensured.attempt(self._objects.own_claim(pipeline, claim, delete=storage.delete_claim))
            found = volumes.differences([claim], storage.size, storage.storage_class, "spec.storage")
            ensured.findings += volumes.finding_of(found)
        ensured.findings += self._objects.findings(manifests)
        return ensured

    async def start(self, pipeline: Pipeline, launch: DriverLaunch) -> None:
        ensured = await self.ensure_children(pipeline, launch)
        if ensured.failures:
            raise ensured.failures[0]

    async def stop(self, pipeline: Pipeline, after: DriverLaunch | None) -> None:
        name = pipeline.metadata.name
        pod = _pod(self._objects.listed, pipeline)
        live = self._objects.listed.find("StatefulSet", naming.driver_name(name))
        if after is not None or live is None:
            # `ensure_children` has updated the template of the StatefulSet, which creates the next pod.
            if pod is not None and not pod["metadata"].get("deletionTimestamp"):
                if after is not None:
                    restart = self._last_restart(pipeline)
                    manifest = manifests_pipelines.build_stateful_set(pipeline, self._images, after, restart)
                    await self._objects.check_pod(manifest, name_of(pod))
                await self._objects.delete_pod(pod)
        elif live["spec"].get("replicas") != 0:
            await self._objects.scale(live, 0)

    async def remove(self, pipeline: Pipeline) -> None:
        """The garbage collector deletes the objects that the Pipeline owns."""


def _pod(listed: Listed, pipeline: Pipeline) -> Object | None:
    return listed.find("Pod", naming.driver_pod(pipeline.metadata.name))


def _address(pod: Object | None) -> str:
    if pod is None or pod["metadata"].get("deletionTimestamp"):
        return ""
    address = str((pod.get("status") or {}).get("podIP") or "")
    return f"[{address}]" if ":" in address else address


def driver_instance(listed: Listed, name: str, progress: JobProgress | None) -> DriverInstance:
    """The state of a pipeline's driver, from its pod and its StatefulSet."""
    pod_name = naming.driver_pod(name)
    pod = listed.find("Pod", pod_name)
    stateful_set = listed.find("StatefulSet", naming.driver_name(name))
    if pod is None:
        wanted = stateful_set is not None and stateful_set["spec"].get("replicas") != 0
        revision = _revision((stateful_set or {}).get("spec", {}).get("template", {})) if wanted else ""
        return DriverInstance("Starting" if wanted else "Stopped", pod_name, revision, backing_off=True)
    seen = container_of(pod, "driver")
    state, message = pod_state(pod, seen)
    ended = _ended(seen)
    code = ended.get("exitCode")
    return DriverInstance(
        state=state,
        name=pod_name,
        revision=_revision(pod),
        crashes=int(seen.get("restartCount", 0)),
        backing_off=True,
        exit_code=int(code) if code is not None else None,
        message=_last_message(ended) if code is not None else message,
        progress=progress if state == "Running" else None,
    )


def _revision(item: Object) -> str:
    if not item.get("metadata"):
        return ""
    return annotations_of(item).get(naming.HASH_ANNOTATION, "")


def _ended(seen: Object) -> Mapping[str, Any]:
    """The `terminated` state of the container's last exit; empty without one."""
    for state in ("state", "lastState"):
        terminated: Mapping[str, Any] | None = (seen.get(state) or {}).get("terminated")
        if terminated:
            return terminated
    return {}


def _last_message(ended: Mapping[str, Any]) -> str:
    if ended.get("reason") == "OOMKilled":
        return "was killed by the kernel for lack of memory (OOMKilled); see spec.driver.resources"
    cause = str(ended.get("message") or "").strip()
    if ended.get("exitCode") != EXIT_CANNOT_START:
        # All lines matter only for a job that cannot start.
        cause = exit_message(cause)
    return f"ended with code {ended.get('exitCode')}" + (f": {cause}" if cause else "")
