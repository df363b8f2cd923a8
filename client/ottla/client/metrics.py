"""A client's figures, for whoever wants to see them: at any time, or as they change, or in Prometheus.

    producer.metrics()["record-send-rate"]              # the whole client's, by Kafka's names
    producer.measurements()                             # also by topic, partition and broker
    Producer(metric_reporters=[MyReporter()], …)        # told every metrics.sample.window.ms, and at the end
    prometheus_client.REGISTRY.register(PrometheusCollector(producer, consumer))

Names, groups, tags and units are those of Kafka's Java client. Reporters are called in the client's event
loop: they have to be quick; what one raises is logged.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from ottla.client.core.stats import Figures, RequestStats

log = logging.getLogger("ottla.client")


class Metric(NamedTuple):
    """A figure, as it is now."""

    group: str
    """As producer-metrics, or consumer-fetch-manager-metrics."""
    name: str
    tags: Mapping[str, str]
    """None of the whole client; topic, partition, node-id."""
    value: float
    """Not a number where nothing was measured yet."""


class MetricsReporter(Protocol):
    """What `metric.reporters` takes; called in the client's event loop."""

    def report(self, client_id: str, metrics: list[Metric]) -> None:
        """All figures, as they are now."""
        ...

    def close(self) -> None:
        """The client stops; `report` was called a last time."""
        ...


class Measured(Protocol):
    """A producer, a consumer."""

    @property
    def config(self) -> Any: ...

    def measurements(self) -> list[Metric]: ...


def of_group(group: str, figures: Figures, **tags: str) -> Iterator[Metric]:
    """`tags` with underscores for hyphens."""
    named = {name.replace("_", "-"): text for name, text in tags.items()}
    return (Metric(group, name, named, value) for name, value in figures.items())


def of_requests(kind: str, connections: int, stats: RequestStats, now: float) -> Iterator[Metric]:
    """What every client has; `kind` is producer, consumer or admin-client."""
    yield from of_group(f"{kind}-metrics", {"connection-count": connections, **stats.figures(now)})
    for node, figures in stats.by_node(now).items():
        yield from of_group(f"{kind}-node-metrics", figures, node_id=node)


def of_client(metrics: Iterable[Metric]) -> Figures:
    """What is about the whole client, by name."""
    return {metric.name: metric.value for metric in metrics if not metric.tags}


class Reporting:
    """Calls a client's reporters now and then. Use: `start` in the event loop, `stop` as the client ends."""

    def __init__(
        self, client_id: str, reporters: Iterable[Any], interval_s: float, measure: Callable[[], list[Metric]]
    ) -> None:
        # Names of Java classes, in a Java client's file, are nothing to us.
        self._reporters = [reporter for reporter in reporters if not isinstance(reporter, str)]
        self._client_id = client_id
        self._interval_s = interval_s
        self._measure = measure
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._reporters:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._rung)

    def _rung(self) -> None:
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
    """For prometheus_client's registry: every scrape reads the clients' figures as they are then.

    A metric is named as Micrometer names it: kafka_producer_record_send_rate, kafka_consumer_fetch_manager_
    records_lag_max; its labels are client_id and the metric's tags. Totals are counters.
    """

    def __init__(self, *clients: Measured) -> None:
        self._clients = clients

    def describe(self) -> list[Any]:
        """Nothing: what there is, is not known before it was measured."""
        return []

    def collect(self) -> Iterator[Any]:
        """Metric families; needs prometheus_client, which nothing else here does."""
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
                    told = f"{metric.name} of {metric.group}, as in Kafka's clients"
                    families[key] = kind(name, told, labels=[label.replace("-", "_") for label in labels])
                families[key].add_metric(list(labels.values()), metric.value)
        yield from families.values()


def _prometheus_name(metric: Metric) -> str:
    group = metric.group.removesuffix("-metrics")
    return f"kafka_{group}_{metric.name}".replace("-", "_")
