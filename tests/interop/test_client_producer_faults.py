"""Brokers are killed and started again under Ottla's producer: every record once, in order, none lost."""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from functools import partial

import pytest
from confluent_kafka import Consumer, TopicPartition

from ottla.client.producer import Producer
from ottla.local.cluster import LocalCluster

PARTITIONS = 6
WAIT_S = 60
pytestmark = pytest.mark.timeout(420)


def test_brokers_die_under_an_idempotent_producer(cluster: LocalCluster) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(topic, partitions=PARTITIONS, replicas=3, min_insync_replicas="2")
    sent: dict[int, list[bytes]] = defaultdict(list)

    async def send() -> None:
        async with Producer(
            bootstrap_servers=cluster.bootstrap, linger_ms=2, request_timeout_ms=5_000
        ) as producer:
            stopping = asyncio.Event()
            futures = []

            async def feed() -> None:
                n = 0
                while not stopping.is_set():
                    partition = n % PARTITIONS
                    value = b"%d" % n
                    futures.append(await producer.send(topic, value, partition=partition))
                    sent[partition].append(value)
                    n += 1
                    if n % 20 == 0:
                        await asyncio.sleep(0.002)  # there is always something on its way

            feeding = asyncio.create_task(feed())
            for broker_id in (0, 1):
                broker = cluster.brokers[broker_id]
                await asyncio.sleep(0.5)
                broker.kill()
                await asyncio.sleep(1)
                broker.start()  # from this thread: with the thread that starts it, a broker goes as well
                up = broker.accepts_connections
                await asyncio.to_thread(cluster.wait_until, up, "it to serve again")
                in_sync = partial(cluster.fully_replicated, topic, PARTITIONS)
                await asyncio.to_thread(cluster.wait_until, in_sync, "all to be in sync")
            stopping.set()
            await feeding
            await producer.flush(WAIT_S)
            for future in futures:
                assert (await future).topic == topic
            assert producer.metrics()["record-retry-total"] > 0, "the kills were not felt"

    asyncio.run(send())
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": topic})
    consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    found: dict[int, list[bytes]] = defaultdict(list)
    missing = sum(map(len, sent.values()))
    while missing > 0:
        message = consumer.poll(WAIT_S)
        assert message is not None, f"{missing} records did not come"
        if message.error() is None:
            found[message.partition() or 0].append(message.value() or b"")
            missing -= 1
    assert consumer.poll(1) is None, "nothing is there twice"
    consumer.close()
    assert found == sent
