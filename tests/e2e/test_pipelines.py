"""A Pipeline on a real Kubernetes: a driver and an executor as pods, upgraded, suspended, killed, and taken
away.

One small cluster in a namespace of its own, and one scenario: each start of Spark is slow. The oracles are
the ids that were produced, and pyarrow in a pod that reads the volume when no Spark is there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.clusters import NAMESPACE, SPARK_IMAGE, Cluster, cluster_spec
from tests.e2e.installing import load_spark_image
from tests.e2e.kube import Kube, Object, wait_for

TOPIC, NAME = "orders", "orders"
DRIVER = f"{NAME}-driver-0"
_READY_S = 240
_SPARK_S = 180

CONFIG: dict[str, Any] = {
    "source": {"topics": [TOPIC]},
    "format": {"type": "json", "fields": "id STRING, event_time TIMESTAMP"},
    "event": {"id": "id", "time": "event_time"},
    "trigger": {"interval": "1 second"},
    "sink": {"type": "parquet", "path": "lake"},
    "spark": {"settings": {"spark.sql.shuffle.partitions": "2"}},
}

PRODUCE = """
import json, sys
from confluent_kafka import Producer
first, count = int(sys.argv[2]), int(sys.argv[3])
producer = Producer({"bootstrap.servers": sys.argv[1], "enable.idempotence": True})
for number in range(first, first + count):
    value = json.dumps({"id": f"order-{number}", "event_time": "2026-01-02T03:04:05Z"})
    producer.produce("orders", value, str(number))
assert producer.flush(60) == 0
"""
# What process 1 has started: the driver.
KILL = """
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    if open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1] == "1":
        os.kill(int(pid), 9)
"""
READ = """
import json
import pyarrow.dataset as ds
table = ds.dataset("/data/lake", format="parquet").to_table(columns=["id"])
print(json.dumps(sorted(table["id"].to_pylist())))
"""


# A job of a user's own, in the resource, and what it wrote.
FUNCTION = """
def shouted(job):
    rows = job.read_topic("orders", "id STRING, event_time TIMESTAMP")
    job.write(rows.selectExpr("upper(id) AS id"), job.topic_sink("shouts"))
"""
READ_TOPIC = """
import json, sys
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "oracle", "auto.offset.reset": "earliest"})
consumer.subscribe(["shouts"])
found = []
while len(found) < int(sys.argv[2]) or record is not None:
    record = consumer.poll(5)
    if record is not None:
        assert record.error() is None, record.error()
        found.append(json.loads(record.value())["id"])
print(json.dumps(sorted(found)))
"""


def spec(*, suspend: bool = False, **config: Any) -> Object:
    small = {"requests": {"cpu": "100m", "memory": "1Gi"}}
    return {
        "clusterRef": {"name": "demo"},
        "job": "lake",
        "suspend": suspend,
        "storage": {"size": "256Mi", "deleteClaim": True},
        "driver": {"resources": small},
        "executor": {"instances": 1, "resources": small},
        "config": {**CONFIG, **config},
    }


class Line:
    """The pipeline, and how much was sent down it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.kube, self.namespace = cluster, cluster.kube, cluster.namespace
        self.produced = 0

    def apply(self, content: Object) -> None:
        self.kube.apply(self.cluster.resource("Pipeline", NAME, content))

    def status(self) -> Object:
        found = self.kube.get("pipelines.ottla.dev", NAME, self.namespace)
        return {} if found is None else dict(found.get("status") or {})

    def condition(self, type_: str) -> tuple[str, str, str]:
        for condition in self.status().get("conditions", []):
            if condition["type"] == type_:
                return condition["status"], condition["reason"], condition.get("message", "")
        return "", "", ""

    def pod(self, name: str = DRIVER) -> Object | None:
        return self.kube.get("pod", name, self.namespace)

    def executors(self) -> list[Object]:
        return self.kube.list(
            "pod", self.namespace, f"ottla.dev/pipeline={NAME},ottla.dev/component=executor"
        )

    def run(
        self, name: str, script: str, *arguments: str, volume: bool = False, timeout_s: float = 60
    ) -> str:
        """A pod of Spark's image that runs Python, to its end; what it printed."""
        container: Object = {
            "name": "run",
            "image": SPARK_IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "command": ["python3", "-c", script, *arguments],
        }
        pod: Object = {"restartPolicy": "Never", "containers": [container]}
        if volume:
            container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
            claim = {"claimName": f"data-{DRIVER}"}
            pod["volumes"] = [{"name": "data", "persistentVolumeClaim": claim}]
        metadata = {"name": name, "namespace": self.namespace}
        self.kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod})

        def phase() -> str:
            found = self.pod(name) or {}
            phase = found.get("status", {}).get("phase", "")
            return phase if phase in ("Succeeded", "Failed") else ""

        ended = wait_for(f"pod {name} has ended", phase, timeout_s)
        said = self.kube.kubectl("logs", name, "-n", self.namespace)
        self.kube.delete("pod", name, self.namespace, "--now")
        assert ended == "Succeeded", said
        return said

    def produce(self, count: int) -> None:
        bootstrap = f"demo-bootstrap.{self.namespace}.svc:9092"
        self.run(f"produce-{self.produced}", PRODUCE, bootstrap, str(self.produced), str(count))
        self.produced += count

    def wait_caught_up(self) -> None:
        """All is read that was produced: by the job's own word, and by the group that it publishes."""

        def is_so() -> bool:
            status = self.status()
            return (
                self.condition("CaughtUp")[0] == "True"
                and status.get("lag") == 0
                and self.reached() == self.produced
            )

        wait_for(f"{self.produced} records are landed", is_so, _SPARK_S)

    def reached(self) -> int:
        """The offsets of the job's group, all partitions together."""
        group = self.kube.get("consumergroups.ottla.dev", "of-the-job", self.namespace) or {}
        topics = group.get("status", {}).get("topics", [])
        lag = sum(topic["lag"] for topic in topics)
        return self.produced - lag if topics else -1

    def landed(self, name: str) -> list[str]:
        found: list[str] = json.loads(self.run(name, READ, volume=True).strip().splitlines()[-1])
        return found


@pytest.fixture(scope="module")
def line(kube: Kube, operator: str) -> Iterator[Line]:
    load_spark_image()
    namespace = f"{NAMESPACE}-pipelines"
    kube.ensure_namespace(namespace)
    cluster = Cluster(kube, namespace, "demo")
    small = {"size": "64Mi", "deleteClaim": True}
    offsets = {"offsets.topic.num.partitions": 1, "offsets.topic.replication.factor": 1}
    cluster.create(
        cluster_spec(
            replicas=1,
            storage=small,
            zookeeper={"managed": {"replicas": 1, "storage": small}},
            config={"min.insync.replicas": 1, **offsets},
        )
    )
    line = Line(cluster)
    # The job tells what is wrong with its configuration; that needs no Spark.
    line.apply(spec(source={"topics": TOPIC}))
    print(f"apply to Ready: {cluster.wait_ready(_READY_S):.0f} s")
    cluster.create_topic(TOPIC, partitions=2, replicas=1)
    group = {"clusterRef": {"name": "demo"}, "groupId": f"ottla-lake-{NAME}"}
    kube.apply(cluster.resource("ConsumerGroup", "of-the-job", group))
    yield line
    kube.kubectl("delete", "namespace", namespace, "--wait=false")


def test_a_pipeline_lands_each_record_from_its_first_mistake_to_its_deletion(line: Line) -> None:
    kube, namespace, began = line.kube, line.namespace, time.monotonic()

    def say(what: str) -> None:
        print(f"{what}: {time.monotonic() - began:.0f} s")

    wait_for("its configuration is refused", lambda: line.condition("Failing")[1] == "InvalidConfig", 60)
    assert line.condition("Failing")[2].startswith("spec.config.source.topics: ")
    say("refused")

    line.produce(500)
    line.apply(spec())
    wait_for("it runs", lambda: line.condition("Running")[0] == "True", _SPARK_S)
    line.wait_caught_up()
    status = line.status()
    assert status["applicationId"].startswith("spark-")
    assert status["lastBatch"]["durationMs"] > 0
    assert line.condition("Failing")[0] == "False"
    executors = line.executors()
    assert len(executors) == 1
    assert executors[0]["metadata"]["ownerReferences"][0]["name"] == DRIVER
    say("caught up")

    # Another configuration: another driver, once the first is gone.
    first = line.pod()
    assert first is not None
    line.apply(spec(maxOffsetsPerTrigger=200))

    def is_another() -> bool:
        now = line.pod()
        return now is not None and now["metadata"]["uid"] != first["metadata"]["uid"]

    wait_for("the driver is another one", is_another, 150)
    line.produce(300)
    wait_for("it runs again", lambda: line.condition("Running")[0] == "True", _SPARK_S)
    say("upgraded")

    # The driver's process is killed in the middle of its work: the kubelet starts it again.
    line.produce(300)
    kube.kubectl("exec", DRIVER, "-n", namespace, "--", "python3", "-c", KILL)
    wait_for("that is told", lambda: line.condition("Failing")[0] == "True", 60)
    line.wait_caught_up()
    wait_for("it has worked since", lambda: line.condition("Failing")[0] == "False", 60)
    say("back after a kill")

    line.apply(spec(suspend=True, maxOffsetsPerTrigger=200))
    wait_for("it is suspended", lambda: line.condition("Ready")[:2] == ("True", "Suspended"), 150)
    assert line.pod() is None
    wait_for("its executors are gone", lambda: not line.executors(), 60)
    assert line.landed("read-1") == sorted(f"order-{n}" for n in range(line.produced))
    line.produce(200)
    line.apply(spec())
    line.wait_caught_up()
    line.apply(spec(suspend=True))
    wait_for("it is suspended again", lambda: line.condition("Ready")[:2] == ("True", "Suspended"), 150)
    assert line.landed("read-2") == sorted(f"order-{n}" for n in range(line.produced))
    say("resumed")

    kube.delete("pipelines.ottla.dev", NAME, namespace, "--timeout=120s")
    kinds = ("statefulset", "configmap", "service", "serviceaccount", "rolebinding", "pvc")

    def left() -> list[str]:
        found = (item["metadata"]["name"] for kind in kinds for item in kube.list(kind, namespace))
        return [name for name in found if f"{NAME}-driver" in name]

    wait_for("nothing of it is left", lambda: not left(), 60)
    assert line.reached() == line.produced, "the group's offsets stay"
    say("gone")


def test_a_function_in_the_resource_is_a_job(line: Line) -> None:
    line.produce(100)
    line.cluster.create_topic("shouts", partitions=2, replicas=1)
    config = {
        "function": "shouted",
        "source": FUNCTION,
        "trigger": CONFIG["trigger"],
        "spark": CONFIG["spark"],
    }
    line.kube.apply(
        line.cluster.resource("Pipeline", "shouts", {**spec(), "job": "python", "config": config})
    )
    bootstrap = f"demo-bootstrap.{line.namespace}.svc:9092"
    said = line.run("oracle", READ_TOPIC, bootstrap, str(line.produced), timeout_s=_SPARK_S)
    assert json.loads(said.strip().splitlines()[-1]) == sorted(f"ORDER-{n}" for n in range(line.produced))
    line.kube.delete("pipelines.ottla.dev", "shouts", line.namespace, "--timeout=120s")
