"""What /metrics tells of two brokers: all that the dashboards of Kafka's users ask for, and that it is right.

The text is read by prometheus_client's parser; lags are compared with what kafka-consumer-groups.sh says.
"""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from bench.apache_kafka import run_tool
from ottla.local.cluster import LocalCluster
from ottla.local.processes import free_port
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(300)

PARTITIONS = 4
RECORDS = 10  # in partition 0, one more in each of the next

# What Strimzi's dashboard of Kafka and its alerts ask for, with the labels that are selected or grouped by.
# The dashboard's other sources are the JVM, the kubelet and the containers.
STRIMZI_KAFKA: dict[str, tuple[str, ...]] = {
    "kafka_cluster_partition_atminisr": ("topic",),
    "kafka_cluster_partition_replicascount": ("topic", "partition"),
    "kafka_cluster_partition_underminisr": ("topic",),
    "kafka_controller_controllerstats_uncleanleaderelections_total": (),
    "kafka_controller_kafkacontroller_activecontrollercount": (),
    "kafka_controller_kafkacontroller_offlinepartitionscount": (),
    "kafka_log_log_size": ("topic", "partition"),
    "kafka_log_logmanager_offlinelogdirectorycount": (),
    "kafka_network_socketserver_networkprocessoravgidle_percent": (),
    "kafka_server_brokertopicmetrics_bytesin_total": ("topic",),
    "kafka_server_brokertopicmetrics_bytesout_total": ("topic",),
    "kafka_server_brokertopicmetrics_failedfetchrequests_total": ("topic",),
    "kafka_server_brokertopicmetrics_failedproducerequests_total": ("topic",),
    "kafka_server_brokertopicmetrics_messagesin_total": ("topic",),
    "kafka_server_brokertopicmetrics_totalfetchrequests_total": ("topic",),
    "kafka_server_brokertopicmetrics_totalproducerequests_total": ("topic",),
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent": (),
    "kafka_server_kafkaserver_linux_disk_read_bytes": (),
    "kafka_server_kafkaserver_linux_disk_write_bytes": (),
    "kafka_server_replicamanager_leadercount": (),
    "kafka_server_replicamanager_partitioncount": (),
    "kafka_server_replicamanager_underminisrpartitioncount": (),
    "kafka_server_replicamanager_underreplicatedpartitions": (),
    "kafka_server_socket_server_metrics_connection_count": ("listener",),
    "process_open_fds": (),
}
# By Strimzi's dashboard and alerts for kafka_exporter, and by the exporter's own.
KAFKA_EXPORTER: dict[str, tuple[str, ...]] = {
    "kafka_broker_info": ("id", "address"),
    "kafka_brokers": (),
    "kafka_consumergroup_current_offset": ("consumergroup", "topic", "partition"),
    "kafka_consumergroup_current_offset_sum": ("consumergroup", "topic"),
    "kafka_consumergroup_lag": ("consumergroup", "topic", "partition"),
    "kafka_consumergroup_lag_sum": ("consumergroup", "topic"),
    "kafka_consumergroup_members": ("consumergroup",),
    "kafka_topic_partition_current_offset": ("topic", "partition"),
    "kafka_topic_partition_in_sync_replica": ("topic", "partition"),
    "kafka_topic_partition_leader": ("topic", "partition"),
    "kafka_topic_partition_leader_is_preferred": ("topic", "partition"),
    "kafka_topic_partition_oldest_offset": ("topic", "partition"),
    "kafka_topic_partition_replicas": ("topic", "partition"),
    "kafka_topic_partition_under_replicated_partition": ("topic", "partition"),
    "kafka_topic_partitions": ("topic",),
}
# What others ask of Kafka's requests and logs, by the names that the same rules give them.
OTHERS: dict[str, tuple[str, ...]] = {
    "kafka_coordinator_group_groupmetadatamanager_numgroups": (),
    "kafka_log_log_logendoffset": ("topic", "partition"),
    "kafka_log_log_logstartoffset": ("topic", "partition"),
    "kafka_log_log_numlogsegments": ("topic", "partition"),
    "kafka_log_logcleaner_deadthreadcount": (),
    "kafka_network_requestmetrics_requests_total": ("request", "version"),
    "kafka_network_requestmetrics_totaltimems": ("request", "quantile"),
    "kafka_network_requestmetrics_totaltimems_count": ("request",),
    "kafka_server_brokertopicmetrics_replicationbytesout_total": (),
    "kafka_server_kafkaserver_brokerstate": (),
    "kafka_server_replicamanager_isrexpands_total": (),
    "kafka_server_replicamanager_isrshrinks_total": (),
    "process_cpu_seconds_total": (),
    "process_resident_memory_bytes": (),
}


class Sample(NamedTuple):
    labels: dict[str, str]
    value: float


Scrape = dict[str, list[Sample]]


class Observed:
    """A cluster, and the HTTP ports of its brokers."""

    def __init__(self, cluster: LocalCluster, ports: dict[int, int]) -> None:
        self.cluster = cluster
        self.ports = ports

    def get(self, broker: int, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[broker]}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()

    def scrape(self) -> Scrape:
        """All samples of all brokers, by name."""
        found: defaultdict[str, list[Sample]] = defaultdict(list)
        for broker in self.ports:
            status, text = self.get(broker, "/metrics")
            assert status == 200
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    found[sample.name].append(Sample(sample.labels, sample.value))
        return found

    def sum(self, name: str, **labels: str) -> float:
        return total(self.scrape(), name, **labels)


def total(scrape: Scrape, name: str, **labels: str) -> float:
    """sum(name{labels}), as a dashboard asks over all brokers."""
    return sum(s.value for s in scrape[name] if labels.items() <= s.labels.items())


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    ports = {0: free_port(), 1: free_port()}
    settings = {"offsets.topic.num.partitions": "4", "offsets.topic.replication.factor": "1"}
    with LocalCluster(
        tmp_path_factory.mktemp("metrics"),
        brokers=1,
        settings={**settings, "ottla.http.port": str(ports[0])},
    ) as cluster:
        cluster.add_broker(1, {"ottla.http.port": str(ports[1])})
        cluster.wait_until(lambda: len(cluster.describe().brokers) == 2, "both brokers")
        cluster.create_topic("watched", assignment={p: [p % 2, 1 - p % 2] for p in range(PARTITIONS)})
        fill(cluster)
        yield Observed(cluster, ports)


def fill(cluster: LocalCluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    failed: list[object] = []
    for partition in range(PARTITIONS):
        for _ in range(RECORDS + partition):
            producer.produce(
                "watched", b"v" * 100, partition=partition, on_delivery=lambda e, _: e and failed.append(e)
            )
    assert producer.flush(120) == 0
    assert not failed
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "readers",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe(["watched"])
        left = PARTITIONS * RECORDS + sum(range(PARTITIONS))
        for _ in range(240):
            message = consumer.poll(0.5)
            if message is not None:
                assert not message.error(), message.error()
                left -= 1
                if not left:
                    break
        assert not left
        # It says that it has read three records of each partition.
        consumer.commit(
            offsets=[TopicPartition("watched", p, 3) for p in range(PARTITIONS)], asynchronous=False
        )
    finally:
        consumer.close()


@pytest.mark.parametrize(
    "asked", [STRIMZI_KAFKA, KAFKA_EXPORTER, OTHERS], ids=["strimzi", "exporter", "others"]
)
def test_every_query_of_the_dashboards_finds_its_metric_and_labels(
    observed: Observed, asked: dict[str, tuple[str, ...]]
) -> None:
    # Of the requests one in sixteen is timed: brokers ask each other all the time.
    observed.cluster.wait_until(
        lambda: bool(observed.scrape()["kafka_network_requestmetrics_totaltimems"]), "a request to be timed"
    )
    scrape = observed.scrape()
    missing = {
        name: labels
        for name, labels in asked.items()
        if not any(sample.labels.keys() >= set(labels) for sample in scrape[name])
    }
    assert not missing


def test_received_and_sent_bytes_are_counted(observed: Observed) -> None:
    records = PARTITIONS * RECORDS + sum(range(PARTITIONS))
    observed.cluster.wait_until(
        lambda: (
            observed.sum("kafka_server_brokertopicmetrics_bytesout_total", topic="watched") >= 100 * records
        ),
        "the consumer's bytes to be counted",
    )
    scrape = observed.scrape()
    traffic = "kafka_server_brokertopicmetrics_"
    assert total(scrape, f"{traffic}messagesin_total", topic="watched") == records
    assert total(scrape, f"{traffic}messagesin_total", topic="") >= records
    assert 100 * records < total(scrape, f"{traffic}bytesin_total", topic="watched") < 1000 * records
    # The log is what came in, on two disks.
    assert total(scrape, "kafka_log_log_size", topic="watched") == 2 * total(
        scrape, f"{traffic}bytesin_total", topic="watched"
    )
    assert total(scrape, f"{traffic}replicationbytesout_total") >= 100 * records
    assert total(scrape, f"{traffic}failedproducerequests_total", topic="watched") == 0
    assert total(scrape, "kafka_network_requestmetrics_requests_total", request="Produce") > 0


def test_the_cluster_is_counted_once(observed: Observed) -> None:
    """Sums over all brokers, as the dashboards make them."""
    observed.cluster.wait_until(
        lambda: observed.sum("kafka_topic_partition_in_sync_replica", topic="watched") == 2 * PARTITIONS,
        "all replicas to be in sync",
    )
    scrape = observed.scrape()
    controller = "kafka_controller_kafkacontroller_"
    assert total(scrape, f"{controller}activecontrollercount") == 1
    assert total(scrape, f"{controller}offlinepartitionscount") == 0
    assert total(scrape, f"{controller}activebrokercount") == 2
    assert total(scrape, "kafka_brokers") == 2
    assert len(scrape["kafka_broker_info"]) == 2
    assert total(scrape, "kafka_topic_partitions", topic="watched") == PARTITIONS
    assert total(scrape, "kafka_topic_partition_replicas", topic="watched") == 2 * PARTITIONS
    assert total(scrape, "kafka_topic_partition_under_replicated_partition", topic="watched") == 0
    assert total(
        scrape, "kafka_topic_partition_current_offset", topic="watched"
    ) == PARTITIONS * RECORDS + sum(range(PARTITIONS))
    led = total(scrape, "kafka_server_replicamanager_leadercount")
    assert led == total(scrape, f"{controller}globalpartitioncount")


def test_the_lag_of_a_group_equals_that_of_kafkas_tool(observed: Observed) -> None:
    """Whoever leads the partitions: the group's coordinator asks the other broker."""
    needs_kafka_jars()
    expected = {str(p): RECORDS + p - 3 for p in range(PARTITIONS)}

    def lags() -> dict[str, float]:
        return {
            s.labels["partition"]: s.value
            for s in observed.scrape()["kafka_consumergroup_lag"]
            if s.labels["consumergroup"] == "readers"
        }

    observed.cluster.wait_until(lambda: lags() == expected, "the lag to be told")
    assert observed.sum("kafka_consumergroup_lag_sum", consumergroup="readers") == sum(expected.values())
    assert observed.sum("kafka_consumergroup_current_offset_sum", consumergroup="readers") == 3 * PARTITIONS
    tool = run_tool(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        [
            *("--bootstrap-server", observed.cluster.bootstrap, "--timeout", "90000"),
            *("--describe", "--group", "readers"),
        ],
    )
    rows = re.findall(r"^readers\s+watched\s+(\d+)\s+\d+\s+\d+\s+(\d+)", tool.stdout, re.MULTILINE)
    assert {partition: int(lag) for partition, lag in rows} == expected, tool.stdout + tool.stderr


def test_probes_report_whether_a_broker_serves(observed: Observed) -> None:
    assert observed.get(0, "/healthz") == (200, "ok\n")
    assert observed.get(1, "/readyz") == (200, "ready\n")
    assert observed.get(1, "/")[0] == 404
