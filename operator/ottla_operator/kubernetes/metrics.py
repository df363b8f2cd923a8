"""The operator's metrics for Prometheus, updated by the controller and the API client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ottla import __version__
from ottla_operator.conditions import is_true
from ottla_operator.kubernetes.api import Call
from ottla_operator.resources import KINDS, BrokerCluster
from ottla_operator.step_executor import ReconcileResult

_CLUSTER: Final = ("namespace", "cluster")


class Metrics:
    """The metrics in a registry of their own, so that a process may run several operators."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        version = Gauge("ottla_build_info", "1: the version of Ottla.", ("version",), registry=self.registry)
        version.labels(__version__).set(1)
        self.leads = Gauge(
            "ottla_operator_leader",
            "1 of the operator that holds the Lease, or needs none; 0 of one that stands by.",
            registry=self.registry,
        )
        self._requests = Counter(
            "ottla_operator_api_requests",
            "Requests to the API server.",
            ("verb", "kind", "status"),
            registry=self.registry,
        )
        self._reconciles = Counter(
            "ottla_operator_passes",
            "Reconciliations of a cluster.",
            (*_CLUSTER, "outcome"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "ottla_operator_pass_seconds", "Duration of reconciliations.", _CLUSTER, registry=self.registry
        )
        self._steps = Counter("ottla_operator_steps", "Executed steps.", _CLUSTER, registry=self.registry)
        self._failed_steps = Counter(
            "ottla_operator_failed_steps",
            "Failed steps, by the reason in conditions and Events.",
            (*_CLUSTER, "reason"),
            registry=self.registry,
        )
        self._missed_clusters = Counter(
            "ottla_operator_unheard_clusters",
            "Clusters that the periodic resync found without an event of a watch.",
            registry=self.registry,
        )
        self._ready = Gauge(
            "ottla_operator_cluster_ready",
            "1 when the BrokerCluster is Ready, else 0.",
            _CLUSTER,
            registry=self.registry,
        )
        self._unready = Gauge(
            "ottla_operator_unready_resources",
            "Resources that refer to the cluster and are not Ready.",
            (*_CLUSTER, "kind"),
            registry=self.registry,
        )
        self._outdated = Gauge(
            "ottla_operator_outdated_brokers",
            "Brokers that a rolling restart has not restarted yet.",
            _CLUSTER,
            registry=self.registry,
        )
        self._moves = Gauge(
            "ottla_operator_partitions_to_move",
            "Partitions that the operator's reassignment has not moved yet.",
            _CLUSTER,
            registry=self.registry,
        )
        self._last = Gauge(
            "ottla_operator_last_pass_timestamp_seconds",
            "When the last successful reconciliation ended.",
            _CLUSTER,
            registry=self.registry,
        )
        self._brokers = Gauge(
            "ottla_operator_brokers", "Brokers by state.", (*_CLUSTER, "state"), registry=self.registry
        )
        self._under_replicated = Gauge(
            "ottla_operator_under_replicated_partitions",
            "Partitions with a replica that is not in sync.",
            _CLUSTER,
            registry=self.registry,
        )
        self._offline = Gauge(
            "ottla_operator_offline_partitions",
            "Partitions without a leader.",
            _CLUSTER,
            registry=self.registry,
        )
        self._conditions = Gauge(
            "ottla_operator_cluster_condition",
            "1: the current status and reason of a condition of the BrokerCluster.",
            (*_CLUSTER, "type", "status", "reason"),
            registry=self.registry,
        )
        self._lag = Gauge(
            "ottla_operator_group_lag_records",
            "Lag of a ConsumerGroup over all topics.",
            (*_CLUSTER, "consumergroup"),
            registry=self.registry,
        )
        self._lag_max = Gauge(
            "ottla_operator_group_max_lag_records",
            "spec.maxLag of a ConsumerGroup that has one.",
            (*_CLUSTER, "consumergroup"),
            registry=self.registry,
        )
        self._certificates = Gauge(
            "strimzi_certificate_expiration_timestamp_ms",
            "When an authority's certificate expires; named as in Strimzi, for its dashboard and alert.",
            ("resource_namespace", "cluster", "type"),
            registry=self.registry,
        )

    def count_request(self, call: Call) -> None:
        self._requests.labels(call.verb, call.kind, str(call.status)).inc()

    def count_reconcile(
        self, namespace: str, cluster: str, seconds: float, now_s: float, done: ReconcileResult
    ) -> None:
        """Record a successful reconciliation and the state that it found."""
        self._reconciles.labels(namespace, cluster, "done").inc()
        self._seconds.labels(namespace, cluster).observe(seconds)
        self._steps.labels(namespace, cluster).inc(len(done.steps))
        self._last.labels(namespace, cluster).set(now_s)
        for reason in done.failures:
            self._failed_steps.labels(namespace, cluster, reason).inc()
        self._count_resources(namespace, cluster, done)
        observed = done.observed
        if observed is None:
            return
        for family in (self._lag, self._lag_max):
            family.remove_by_labels({"namespace": namespace, "cluster": cluster})
        for group, (lag, lag_max) in done.group_lags.items():
            self._lag.labels(namespace, cluster, group).set(lag)
            if lag_max is not None:
                self._lag_max.labels(namespace, cluster, group).set(lag_max)
        states = [instance.state for instance in observed.brokers.values()]
        for state in ("Stopped", "Starting", "Running", "Stopping", "Crashed"):
            self._brokers.labels(namespace, cluster, state).set(states.count(state))
        if observed.kafka.has_controller:
            partitions = list(observed.kafka.partitions())
            self._under_replicated.labels(namespace, cluster).set(
                sum(partition.under_replicated for partition in partitions)
            )
            self._offline.labels(namespace, cluster).set(
                sum(partition.leader < 0 for partition in partitions)
            )

    def _count_resources(self, namespace: str, cluster: str, done: ReconcileResult) -> None:
        status = done.cluster
        if status is not None:
            self._conditions.remove_by_labels({"namespace": namespace, "cluster": cluster})
            for condition in status.conditions:
                self._conditions.labels(
                    namespace, cluster, condition.type, condition.status, condition.reason
                ).set(1)
            roll, moving = status.rollout, status.reassignment
            self._ready.labels(namespace, cluster).set(is_true(status.conditions, "Ready"))
            self._outdated.labels(namespace, cluster).set(roll.total - roll.updated if roll else 0)
            self._moves.labels(namespace, cluster).set(moving.total - moving.moved if moving else 0)
        for kind in KINDS:
            if kind != BrokerCluster.definition.kind:
                self._unready.labels(namespace, cluster, kind).set(done.unready.count(kind))

    def export_certificate_expiry(self, namespace: str, cluster: str, ends_ms: Mapping[str, int]) -> None:
        """Set when each authority's certificate expires, by kind."""
        for kind, end_ms in ends_ms.items():
            self._certificates.labels(namespace, cluster, kind).set(end_ms)

    def count_missed_cluster(self) -> None:
        self._missed_clusters.inc()

    def count_failure(self, namespace: str, cluster: str) -> None:
        """Count a failed reconciliation."""
        self._reconciles.labels(namespace, cluster, "failed").inc()

    def remove_cluster(self, namespace: str, cluster: str) -> None:
        """Remove the time series of a deleted cluster."""
        key = {"namespace": namespace, "cluster": cluster}
        families: Iterable[Counter | Gauge | Histogram] = (
            self._reconciles, self._seconds, self._steps, self._last,
            self._brokers, self._under_replicated, self._offline, self._failed_steps, self._ready,
            self._unready, self._outdated, self._moves, self._conditions, self._lag, self._lag_max,
        )  # fmt: skip
        for family in families:
            family.remove_by_labels(key)
        self._certificates.remove_by_labels({"resource_namespace": namespace, "cluster": cluster})

    def text(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self.registry)
