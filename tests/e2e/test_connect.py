"""Apache Kafka Connect on a real Kubernetes: workers with a User's credentials that roll and grow; connectors
with states, restarts and offsets.

One small cluster in a namespace of its own. The file connectors copy a file of the worker through a topic
into another file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pytest

from tests.e2e.clusters import NAMESPACE, Cluster, cluster_spec
from tests.e2e.installing import load_connect_image
from tests.e2e.kube import Kube, Object, wait_for

_READY_S: Final = 240
_START_S: Final = 180
_FILE: Final = "/etc/ottla/log4j.properties"
_COPY: Final = "/tmp/copy.txt"
_TEXTS: Final = "org.apache.kafka.connect.storage.StringConverter"
_FILES: Final = "org.apache.kafka.connect.file.FileStream"


@pytest.fixture(scope="module")
def small(kube: Kube, operator: str) -> Iterator[Cluster]:
    """One broker with passwords, and a worker whose connectors copy a file."""
    load_connect_image()
    namespace = f"{NAMESPACE}-connect"
    kube.ensure_namespace(namespace)
    cluster = Cluster(kube, namespace, "small")
    volume = {"size": "64Mi", "deleteClaim": True}
    listener = {"name": "secured", "port": 9093, "tls": True, "authentication": {"type": "scram-sha-512"}}
    cluster.create(
        cluster_spec(
            replicas=1,
            listeners=[listener],
            storage=volume,
            zookeeper={"managed": {"replicas": 1, "storage": volume}},
            config={"offsets.topic.num.partitions": 3},
        )
    )
    reference = {"clusterRef": {"name": "small"}}
    kube.apply(
        cluster.resource("User", "connect", {**reference, "authentication": {"type": "scram-sha-512"}}),
        cluster.resource("ConnectCluster", "main", {**reference, **workers()}),
        connector(cluster, "from-file"),
        connector(cluster, "to-file"),
    )
    cluster.wait_ready(_READY_S)
    for kind, name in (("connectcluster", "main"), ("connector", "from-file"), ("connector", "to-file")):
        wait_for(f"{kind} {name} is Ready", partial(cluster.is_ready, kind, name), _START_S)
    yield cluster
    kube.kubectl("delete", "namespace", namespace, "--wait=false")


def workers(**config: Any) -> Object:
    settings = {"plugin.path": "/opt/connect/file", "key.converter": _TEXTS, "value.converter": _TEXTS}
    resources = {"requests": {"cpu": "10m", "memory": "256Mi"}}
    more = {"offset.flush.interval.ms": 1000, "offset.storage.partitions": 2, "status.storage.partitions": 1}
    return {
        "user": "connect",
        "replicas": 1,
        "resources": resources,
        "config": {**settings, **more, **config},
    }


def connector(cluster: Cluster, name: str, **spec: Any) -> Object:
    source = {"class": f"{_FILES}SourceConnector", "config": {"file": _FILE, "topic": "lines"}}
    sink = {"class": f"{_FILES}SinkConnector", "config": {"file": _COPY, "topics": "lines"}}
    own = source if name == "from-file" else sink
    return cluster.resource("Connector", name, {"connectRef": {"name": "main"}, **own, **spec})


def status(cluster: Cluster, name: str, kind: str = "connector") -> Object:
    found = cluster.kube.get(kind, name, cluster.namespace) or {}
    return dict(found.get("status") or {})


def reason(cluster: Cluster, name: str, kind: str = "connector") -> str:
    return str(cluster.condition("Ready", kind, name).get("reason", ""))


def in_worker(cluster: Cluster, *command: str, worker: int = 0) -> str:
    return cluster.kube.kubectl("exec", f"main-connect-{worker}", "-n", cluster.namespace, "--", *command)


def copies(cluster: Cluster) -> float:
    """How many times the copy has the file."""
    whole, copy = in_worker(cluster, "cat", _FILE), in_worker(cluster, "cat", _COPY)
    assert copy.startswith(whole[: len(copy)])
    return len(copy) / len(whole)


def pods(cluster: Cluster) -> dict[str, str]:
    found = cluster.kube.list("pod", cluster.namespace, "ottla.dev/connect=main")
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}


def test_a_file_is_copied_through_a_topic_by_workers_with_a_password(small: Cluster) -> None:
    wait_for("the file is copied", lambda: copies(small) == 1, 60)
    of_workers = status(small, "main", "connectcluster")
    assert of_workers["version"].startswith("3.9")
    assert f"{_FILES}SourceConnector" in [each["class"] for each in of_workers["connectorPlugins"]]
    columns = small.kube.kubectl("get", "occ,ocn", "-n", small.namespace, "--no-headers")
    assert [line.split()[1] for line in columns.splitlines() if line] == ["True"] * 3, columns


def test_requests_of_probes_are_not_logged(small: Cluster) -> None:
    log = small.kube.kubectl("logs", "main-connect-0", "-n", small.namespace)
    assert "Kafka Connect started" in log
    assert "/health" not in log


def test_offsets_of_a_stopped_connector_are_listed_and_reset(small: Cluster) -> None:
    kube = small.kube
    kube.apply(connector(small, "from-file", state="stopped"))
    wait_for("its offsets are listed", lambda: status(small, "from-file").get("offsets"), 60)
    (pair,) = status(small, "from-file")["offsets"]
    assert pair["partition"] == {"filename": _FILE}
    assert pair["offset"] == {"position": len(in_worker(small, "cat", _FILE))}

    reset = {"requestId": "again", "reset": True}
    kube.apply(connector(small, "from-file", state="stopped", alterOffsets=reset))
    wait_for("reset", lambda: status(small, "from-file").get("handledOffsets") == "again", 60)
    assert not status(small, "from-file").get("offsets")
    kube.apply(connector(small, "from-file", alterOffsets=reset))
    wait_for("it is copied again", lambda: copies(small) == 2, 60)
    assert status(small, "from-file")["state"] == "RUNNING"


def test_annotations_restart_a_connector_and_a_task(small: Cluster) -> None:
    annotate = partial(small.kube.kubectl, "annotate", "ocn", "to-file", "-n", small.namespace, "--overwrite")
    annotate("ottla.dev/restart-requested-at=one")
    wait_for("restarted", lambda: status(small, "to-file").get("handledRestart") == "one", 60)
    annotate("ottla.dev/restart-task-requested-at=0@one")
    wait_for("the task, too", lambda: status(small, "to-file").get("handledTaskRestart") == "0@one", 60)
    wait_for("it runs", lambda: small.is_ready("connector", "to-file"), 60)


def test_mistakes_are_reported_and_the_last_configuration_goes_on(small: Cluster) -> None:
    wrong = connector(small, "from-file")
    wrong["spec"]["config"] = {"file": _FILE, "batch.size": "many"}
    small.kube.apply(wrong)
    wait_for("refused", lambda: reason(small, "from-file") == "InvalidConfig", 60)
    assert "spec.config[topic]" in small.condition("Ready", "connector", "from-file")["message"]
    assert status(small, "from-file")["state"] == "RUNNING"
    small.kube.apply(connector(small, "from-file"))
    wait_for("Ready again", lambda: small.is_ready("connector", "from-file"), 60)


def test_workers_roll_for_a_setting_and_grow(small: Cluster) -> None:
    before = pods(small)
    reference = {"clusterRef": {"name": "small"}}
    changed = workers(**{"offset.flush.interval.ms": 2000})
    small.kube.apply(small.resource("ConnectCluster", "main", {**reference, **changed}))
    wait_for(
        "the worker is a new one", lambda: pods(small) and not before.items() & pods(small).items(), _START_S
    )
    wait_for("Ready", lambda: small.is_ready("connectcluster", "main"), _START_S)
    small.kube.kubectl("scale", "occ/main", "-n", small.namespace, "--replicas=2")
    wait_for(
        "two workers",
        lambda: status(small, "main", "connectcluster").get("readyReplicas") == 2,
        _START_S,
    )
    wait_for("the connectors run", lambda: small.is_ready("connector", "to-file"), 120)


def test_a_deleted_connector_is_gone_from_connect(small: Cluster) -> None:
    small.kube.delete("connector", "to-file", small.namespace, "--timeout=60s")
    url = status(small, "main", "connectcluster")["url"]
    assert json.loads(in_worker(small, "python3", "-c", _GET, f"{url}/connectors")) == ["from-file"]


_GET: Final = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=20).read().decode())"
