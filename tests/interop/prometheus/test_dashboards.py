"""A real Prometheus scrapes a cluster, an operator, jobs and a registry, and evaluates every query.

The operator reconciles in the simulated Kubernetes; the metrics of jobs are filled without Spark. Metrics
that exist only under a condition find it here: a group of Kafka 0.8 in ZooKeeper, the page of a kubelet.
"""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kazoo.client import KazooClient
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from ottla.local.processes import wait_until
from ottla_operator.kubernetes.api import Call
from ottla_operator.kubernetes.metrics import Metrics
from ottla_operator.planning.observed import GroupState
from ottla_operator.step_executor import ReconcileResult
from ottla_pipeline.completeness.report import AuditMetrics, AuditResult
from ottla_pipeline.completeness.verdicts import WindowVerdict
from ottla_pipeline.jobs.lake import LakeMetrics
from ottla_pipeline.jobs.mirror import MirrorMetrics
from ottla_pipeline.jobs.windows import WindowsMetrics
from ottla_pipeline.progress import Batch, QueryProgress, Status
from ottla_pipeline.running import JobContext, JobMetrics
from ottla_pipeline.status_port import StatusPort
from ottla_pipeline.windowing.batch import Counts
from tests import monitoring
from tests.judges.prometheus import INTERVAL_S, Prometheus, program
from tests.judges.registries import Registry
from tests.judges.up_session import UpSession
from tests.worlds.kubernetes_simulation import NAMESPACE, KubernetesSimulation

WAIT_S = 60.0
RECORDS, PARTITIONS = 40, 4


class Scraped:
    """The running Prometheus, and what it scrapes: host:port of each page of metrics by its kind."""

    def __init__(self, server: Prometheus, pages: dict[str, list[str]]) -> None:
        self.server = server
        self.pages = pages


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    program("prometheus")
    folder = tmp_path_factory.mktemp("monitoring")
    with ExitStack() as running:
        session = running.enter_context(started(UpSession(folder / "up")))
        zookeeper = session.wait_ready()[1]
        addresses = dict(
            found.groups()
            for line in session.lines
            if (found := re.match(r"broker (\d+) metrics=http://(.+)/metrics$", line))
        )
        registry = running.enter_context(Registry(session.bootstrap, folder))
        urllib.request.urlopen(f"{registry.url}/subjects", timeout=60).close()
        pages = {
            "brokers": list(addresses.values()),
            "operator": [serve(running, operator().registry)],
            "pipelines": [serve(running, jobs())],
            "registry": [registry.url.removeprefix("http://")],
            "kubelet": [serve(running, kubelet())],
        }
        labels = {"brokers": {"namespace": NAMESPACE, "cluster": "demo"}}
        targets = {
            job: [(address, labels.get(job, {"namespace": NAMESPACE})) for address in several]
            for job, several in pages.items()
        }
        commit_to_zookeeper(zookeeper)
        server = running.enter_context(Prometheus(folder, targets, monitoring.ALERTS))
        work(session.bootstrap, server, sum(map(len, pages.values())))
        yield Scraped(server, pages)


def started(session: UpSession) -> UpSession:
    config = {
        "ottla.http.port": 0,
        "log.flush.scheduler.interval.ms": 500,
        "offsets.topic.num.partitions": 4,
        "offsets.topic.replication.factor": 1,
    }
    session.write("BrokerCluster", "demo", {"replicas": 2, "config": config})
    limits = {"producerByteRate": 1e5, "consumerByteRate": 1e6, "requestPercentage": 200}
    quota = {"clusterRef": {"name": "demo"}, "entity": {"clientId": "<default>"}, "limits": limits}
    session.write("Quota", "everybody", quota)
    topic = {"clusterRef": {"name": "demo"}, "partitions": PARTITIONS, "replicas": 2}
    session.write("Topic", "orders", topic)
    return session


def serve(running: ExitStack, registry: CollectorRegistry) -> str:
    port = StatusPort("127.0.0.1", 0, dict, registry)
    running.callback(port.close)
    return f"127.0.0.1:{port.port}"


def operator() -> Metrics:
    """The metrics of an operator that rolls a cluster."""
    sim = KubernetesSimulation()
    sim.apply_cluster()
    sim.api.apply_resource("ConsumerGroup", "billing", {"clusterRef": {"name": "demo"}, "maxLag": 5})
    sim.groups["billing"] = GroupState("billing", "Stable", 1, 1, {"orders": 4})
    sim.reconcile_until_ready()
    metrics = Metrics()
    metrics.leads.set(1)
    metrics.count_request(Call("get", "Pod", 200))
    metrics.count_reconcile(NAMESPACE, "demo", 0.1, time.time(), sim.reconcile_once())
    metrics.count_reconcile(NAMESPACE, "demo", 0.1, time.time(), sim.reconcile_once())
    failed = ReconcileResult(failures=["Unreachable"])
    metrics.count_reconcile(NAMESPACE, "demo", 0.1, time.time(), failed)
    metrics.count_failure(NAMESPACE, "demo")
    metrics.export_certificate_expiry(NAMESPACE, "demo", {"cluster-ca": int((time.time() + 1e7) * 1000)})
    return metrics


def jobs() -> CollectorRegistry:
    """The metrics of all kinds of jobs, as if one process ran them."""
    registry = CollectorRegistry()
    status = Status("lake", "orders", queries=1)
    batch = Batch(0, 5, 100, "2026-01-01T00:00:00.000Z")
    status.add(QueryProgress("q", batch, {("orders", 0): 5}, {("orders", 0): 6}))
    registry.register(JobMetrics(status))
    lake = LakeMetrics(registry)
    lake.events.inc(4)
    lake.dead_letters.inc()
    MirrorMetrics(JobContext(cast(Any, None), print, registry))
    counts = Counts(results=1)
    counts.late["orders"] = counts.invalid["orders"] = 1
    query = SimpleNamespace(lastProgress={"stateOperators": [{"numRowsTotal": 7}]})
    registry.register(WindowsMetrics("orders", counts, cast(Any, query)))
    verdict = WindowVerdict("orders", 60_000, "lake", "missing", 10, 9, missing=1)
    found = AuditResult("orders", 0, 60_000, "missing", [verdict], [], [], {"lake": 60_000}, {}, 1)
    registry.register(AuditMetrics(lambda: found))
    return registry


def kubelet() -> CollectorRegistry:
    """What a kubelet reports of the volume of a broker."""
    registry = CollectorRegistry()
    for name, value in (("available", 5e8), ("capacity", 1e9)):
        metric = f"kubelet_volume_stats_{name}_bytes"
        volume = Gauge(
            metric, "As of the kubelet.", ("namespace", "persistentvolumeclaim"), registry=registry
        )
        volume.labels(NAMESPACE, "data-demo-brokers-0").set(value)
    return registry


def commit_to_zookeeper(connect: str) -> None:
    """The offset of a consumer of Kafka 0.8."""
    client = KazooClient(connect)
    client.start(30)
    try:
        client.create("/consumers/old/offsets/orders/0", b"0", makepath=True)
        client.create("/consumers/old/ids/old_1", b"{}", makepath=True)
    finally:
        client.stop()
        client.close()


def work(bootstrap: str, server: Prometheus, targets: int) -> None:
    """Produce, consume and commit until Prometheus has seen the commits of several scrapes, and has scraped
    all targets so often: it may learn of some of them five seconds after the others."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "billing",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    committed = 0
    producer.list_topics("nowhere", timeout=30)  # an error in a response

    def is_seen() -> bool:
        nonlocal committed
        for partition in range(PARTITIONS):
            for _ in range(10):
                producer.produce("orders", b"v" * 100, partition=partition)
        assert producer.flush(30) == 0
        consumer.consume(10, timeout=0.1)
        if not consumer.assignment():
            return False
        committed += 1
        offsets = [TopicPartition("orders", partition, committed) for partition in range(PARTITIONS)]
        consumer.commit(offsets=offsets, asynchronous=False)
        rate = f"rate(kafka_consumergroup_current_offset[{10 * INTERVAL_S}s]) > 0"
        names = ("kafka_consumergroupzookeeper_members", "kafka_log_logflushstats_logflushrateandtimems")
        timed = [
            f'kafka_network_requestmetrics_totaltimems{{request="{api}"}}' for api in ("Produce", "Fetch")
        ]
        scraped = server.query(f"sum_over_time(up[{10 * INTERVAL_S}s]) >= 3")
        return len(scraped) == targets and all(server.query(each) for each in (rate, *names, *timed))

    try:
        consumer.subscribe(["orders"])
        assert wait_until(is_seen, timeout_s=WAIT_S, poll_s=0.05)
    finally:
        consumer.close()


def test_every_panel_of_every_dashboard_has_data(scraped: Scraped) -> None:
    rate = f"{10 * INTERVAL_S}s"
    empty = [
        (name, panel["title"], query)
        for name, dashboard in monitoring.dashboards().items()
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
        if not scraped.server.query(query := monitoring.with_defaults(target["expr"], rate))
    ]
    assert empty == []


def test_every_variable_has_values(scraped: Scraped) -> None:
    for name, dashboard in monitoring.dashboards().items():
        for variable, metric, label in monitoring.variables(dashboard):
            values = scraped.server.get(f"label/{label}/values", **{"match[]": metric})
            assert values, f"{name}: {variable}"


def test_every_metric_of_a_query_is_scraped(scraped: Scraped) -> None:
    names = set(scraped.server.get("label/__name__/values"))
    missing = {
        where: unknown
        for where, query in monitoring.all_queries()
        if (unknown := monitoring.metrics_of(query) - names)
    }
    assert missing == {}


def exported(address: str) -> Iterator[monitoring.Row]:
    """The metrics of a page, with their types and labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as response:
        text = response.read().decode()
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels}
        if family.samples and not family.name.endswith("_created"):
            yield monitoring.Row(name, family.type, frozenset(labels - {"le"}))


@pytest.mark.parametrize("part", ["Brokers", "Operator", "Pipelines", "Registry"])
def test_the_tables_of_the_page_are_what_is_exported(scraped: Scraped, part: str) -> None:
    addresses = scraped.pages[part.lower()]
    found = {row.name: row for address in addresses for row in exported(address)}
    documented = {row.name: row for row in monitoring.tables()[part]}
    assert found == documented


def test_prometheus_evaluates_the_alerts(scraped: Scraped) -> None:
    rules = [rule for group in scraped.server.get("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"]: rule["health"] for rule in rules} == {
        rule["alert"]: "ok" for rule in monitoring.alerts()
    }
    assert {rule["lastError"] for rule in rules if "lastError" in rule} <= {""}
