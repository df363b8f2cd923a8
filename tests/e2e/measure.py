"""`make bench-kubernetes`: what the operator does on a real cluster, in seconds, requests and MiB.

Installs the chart, as the tests do, and measures on clusters of three brokers: from apply to Ready, a rolling
bounce under load, 1,000 new Topics, and the operator at rest while it watches them. Prints a table in
Markdown. Run it when nothing else runs on the machine; bench/README.md has figures and how to read them.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click
import yaml

from tests.e2e.clients import Traffic
from tests.e2e.clusters import NAMESPACE, SYSTEM, Cluster, cluster_spec
from tests.e2e.installing import WHY_NOT, connect, install_operator, uninstall_operator
from tests.e2e.kube import Kube, Object, wait_for

Row = tuple[str, str]

_LOAD_PER_S = 1000
_READY_S = 600
_PLURAL = "topics.ottla.dev"


@contextmanager
def _cluster(kube: Kube, name: str) -> Iterator[Cluster]:
    """A cluster that is not yet created; its namespace is deleted afterwards."""
    cluster = Cluster(kube, f"{NAMESPACE}-{name}", "demo")
    kube.ensure_namespace(cluster.namespace)
    try:
        yield cluster
    finally:
        kube.kubectl("delete", "namespace", cluster.namespace, timeout_s=600)


def _spec() -> Object:
    return cluster_spec(replicas=3, storage={"size": "1Gi", "deleteClaim": True})


def _apply_to_ready(kube: Kube, runs: int) -> list[Row]:
    """Seconds from apply to Ready of new clusters, of three brokers and three ZooKeeper servers."""
    seconds = []
    for _ in range(runs):
        with _cluster(kube, "measured") as cluster:
            began = time.monotonic()
            cluster.create(_spec())
            cluster.wait_ready(_READY_S)
            seconds.append(time.monotonic() - began)
    return [("apply to Ready, three brokers and three ZooKeeper servers", _spread(seconds, "s"))]


def _bounces(cluster: Cluster, runs: int) -> list[Row]:
    seconds, produce, consume = [], [], []
    cluster.create_topic("events")
    for run in range(runs):
        before = cluster.brokers()
        with Traffic(cluster, "events", per_second=_LOAD_PER_S) as traffic:
            cluster.patch({"config": {"queued.max.requests": 3 + run}})
            seconds.append(cluster.wait_rolled(before, _READY_S))
            traffic.wait_for_more(1000)
            traffic.assert_lost_nothing()
        produce.append(float(traffic.summary["produce_pause_s"]))
        consume.append(float(traffic.summary["consume_pause_s"]))
    return [
        (f"rolling bounce of three brokers, under {_LOAD_PER_S} records/s", _spread(seconds, "s")),
        ("longest pause of the producer (acks=all) in one, any partition", _spread(produce, "s", 2)),
        ("longest pause of the consumer in one, any partition", _spread(consume, "s", 2)),
    ]


# ---- many Topics


def _many_topics(cluster: Cluster, topics: int) -> list[Row]:
    spec = {"clusterRef": {"name": cluster.name}, "partitions": 1, "replicas": 3}
    documents = [cluster.resource("Topic", f"many-{number}", spec) for number in range(topics)]
    text = yaml.safe_dump_all(documents)
    began = time.monotonic()
    cluster.kube.kubectl("create", "-f", "-", text=text, timeout_s=600)
    created_s = time.monotonic() - began
    wait_for("all Topics are Ready", lambda: _ready_topics(cluster) >= topics, _READY_S, poll_s=1)
    return [
        (f"{topics} new Topics of 1 × 3: `kubectl create` alone", f"{created_s:.0f} s"),
        (
            f"{topics} new Topics: from the first created to the last Ready",
            f"{time.monotonic() - began:.0f} s",
        ),
    ]


def _ready_topics(cluster: Cluster) -> int:
    path = r'{.items[*].status.conditions[?(@.type=="Ready")].status}'
    said = cluster.kube.kubectl("get", _PLURAL, "-n", cluster.namespace, "-o", f"jsonpath={path}")
    return said.split().count("True")


def _idle(kube: Kube, topics: int, minutes: float) -> list[Row]:
    wait_for("the operator is at rest", lambda: _rate(kube, 15) < 1, _READY_S)
    before, watches = _requests(kube), _watches(kube)
    time.sleep(minutes * 60)
    requests, renewed = _requests(kube) - before, _watches(kube) - watches
    resident = _memory_mib(kube)
    return [
        (f"API requests of an idle operator that watches {topics} Topics", f"{requests / minutes:.1f} / min"),
        ("its watches begun anew", f"{renewed / minutes:.1f} / min"),
        ("its resident memory", f"{resident:.0f} MiB"),
    ]


def _rate(kube: Kube, seconds: float) -> float:
    before = _requests(kube)
    time.sleep(seconds)
    return (_requests(kube) - before) / seconds


def _requests(kube: Kube) -> float:
    """The operator's own count of requests to the API server, without watches."""
    path = f"/api/v1/namespaces/{SYSTEM}/services/ottla-metrics:http/proxy/metrics"
    return _sum(kube.kubectl("get", "--raw", path), r"^ottla_operator_api_requests_total\{.*\} (\S+)$")


def _watches(kube: Kube) -> float:
    """The API server's count of ended watches on Ottla's kinds; only the operator watches them."""
    pattern = r'^apiserver_request_total\{.*group="ottla\.dev".*verb="WATCH".*\} (\S+)$'
    return _sum(kube.kubectl("get", "--raw", "/metrics"), pattern)


def _sum(text: str, pattern: str) -> float:
    return sum(float(value) for value in re.findall(pattern, text, re.MULTILINE))


def _memory_mib(kube: Kube) -> float:
    """The memory of the operator's process, the largest in the pod; the other process is tini."""
    said = kube.kubectl(
        *("exec", "-n", SYSTEM, "deployment/ottla", "--", "sh", "-c", "grep -h VmRSS /proc/[0-9]*/status"),
    )
    return max(int(kib) for kib in re.findall(r"(\d+) kB", said)) / 1024


# ---- the table


def _spread(values: list[float], unit: str, digits: int = 0) -> str:
    """The median, the minimum and the maximum."""
    median = f"{statistics.median(values):.{digits}f} {unit}"
    if len(values) == 1:
        return median
    return f"{median} ({min(values):.{digits}f} to {max(values):.{digits}f}, {len(values)} runs)"


def _table(rows: list[Row]) -> str:
    return "\n".join(["| what | |", "|---|---|", *(f"| {what} | {figure} |" for what, figure in rows)])


def _where(kube: Kube) -> str:
    """A description of the machine, with its load before the run."""
    version = kube.kubectl("version").strip().splitlines()[-1]
    nodes = kube.kubectl("get", "nodes", "-o", "name").split()
    revision = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    return f"{version}; {len(nodes)} node of {os.cpu_count()} cores; revision {revision}; load before {load}"


@click.command()
@click.option("--runs", default=3, show_default=True, help="Of each new cluster and each bounce.")
@click.option("--topics", default=1000, show_default=True)
@click.option("--idle-minutes", default=5.0, show_default=True, help="Of watching it at rest.")
def main(runs: int, topics: int, idle_minutes: float) -> None:
    """Measure the operator on a real Kubernetes: the one of OTTLA_KUBE or KUBECONFIG."""
    kube = connect()
    if kube is None:
        raise click.ClickException(WHY_NOT)
    where = _where(kube)
    install_operator(kube)
    try:
        rows = _apply_to_ready(kube, runs)
        with _cluster(kube, "measured") as cluster:
            cluster.create(_spec())
            cluster.wait_ready(_READY_S)
            rows += _bounces(cluster, runs)
            rows += _many_topics(cluster, topics)
            rows += _idle(kube, topics, idle_minutes)
            going = time.monotonic()
        rows.append((f"that namespace with {topics} Topics deleted", f"{time.monotonic() - going:.0f} s"))
    finally:
        uninstall_operator(kube)
    click.echo(f"{where}\n\n{_table(rows)}")


if __name__ == "__main__":
    main()
