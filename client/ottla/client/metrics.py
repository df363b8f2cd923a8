"""Metrics of a client: on demand, by reporters, or in Prometheus.

    producer.metrics()["record-send-rate"]              # the whole client's, by Kafka's names
    producer.measurements()                             # also by topic, partition and broker
    Producer(metric_reporters=[MyReporter()], …)        # called every metrics.sample.window.ms, and at the
    end prometheus_client.REGISTRY.register(PrometheusCollector(producer, consumer))

Names, groups, tags and units are those of Kafka's Java client. Reporters are called in the event loop of the
client and must be quick; their exceptions are logged.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from ottla.client.core.stats import MetricValues, RequestStats

log = logging.getLogger("ottla.client")


class Metric(NamedTuple):
    """A metric and its current value."""

    group: str
    """For example producer-metrics or consumer-fetch-manager-metrics."""
    name: str
    tags: Mapping[str, str]
    """Empty for the whole client; topic, partition, node-id."""
    value: float
    """NaN if nothing was measured yet."""


class MetricsReporter(Protocol):
    """An object for `metric.reporters`; called in the event loop of the client."""

    def report(self, client_id: str, metrics: list[Metric]) -> None:
        """All metrics with their current values."""
        ...

    def close(self) -> None:
        """The client is closed; `report` was called a last time."""
        ...


class Measured(Protocol):
    """A producer, a consumer, or another client with metrics."""

    @property
    def config(self) -> Any: ...

    def measurements(self) -> list[Metric]: ...


def of_group(group: str, figures: MetricValues, **tags: str) -> Iterator[Metric]:
    """Metrics of one group. `tags` have underscores instead of hyphens."""
    named = {name.replace("_", "-"): text for name, text in tags.items()}
    return (Metric(group, name, named, value) for name, value in figures.items())


def of_requests(kind: str, connections: int, stats: RequestStats, now: float) -> Iterator[Metric]:
    """The metrics that all clients have; `kind` is producer, consumer or admin-client."""
    yield from of_group(f"{kind}-metrics", {"connection-count": connections, **stats.figures(now)})
    for node, figures in stats.by_node(now).items():
        yield from of_group(f"{kind}-node-metrics", figures, node_id=node)


def of_client(metrics: Iterable[Metric]) -> MetricValues:
    """The metrics of the whole client, by name."""
    return {metric.name: metric.value for metric in metrics if not metric.tags}


class Reporting:
    """Calls the reporters of a client periodically. Use: `start` in the event loop, `stop` when the client is
    closed."""

    def __init__(
        self, client_id: str, reporters: Iterable[Any], interval_s: float, measure: Callable[[], list[Metric]]
    ) -> None:
        # Names of Java classes from the file of a Java client are ignored.
        self._reporters = [reporter for reporter in reporters if not isinstance(reporter, str)]
        self._client_id = client_id
        self._interval_s = interval_s
        self._measure = measure
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._reporters:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._on_timer)

    def _on_timer(self) -> None:
        self._report()
        self.start()

    def _report(self) -> None:
        metrics = self._measure()
        for reporter in self._reporters:
            self._call(reporter, "report", self._client_id, metrics)

    def _call(self, reporter: Any, method: str, *arguments: object) -> None:
        try:
            getattr(reporter, method)(*arguments)
        except Exception:
            log.warning(
                "client %s: the metrics reporter %s failed in %s",
                self._client_id,
                type(reporter).__qualname__,
                method,
                exc_info=True,
            )

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._report()
            for reporter in self._reporters:
                self._call(reporter, "close")


class PrometheusCollector:
    """A collector for prometheus_client's registry: every scrape reads the current metrics of the clients.

    Names are those of Micrometer: kafka_producer_record_send_rate,
    kafka_consumer_fetch_manager_records_lag_max. The labels are client_id and the tags of the metric. Totals
    are counters.
    """

    def __init__(self, *clients: Measured) -> None:
        self._clients = clients

    def describe(self) -> list[Any]:
        """Empty: the metrics are unknown before they are measured."""
        return []

    def collect(self) -> Iterator[Any]:
        """The metric families. Needs prometheus_client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[tuple[str, tuple[str, ...]], Any] = {}
        for client in self._clients:
            for metric in client.measurements():
                if math.isnan(metric.value):
                    continue
                labels = {"client_id": client.config.client_id, **metric.tags}
                name = _prometheus_name(metric)
                key = name, tuple(labels)
                if key not in families:
                    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                    description = f"{metric.name} of {metric.group}, as in Kafka's clients"
                    families[key] = kind(
                        name, description, labels=[label.replace("-", "_") for label in labels]
                    )
                families[key].add_metric(list(labels.values()), metric.value)
        yield from families.values()


def _prometheus_name(metric: Metric) -> str:
    group = metric.group.removesuffix("-metrics")
    return f"kafka_{group}_{metric.name}".replace("-", "_")
