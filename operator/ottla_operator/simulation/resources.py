"""The custom resources in memory, as the API server keeps them; Events go to the timeline."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ottla.simulation.cluster import Cluster
from ottla_operator.platform.interfaces import InvolvedObject
from ottla_operator.resources import AnyResource
from ottla_operator.resources.common import Status
from ottla_operator.resources.loading import parse_resource

LATENCY_S = 0.002


class SimulatedStore:
    """The interface `Store`, with generations as the API server counts them. Each call takes time before and
    after its effect, so that an operator can be killed there."""

    def __init__(self) -> None:
        self.stored: dict[str, AnyResource] = {}
        self.writes = 0
        """Written statuses."""
        self.changed = asyncio.Event()
        """Set when a spec changes: what a watch delivers. Each operator has one of its own."""

    def apply(
        self, kind: str, name: str, spec: Mapping[str, object], annotations: Mapping[str, str] | None = None
    ) -> None:
        """Create a resource or change its spec and its annotations, as a user does."""
        key = f"{kind}/{name}"
        old = self.stored.get(key)
        metadata: dict[str, object] = {
            "name": name,
            "annotations": dict(annotations or {}),
            "uid": key,
            "generation": old.metadata.generation + 1 if old else 1,
            "creationTimestamp": f"2024-01-01T00:{len(self.stored):02}:00Z",
        }
        status = old.status.model_dump(by_alias=True, exclude_none=True) if old else None
        if old is not None:
            metadata["creationTimestamp"] = old.metadata.creation_timestamp
        resource, problems = parse_resource(kind, metadata, spec, status)
        assert resource is not None, problems
        self.stored[key] = resource
        self.changed.set()

    async def resources(self) -> Sequence[AnyResource]:
        await asyncio.sleep(LATENCY_S)
        return list(self.stored.values())

    def delete(self, kind: str, name: str) -> None:
        """Delete a resource without a finalizer, as a user does."""
        self.stored.pop(f"{kind}/{name}", None)
        self.changed.set()

    def withheld(self) -> Sequence[str]:
        return ()

    async def update_status(self, resource: AnyResource, status: Status) -> None:
        await asyncio.sleep(LATENCY_S)
        stored = self.stored.get(resource.key)
        if stored is None:
            return
        self.stored[resource.key] = stored.model_copy(update={"status": status})
        self.writes += 1
        await asyncio.sleep(LATENCY_S)

    async def release(self, resource: AnyResource) -> None:
        await asyncio.sleep(LATENCY_S)
        del self.stored[resource.key]


class TimelineRecorder:
    """The interface `Recorder`: Events on the timeline."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def record(self, resource: InvolvedObject, reason: str, message: str, *, warning: bool = False) -> None:
        self._cluster.note("operator", f"{'warning ' if warning else ''}{reason} {resource.key}: {message}")
