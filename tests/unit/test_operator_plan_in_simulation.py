"""What a plan says is what the operator then does to real brokers in a simulated cluster."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from ottla.simulation.cluster import Cluster
from ottla.simulation.runner import separate_run
from ottla_operator.reconcile import is_ready
from ottla_operator.rehearsal.rehearse import Rehearsal, Situation, rehearse
from ottla_operator.resources.common import HIBERNATE_ANNOTATION, RESTART_ANNOTATION
from ottla_operator.simulation.operator import SimulatedOperator
from ottla_operator.simulation.platform import SimulatedPlatform
from ottla_operator.simulation.resources import SimulatedStore

pytestmark = pytest.mark.budget(10)  # each plan beside the simulated cluster that carries it out

_SETTING = "replica.fetch.wait.max.ms"
_WAIT_S = 120.0


@dataclass(frozen=True)
class Desired:
    """What a user applies."""

    replicas: int = 3
    factor: int = 3
    partitions: int = 4
    config: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, object] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


class Planned:
    """A cluster is made and converges; a change is planned, applied, and converges."""

    def __init__(self, before: Desired, after: Desired) -> None:
        self._before, self._after = before, after
        self._cluster = Cluster(1, brokers=0)
        self.rehearsal = Rehearsal()
        self.steps: list[str] = []
        """What the operator did after the change."""

    async def run(self) -> None:
        cluster = self._cluster
        await cluster.start()
        self._store = SimulatedStore()
        platform = SimulatedPlatform(cluster, restarts=False)
        self._operator = SimulatedOperator(cluster, platform, self._store)
        watch = cluster.loop.create_task(platform.watch())
        self._apply(self._before)
        self._operator.start()
        await self._converge(self._before)
        observed = self._operator.result.observed if self._operator.result is not None else None
        assert observed is not None
        begin = len(cluster.timeline)
        self._apply(self._after)
        situation = Situation(observed, list(self._store.stored.values()), restarts=False)
        # The loop of the simulation runs already.
        thread = threading.Thread(target=self._rehearse, args=(situation,))
        thread.start()
        thread.join()
        await self._converge(self._after)
        texts = [event.text for event in cluster.timeline[begin:] if event.who == "operator"]
        taken = [text.split(": ", 1)[1] for text in texts if not text.startswith("warning")]
        self.steps = [step for n, step in enumerate(taken) if n == 0 or step != taken[n - 1]]
        watch.cancel()

    def simulate(self) -> None:
        self._cluster.run(self.run())

    def _rehearse(self, situation: Situation) -> None:
        self.rehearsal = rehearse(situation)

    def _apply(self, desired: Desired) -> None:
        spec = {"replicas": desired.replicas, "config": desired.config, **desired.spec}
        self._store.apply("BrokerCluster", "demo", spec, desired.annotations)
        topic = {
            "clusterRef": {"name": "demo"},
            "partitions": desired.partitions,
            "replicas": desired.factor,
            "config": {"min.insync.replicas": 2},
        }
        self._store.apply("Topic", "orders", topic)

    async def _converge(self, desired: Desired) -> None:
        """Wait until nothing has been done for some time, and all is as desired."""
        rests = HIBERNATE_ANNOTATION in desired.annotations
        begun_s = self._cluster.loop.now
        async with asyncio.timeout(_WAIT_S):
            quiet = 0
            while quiet < 20:
                await asyncio.sleep(0.5)
                result = self._operator.result
                done = result is not None and self._operator.began_s > begun_s and result.idle
                ready = rests or all(is_ready(each) for each in self._store.stored.values())
                quiet = quiet + 1 if done and ready else 0


# Else the controller elects preferred leaders, too, and either may come first.
_OWN = {"auto.leader.rebalance.enable": "false"}
BEGIN = Desired(config=_OWN)
CHANGES: Mapping[str, tuple[Desired, Desired]] = {
    "scale up": (BEGIN, replace(BEGIN, replicas=4)),
    "scale down": (replace(BEGIN, replicas=4), BEGIN),
    "a setting that needs a restart": (BEGIN, replace(BEGIN, config={**_OWN, _SETTING: "400"})),
    "a live setting": (BEGIN, replace(BEGIN, config={**_OWN, "message.max.bytes": "900000"})),
    "more replicas": (replace(BEGIN, factor=2), BEGIN),
    "fewer replicas": (BEGIN, replace(BEGIN, factor=2)),
    "more partitions": (BEGIN, replace(BEGIN, partitions=6)),
    "scale up and a restart": (BEGIN, replace(BEGIN, replicas=4, config={**_OWN, _SETTING: "400"})),
    "a restart on request": (BEGIN, replace(BEGIN, annotations={RESTART_ANNOTATION: "now"})),
    "hibernation": (BEGIN, replace(BEGIN, annotations={HIBERNATE_ANNOTATION: "true"})),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_operator_takes_the_steps_of_the_plan_in_their_order(change: str) -> None:
    planned = Planned(*CHANGES[change])
    with separate_run():
        planned.simulate()
    steps = [step.text for step in planned.rehearsal.steps]
    assert steps
    assert planned.steps == steps
