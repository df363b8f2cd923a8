"""One worker for each (namespace, cluster): passes of its reconciler, one after the other.

Called by the handlers, which only say that something happened there. What a worker does depends on what it
then observes, never on what woke it; so events may be lost, doubled and late. What no event told of is found
by looking: watches can fall silent, and kopf's end where a namespace is being deleted. A worker ends when
nothing is left.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ottla_operator.kubernetes.api import Api, ApiError, Forbidden
from ottla_operator.kubernetes.drivers import KubernetesDrivers
from ottla_operator.kubernetes.events import EventRecorder
from ottla_operator.kubernetes.handlers import cluster_of
from ottla_operator.kubernetes.manifests_common import Images
from ottla_operator.kubernetes.metrics import Metrics
from ottla_operator.kubernetes.platform import KubernetesPlatform
from ottla_operator.kubernetes.secrets import KubernetesSecrets
from ottla_operator.kubernetes.store import KubernetesStore
from ottla_operator.platform.kafka import KafkaAdmin
from ottla_operator.reconcile import Reconciler
from ottla_operator.resources import KINDS
from ottla_operator.step_executor import ReconcileResult

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace and name of a BrokerCluster, whether or not there is one."""

# Events come in bursts: a pod that starts is five of them.
_EVENT_BATCH_S: Final = 0.2
_BUSY_S: Final = 1.0
_UNCONVERGED_S: Final = 3.0
_BACK_OFF_S_MAX: Final = 60.0
_RECONCILE_TIMEOUT_S: Final = 300.0
_RECONCILES_MAX: Final = 16

# An API server may be away for a while, and nothing is gained by a new start then.
_RESYNC_OVERDUE_S: Final = 600.0


@dataclass(slots=True)
class _Worker:
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    reconcile_started_at: float | None = None


class Controller:
    """Runs workers for the clusters that it hears of."""

    def __init__(
        self,
        api: Api,
        images: Images,
        metrics: Metrics,
        clock_ms: Callable[[], int],
        resync_s: float,
        namespaces: Sequence[str] = (),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`namespaces`: to look for clusters in; none: all."""
        self._monotonic = monotonic
        self._last_resync: float | None = None
        self._api = api
        self._images = images
        self._metrics = metrics
        self._clock_ms = clock_ms
        self._resync_s = resync_s
        self._namespaces: Sequence[str | None] = namespaces or (None,)
        self._recorder = EventRecorder(api, clock_ms)
        self._workers: dict[Key, _Worker] = {}
        self._reconciles = asyncio.Semaphore(_RECONCILES_MAX)

    def enqueue(self, namespace: str, cluster: str) -> None:
        """Something happened that may concern this cluster."""
        worker = self._workers.get((namespace, cluster))
        if worker is None:
            worker = self._workers[namespace, cluster] = _Worker()
            worker.task = asyncio.get_running_loop().create_task(self._work((namespace, cluster), worker))
        worker.wake.set()

    @property
    def clusters(self) -> list[Key]:
        """Those that are looked after now."""
        return sorted(self._workers)

    async def run(self, stopping: asyncio.Event) -> None:
        """Until told to stop; a pass that is under way is given up: the next operator goes on from there."""
        loop = asyncio.get_running_loop()
        own = [loop.create_task(self._recorder.run()), loop.create_task(self._resync())]
        await stopping.wait()
        tasks = [worker.task for worker in self._workers.values() if worker.task is not None]
        for task in (*tasks, *own):
            task.cancel()
        await asyncio.gather(*tasks, *own, return_exceptions=True)

    async def _resync(self) -> None:
        """Find what no event told of. Workers look after what they know by themselves."""
        self._last_resync = self._monotonic()
        while True:
            await asyncio.sleep(self._resync_s)
            if await self._resync_once():
                self._last_resync = self._monotonic()

    async def _resync_once(self) -> bool:
        """Whether the API server answered; what we may not see is an answer, too."""
        complete = True
        for namespace in self._namespaces:
            for kind in KINDS:
                try:
                    found = await self._api.list(kind, namespace)
                except ApiError as error:
                    log.warning("looking for each %s failed: %s", kind, error.message)
                    complete = complete and isinstance(error, Forbidden)
                    continue
                for item in found:
                    key = (str(item["metadata"].get("namespace")), cluster_of(item))
                    if key[1] and key not in self._workers:
                        log.info("%s/%s is looked after, although no event told of it", *key)
                        self._metrics.count_missed_cluster()
                        self.enqueue(*key)
        return complete

    def unhealthy(self) -> list[str]:
        """What does not go on although it should: nothing but a new start may mend it."""
        found = self._overdue_reconciles()
        since = self._last_resync
        if since is not None and self._monotonic() - since > max(_RESYNC_OVERDUE_S, 5 * self._resync_s):
            found.append("looking for clusters, which watches may have missed")
        return found

    def _overdue_reconciles(self) -> list[str]:
        """Clusters whose pass does not come to an end, although it should have been given up."""
        now = self._monotonic()
        return [
            f"{namespace}/{cluster}"
            for (namespace, cluster), worker in self._workers.items()
            if worker.reconcile_started_at is not None
            and now - worker.reconcile_started_at > 2 * _RECONCILE_TIMEOUT_S
        ]

    # ---- one worker

    async def _work(self, key: Key, worker: _Worker) -> None:
        namespace, cluster = key
        store = KubernetesStore(self._api, namespace, cluster, self._clock_ms, self._recorder)
        platform = KubernetesPlatform(self._api, self._images, namespace, cluster, self._clock_ms)
        kafka = KafkaAdmin(platform.client_properties)
        secrets = KubernetesSecrets(self._api, namespace, cluster)
        drivers = KubernetesDrivers(self._api, self._images, namespace, cluster)
        reconciler = Reconciler(
            platform, kafka, store, self._clock_ms, self._recorder, secrets=secrets, drivers=drivers
        )
        failures = 0
        steps: list[str] = []
        try:
            while True:
                worker.wake.clear()
                result = await self._reconcile(key, worker, reconciler, store)
                self._metrics.export_certificate_expiry(namespace, cluster, platform.authority_ends())
                failures = 0 if result is not None else failures + 1
                if result is not None and not store.resource_count and not worker.wake.is_set():
                    return
                await _wait(worker.wake, self._pause_s(result, steps, failures))
                steps = result.steps if result is not None else []
                await asyncio.sleep(_EVENT_BATCH_S)
        finally:
            del self._workers[key]
            self._metrics.remove_cluster(namespace, cluster)
            await kafka.close()

    async def _reconcile(
        self, key: Key, worker: _Worker, reconciler: Reconciler, store: KubernetesStore
    ) -> ReconcileResult | None:
        """None when it failed."""
        async with self._reconciles:
            worker.reconcile_started_at = began = self._monotonic()
            try:
                async with asyncio.timeout(_RECONCILE_TIMEOUT_S):
                    result = await reconcile(reconciler, store)
            except (ApiError, TimeoutError) as error:
                log.warning("%s/%s: a pass failed: %s", *key, error or "it took too long")
                self._metrics.count_failure(*key)
                return None
            except Exception:
                # A bug of ours: one cluster's is not to end the others' workers.
                log.exception("%s/%s: a pass failed", *key)
                self._metrics.count_failure(*key)
                return None
            finally:
                worker.reconcile_started_at = None
        seconds = self._monotonic() - began
        log.debug("%s/%s: a pass of %.1f s: %s", *key, seconds, "; ".join(result.steps) or "nothing to do")
        self._metrics.count_reconcile(*key, seconds, self._clock_ms() / 1000, result)
        return result

    def _pause_s(self, result: ReconcileResult | None, before: list[str], failures: int) -> float:
        """How long to wait for an event before looking anyway. `before`: the steps of the last pass."""
        if result is None:
            return min(_BUSY_S * 2.0 ** min(failures, 10), _BACK_OFF_S_MAX)
        if not result.idle and result.steps != before:
            return _BUSY_S
        settled = result.idle and result.converged
        return self._resync_s if settled else min(_UNCONVERGED_S, self._resync_s)


async def reconcile(reconciler: Reconciler, store: KubernetesStore) -> ReconcileResult:
    """One pass; where we may see nothing of a cluster, at least its deletion does not wait for us."""
    try:
        return await reconciler.reconcile()
    except Forbidden:
        await store.release_deleting()
        raise


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass
