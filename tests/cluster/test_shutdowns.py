"""Controlled shutdowns take little time, and no producer waits for its time-out."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from ottla.local.cluster import LocalCluster

LONGEST_WAIT_S = 25
"""librdkafka's request.timeout.ms is 30 s."""
SOON_S = 28
"""Less than Kubernetes waits before it kills, 30 s; the controlled shutdown's own time-outs are longer."""


@pytest.mark.timeout(420)
def test_brokers_without_a_zookeeper_stop_within_the_grace_of_a_pod(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        cluster.create_topic("t", partitions=6)
        controller = cluster.brokers[cluster.controller()]
        other = next(broker for broker in cluster.brokers.values() if broker is not controller)
        cluster.zookeeper.kill()
        controller.kill()
        began = time.monotonic()
        other.terminate()
        other.stop(timeout_s=SOON_S)
        assert time.monotonic() - began < SOON_S, other.log_tail()
        assert other.exit_code == 0, other.log_tail()


@pytest.mark.timeout(420)
def test_no_producer_waits_for_a_follower_that_shut_down(tmp_path: Path) -> None:
    """One request at a time: no later one makes a fetch that moves the high watermark past who left."""
    with LocalCluster(tmp_path) as cluster:
        cluster.create_topic("t", partitions=6, min_insync_replicas="1")
        settings = {"acks": "all", "linger.ms": 0, "reconnect.backoff.max.ms": 500}
        producer = Producer({"bootstrap.servers": cluster.bootstrap, **settings})
        longest_s, failures = 0.0, list[object]()

        def write(partition: int) -> None:
            nonlocal longest_s
            began = time.monotonic()
            producer.produce(
                "t", b"x", partition=partition, on_delivery=lambda e, _: failures.append(e) if e else None
            )
            assert producer.flush(90) == 0
            longest_s = max(longest_s, time.monotonic() - began)

        for broker in cluster.brokers.values():
            broker.terminate()
            while broker.running:
                for partition in range(6):
                    write(partition)
            broker.stop(0)
            broker.start_and_wait()
            cluster.wait_until(lambda: cluster.fully_replicated("t"), "the broker to be in sync again")
        assert failures == []
        assert longest_s < LONGEST_WAIT_S
