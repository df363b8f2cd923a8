"""The controller: a worker for each (namespace, cluster) reconciles it on events and on a timer; so does one
for each ConnectCluster.

`kubernetes.handlers` enqueue clusters on events. A worker acts on what it observes, never on the content of
an event, so events may be lost, duplicated and late. A periodic resync finds clusters without events: watches
can stall, and kopf's watch of a namespace ends when it is being deleted. A worker ends when no resource is
left.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from ottla_operator.kubernetes.api import Api, ApiError, Forbidden
from ottla_operator.kubernetes.connect_workers import KubernetesWorkers
from ottla_operator.kubernetes.drivers import KubernetesDrivers
from ottla_operator.kubernetes.events import EventRecorder
from ottla_operator.kubernetes.handlers import cluster_of
from ottla_operator.kubernetes.manifests_common import Images
from ottla_operator.kubernetes.metrics import Metrics
from ottla_operator.kubernetes.naming import connect_of
from ottla_operator.kubernetes.platform import KubernetesPlatform
from ottla_operator.kubernetes.release import release_unwatched
from ottla_operator.kubernetes.roll_gate import Key, RollQueue
from ottla_operator.kubernetes.secrets import KubernetesSecrets
from ottla_operator.kubernetes.store import KubernetesStore
from ottla_operator.platform.backups import BackupRunner, RecoveryRunner
from ottla_operator.platform.connect import ConnectRest
from ottla_operator.platform.interfaces import Environment
from ottla_operator.platform.kafka import KafkaAdmin
from ottla_operator.platform.loads import LoadMonitor, metrics_over_http
from ottla_operator.reconcile import Reconciler
from ottla_operator.reconcile_connect import ConnectEnvironment, ConnectReconciler
from ottla_operator.resources import KINDS
from ottla_operator.step_executor import ReconcileResult

log = logging.getLogger(__name__)

# Events come in bursts: the start of a pod causes five. A worker waits this long to combine them.
_EVENT_BATCH_S: Final = 0.2
_BUSY_S: Final = 1.0
_UNCONVERGED_S: Final = 3.0
_BACK_OFF_S_MAX: Final = 60.0
_RECONCILE_TIMEOUT_S: Final = 300.0
_RECONCILES_MAX: Final = 16

# The API server may be unavailable for some time; a restart of the operator would not help.
_RESYNC_OVERDUE_S: Final = 600.0


class Reconciles(Protocol):
    """Reconciles the resources of one worker once."""

    async def reconcile(self) -> ReconcileResult: ...


@dataclass(slots=True)
class _Worker:
    """The task of one cluster and its wake-up event."""

    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    reconcile_started_at: float | None = None


class Controller:
    """Runs a worker for each enqueued cluster."""

    def __init__(
        self,
        api: Api,
        images: Images,
        metrics: Metrics,
        clock_ms: Callable[[], int],
        resync_s: float,
        namespaces: Sequence[str] = (),
        monotonic: Callable[[], float] = time.monotonic,
        *,
        rolling_clusters_max: int = 0,
    ) -> None:
        """`namespaces`: those of the resync; empty: all. `rolling_clusters_max`: see `RollQueue`."""
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
        self._rolls = RollQueue(rolling_clusters_max, self._wake)
        self._reconciles = asyncio.Semaphore(_RECONCILES_MAX)

    def enqueue(self, namespace: str, cluster: str) -> None:
        """Wake the worker of a cluster, whether or not it exists; start one if there is none."""
        worker = self._workers.get((namespace, cluster))
        if worker is None:
            worker = self._workers[namespace, cluster] = _Worker()
            worker.task = asyncio.get_running_loop().create_task(self._work((namespace, cluster), worker))
        worker.wake.set()

    def _wake(self, key: Key) -> None:
        worker = self._workers.get(key)
        if worker is not None:
            worker.wake.set()

    @property
    def clusters(self) -> list[Key]:
        """The clusters with a worker."""
        return sorted(self._workers)

    async def run(self, stopping: asyncio.Event) -> None:
        """Run until `stopping` is set. A running reconciliation is cancelled; the next operator continues
        from its state."""
        loop = asyncio.get_running_loop()
        background = [loop.create_task(self._recorder.run()), loop.create_task(self._resync())]
        await stopping.wait()
        tasks = [worker.task for worker in self._workers.values() if worker.task is not None]
        for task in (*tasks, *background):
            task.cancel()
        await asyncio.gather(*tasks, *background, return_exceptions=True)

    async def _resync(self) -> None:
        """Periodically enqueue clusters without a worker. Workers have their own timers."""
        self._last_resync = self._monotonic()
        released = not self._images.operator or None in self._namespaces
        learned = False
        while True:
            released = released or await self._release_unwatched()
            learned = learned or await self._learn_clusters()
            await asyncio.sleep(self._resync_s if learned else min(_UNCONVERGED_S, self._resync_s))
            if await self._resync_once():
                self._last_resync = self._monotonic()

    async def _learn_clusters(self) -> bool:
        """List the clusters, before the first of them may roll because of a new operator. Returns False
        when the API server did not respond."""
        keys: list[Key] = []
        for namespace in self._namespaces:
            try:
                found = await self._api.list("BrokerCluster", namespace)
            except ApiError as error:
                if not isinstance(error, Forbidden):
                    log.warning("listing the BrokerClusters failed: %s", error.message)
                    return False
                continue
            keys += [(str(item["metadata"].get("namespace")), item["metadata"]["name"]) for item in found]
        self._rolls.expect(keys)
        return True

    async def _release_unwatched(self) -> bool:
        """Release the resources of namespaces that the operator no longer watches. Returns False when it has
        to be tried again."""
        watched = [namespace for namespace in self._namespaces if namespace is not None]
        try:
            await release_unwatched(self._api, self._images.operator, watched, self._clock_ms)
        except ApiError as error:
            log.warning("resources of namespaces without an operator are not released: %s", error.message)
            return isinstance(error, Forbidden)
        return True

    async def _resync_once(self) -> bool:
        """List all resources once. Returns whether the API server responded; Forbidden is a response, too."""
        complete = True
        for namespace in self._namespaces:
            for kind in KINDS:
                try:
                    found = await self._api.list(kind, namespace)
                except ApiError as error:
                    log.warning("listing the resources of kind %s failed: %s", kind, error.message)
                    complete = complete and isinstance(error, Forbidden)
                    continue
                for item in found:
                    key = (str(item["metadata"].get("namespace")), cluster_of(item))
                    if key[1] and key not in self._workers:
                        log.info(
                            "%s/%s: the resync found resources of which the watches reported no event", *key
                        )
                        self._metrics.count_missed_cluster()
                        self.enqueue(*key)
        return complete

    def unhealthy(self) -> list[str]:
        """Problems that only a restart of the operator may fix; for the liveness probe."""
        found = self._overdue_reconciles()
        since = self._last_resync
        if since is not None and self._monotonic() - since > max(_RESYNC_OVERDUE_S, 5 * self._resync_s):
            found.append("the periodic resync of all clusters has not completed")
        return found

    def _overdue_reconciles(self) -> list[str]:
        """Clusters whose reconciliation runs far longer than its time-out."""
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
        store = KubernetesStore(self._api, self._images, namespace, cluster, self._clock_ms, self._recorder)
        connect = connect_of(cluster)
        if connect:
            workers = KubernetesWorkers(self._api, self._images, namespace, connect, self._clock_ms)
            environment = ConnectEnvironment(store, workers, ConnectRest(), self._clock_ms, self._recorder)
            await self._repeat(key, worker, ConnectReconciler(environment), store, lambda: None)
            return
        platform = KubernetesPlatform(self._api, self._images, namespace, cluster, self._clock_ms)
        kafka = KafkaAdmin(platform.client_properties)
        secrets = KubernetesSecrets(self._api, namespace, cluster)
        own_secrets = KubernetesSecrets(self._api, namespace, cluster)
        drivers = KubernetesDrivers(self._api, self._images, namespace, cluster, self._clock_ms)
        reconciler = Reconciler(
            Environment(
                platform,
                kafka,
                store,
                secrets,
                drivers,
                self._clock_ms,
                self._recorder,
                loads=LoadMonitor(metrics_over_http(platform.metrics_addresses), kafka.log_dirs),
                backups=BackupRunner(kafka.take_backup, own_secrets, self._clock_ms),
                recoveries=RecoveryRunner(kafka.restore, own_secrets, self._clock_ms),
                gate=self._rolls.gate_of(key),
            )
        )

        def reconciled() -> None:
            self._rolls.observed(key)
            self._metrics.export_certificate_expiry(namespace, cluster, platform.authority_ends())

        try:
            await self._repeat(key, worker, reconciler, store, reconciled)
        finally:
            self._rolls.forget(key)
            await kafka.close()

    async def _repeat(
        self,
        key: Key,
        worker: _Worker,
        reconciler: Reconciles,
        store: KubernetesStore,
        reconciled: Callable[[], None],
    ) -> None:
        """Reconcile on events and on a timer, until no resource is left. `reconciled`: called after each
        reconciliation."""
        failures = 0
        steps: list[str] = []
        try:
            while True:
                worker.wake.clear()
                result = await self._reconcile(key, worker, reconciler, store)
                reconciled()
                failures = 0 if result is not None else failures + 1
                if result is not None and not store.resource_count and not worker.wake.is_set():
                    return
                await _wait(worker.wake, self._pause_s(result, steps, failures))
                steps = result.steps if result is not None else []
                await asyncio.sleep(_EVENT_BATCH_S)
        finally:
            del self._workers[key]
            self._metrics.remove_cluster(*key)

    async def _reconcile(
        self, key: Key, worker: _Worker, reconciler: Reconciles, store: KubernetesStore
    ) -> ReconcileResult | None:
        """Reconcile one cluster and record metrics; None when it failed."""
        async with self._reconciles:
            worker.reconcile_started_at = began = self._monotonic()
            try:
                async with asyncio.timeout(_RECONCILE_TIMEOUT_S):
                    result = await reconcile(reconciler, store)
            except (ApiError, TimeoutError) as error:
                log.warning("%s/%s: reconciliation failed: %s", *key, error or "timed out")
                self._metrics.count_failure(*key)
                return None
            except Exception:
                # A bug in the operator. It must not end the worker.
                log.exception("%s/%s: reconciliation failed", *key)
                self._metrics.count_failure(*key)
                return None
            finally:
                worker.reconcile_started_at = None
        seconds = self._monotonic() - began
        log.debug("%s/%s: reconciled in %.1f s: %s", *key, seconds, "; ".join(result.steps) or "no steps")
        self._metrics.count_reconcile(*key, seconds, self._clock_ms() / 1000, result)
        return result

    def _pause_s(self, result: ReconcileResult | None, before: list[str], failures: int) -> float:
        """The longest wait for an event before the next reconciliation. `before`: the previous steps."""
        if result is None:
            return min(_BUSY_S * 2.0 ** min(failures, 10), _BACK_OFF_S_MAX)
        if not result.idle and result.steps != before:
            return _BUSY_S
        converged = result.idle and result.converged
        pause_s = self._resync_s if converged else min(_UNCONVERGED_S, self._resync_s)
        due_s = pause_s if result.due_ms is None else (result.due_ms - self._clock_ms()) / 1000
        return min(pause_s, max(due_s, 0.0))


async def reconcile(reconciler: Reconciles, store: KubernetesStore) -> ReconcileResult:
    """Reconcile once. Without permission to observe the cluster, release resources that are being deleted."""
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
