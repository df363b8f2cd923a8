"""Workloads: applications that run against a simulated cluster, and know what they must observe.

A workload creates its topics, runs processes with the client library as it ships, records what was
acknowledged and what was read, and raises `Violation` as soon as the two contradict each other.
"""

from __future__ import annotations

from typing import Protocol

from ottla.simulation.cluster import Cluster


class Workload(Protocol):
    """The life of a workload. All methods run in the simulation."""

    async def prepare(self, cluster: Cluster) -> None:
        """Create topics and the like, before there are faults."""

    async def run(self) -> None:
        """Run until cancelled."""

    async def finish(self) -> None:
        """The cluster is whole: bring everything to an end, and verify. Raises Violation."""
