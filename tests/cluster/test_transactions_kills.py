"""A consume-transform-produce loop whose processes are killed in turn writes exactly one committed copy of
each record.

The loop is Kafka's own TransactionalMessageCopier, with random aborts: it consumes, produces, and commits the
consumed offsets in one transaction. The client and the brokers that serve it are killed.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from faults import bring_back, cluster_for_faults, present_leader
from oracles import needs_kafka_jars

from bench.apache_kafka import java_command
from ottla.coordinators.records import partition_for
from ottla.local.cluster import LocalCluster
from ottla.local.processes import wait_until

RECORDS, IN_A_TRANSACTION = 120, 5
"""Of each round."""
STATE_PARTITIONS = 3
WAIT_S = 240
ID, GROUP = "copier", "copiers"
pytestmark = pytest.mark.timeout(900)

Victim = Callable[[LocalCluster], int]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    needs_kafka_jars()
    settings = {
        "transaction_state_log_num_partitions": str(STATE_PARTITIONS),
        "transaction_abort_timed_out_transaction_cleanup_interval_ms": "1000",
    }
    with cluster_for_faults(tmp_path_factory.mktemp("cluster"), **settings) as running:
        yield running


class Copier:
    """One that copies what is in the input, and is started again when it ends before that is done."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._command = java_command(
            "org.apache.kafka.tools.TransactionalMessageCopier",
            *("--broker-list", bootstrap, "--input-topic", "input", "--input-partition", "0"),
            *("--output-topic", "output", "--consumer-group", GROUP, "--transactional-id", ID),
            *("--transaction-size", str(IN_A_TRANSACTION), "--enable-random-aborts", "--use-group-metadata"),
            # Who comes after one that was killed asks for its offsets first, and waits for that transaction.
            *("--transaction-timeout", "15000"),
        )
        self._log = directory / "copier.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def wait_until_at_work(self) -> None:
        """Until it has begun some transactions."""
        before = self._rounds()

        def goes_on() -> bool:
            self._start_again()
            return self._rounds() >= before + 5

        assert wait_until(goes_on, timeout_s=WAIT_S), self._log.read_text()[-3000:]

    def wait_until_done(self) -> None:
        def done() -> bool:
            self._start_again()
            assert self._process is not None
            return self._process.poll() == 0

        assert wait_until(done, timeout_s=WAIT_S), self._log.read_text()[-3000:]

    def _start_again(self) -> None:
        assert self._process is not None
        if self._process.poll() not in (None, 0):
            self.start()

    def _rounds(self) -> int:
        return self._log.read_text().count("ProcessLoop") if self._log.exists() else 0

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def produce_input(bootstrap: str, first: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20})
    for number in range(first, first + RECORDS):
        producer.produce("input", str(number), partition=0)
    assert producer.flush(WAIT_S) == 0


def committed(bootstrap: str) -> list[str]:
    """What a reader of committed records finds in the output, from its start to its stable end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    found: list[str] = []
    try:
        consumer.assign([TopicPartition("output", 0, 0)])
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                value = message.value()
                assert value is not None
                found.append(value.decode())
            elif error.code() == KafkaError._PARTITION_EOF:
                break
    finally:
        consumer.close()
    return found


def leader_of_output(cluster: LocalCluster) -> int:
    return present_leader(cluster, "output")


def transaction_coordinator(cluster: LocalCluster) -> int:
    return present_leader(cluster, "__transaction_state", partition_for(ID, STATE_PARTITIONS))


def test_every_record_has_one_committed_copy(cluster: LocalCluster, tmp_path: Path) -> None:
    for topic in ("input", "output"):
        cluster.create_topic(topic, replicas=3, min_insync_replicas="2")
    victims: tuple[Victim | None, ...] = (transaction_coordinator, None, leader_of_output)
    copier = Copier(cluster.bootstrap, tmp_path)
    try:
        for number, victim in enumerate(victims):
            produce_input(cluster.bootstrap, number * RECORDS)
            copier.start()
            copier.wait_until_at_work()
            if victim is None:
                copier.kill()
            else:
                cluster.brokers[victim(cluster)].kill()
            copier.wait_until_done()
            bring_back(cluster)
    finally:
        copier.kill()
    expected = [str(number) for number in range(len(victims) * RECORDS)]
    # Who commits does not wait for the last markers.
    assert wait_until(lambda: len(committed(cluster.bootstrap)) >= len(expected), timeout_s=WAIT_S)
    assert committed(cluster.bootstrap) == expected
