"""A broker that starts while the controller cannot reach it tells clients what ZooKeeper holds."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer

from ottla.client.admin import AdminClient
from ottla.client.admin_types import TopicDescription
from ottla.local.cluster import LocalCluster, run_admin

QUEUED = 500
ASKED_TIMES = 3
pytestmark = pytest.mark.timeout(300)

SETTINGS = {
    # So long the controller that is stopped remains the controller: the most that ZooKeeper allows here.
    "zookeeper.session.timeout.ms": "40000",
    "zookeeper.connection.timeout.ms": "60000",
    "offsets.topic.num.partitions": "1",
}


def test_a_producer_drops_no_queued_record(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, settings=SETTINGS) as cluster:
        stopped = cluster.controller()
        leader, restarted = sorted(set(cluster.brokers) - {stopped})
        cluster.create_topic("kept", assignment={0: [leader]}, replicas=1)
        asked = Asked(cluster.brokers[restarted].port)
        errors: list[KafkaError] = []
        delivered = 0

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            nonlocal delivered
            if error is None:
                delivered += 1
            else:
                errors.append(error)

        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "topic.metadata.refresh.interval.ms": 300,
                "socket.timeout.ms": 3000,  # of what the stopped controller is asked
                "reconnect.backoff.max.ms": 500,
                "statistics.interval.ms": 200,
                "stats_cb": asked.take,
                # Records stay in the queue until the flush.
                "linger.ms": 280_000,
                "batch.num.messages": 1_000_000,
            }
        )
        producer.produce("kept", b"first", on_delivery=on_delivery)
        assert producer.flush(60) == 0
        assert delivered == 1
        for n in range(QUEUED):
            producer.produce("kept", b"%d" % n, on_delivery=on_delivery)

        cluster.brokers[stopped].signal(signal.SIGSTOP)
        try:
            # Without the leader, there is only the broker that starts to ask for metadata.
            cluster.brokers[leader].kill()
            cluster.brokers[restarted].kill()
            cluster.brokers[restarted].start_and_wait()
            asked.from_now_on()

            def told_often_enough() -> bool:
                producer.poll(0.1)
                return asked.answers >= ASKED_TIMES or bool(errors)

            cluster.wait_until(told_often_enough, "the producer to ask for metadata", timeout_s=35)
            assert not errors, f"{len(errors)} records were dropped: {errors[0]}"
            described, controller = seen_by(cluster, restarted)
            assert controller == stopped, "the controller was replaced: the test shows nothing"
            assert [list(p.replicas) for p in described.partitions] == [[leader]]
            assert all_topics_of(cluster, restarted) == {"kept"}
        finally:
            cluster.brokers[stopped].signal(signal.SIGCONT)
        cluster.brokers[leader].start_and_wait()
        assert producer.flush(60) == 0
        assert (delivered, errors) == (1 + QUEUED, [])
        cluster.wait_until(lambda: cluster.fully_replicated("kept"), "all brokers to know the topic")


class Asked:
    """How many Metadata requests one broker has answered, by librdkafka's statistics."""

    def __init__(self, port: int) -> None:
        self._suffix = f":{port}/"
        self._counts: dict[str, int] = {}
        self._before = 0

    def take(self, statistics: str) -> None:
        brokers: dict[str, Any] = json.loads(statistics)["brokers"]
        for name, broker in brokers.items():
            if self._suffix in name:
                # A request that is on its way was counted as sent.
                self._counts[name] = broker["req"].get("Metadata", 0) - broker["waitresp_cnt"]

    def from_now_on(self) -> None:
        self._before = sum(self._counts.values())

    @property
    def answers(self) -> int:
        return sum(self._counts.values()) - self._before


def seen_by(cluster: LocalCluster, broker: int) -> tuple[TopicDescription, int]:
    async def ask(client: AdminClient) -> tuple[TopicDescription, int]:
        topic = (await client.describe_topics(["kept"]))["kept"]
        return topic, (await client.describe_cluster()).controller_id

    asked = cluster.brokers[broker]
    return run_admin([(asked.host, asked.port)], ask)


def all_topics_of(cluster: LocalCluster, broker: int) -> set[str]:
    """As a consumer with a pattern for its topics asks: one that were missing would be taken from it."""
    asked = cluster.brokers[broker]
    consumer = Consumer({"bootstrap.servers": f"{asked.host}:{asked.port}", "group.id": "unused"})
    try:
        return set(consumer.list_topics(timeout=60).topics)
    finally:
        consumer.close()
