"""A topic without a leader fills only its share of a producer's memory, and does not block other topics.

The only replica of `stuck` is on a killed broker, that of `well` on a live one. Records sent to `stuck` are
written, in order, once its broker is back. tests/cluster has the same for producers in threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ottla.client import Producer, errors
from ottla.client.core.types import RecordMetadata
from ottla.simulation.cluster import Cluster
from tests.worlds.simulated_brokers import create, run, state_of, until

STUCK, WELL = "stuck", "well"
STUCK_BROKER = 1
COUNT = 300
VALUE = b"x" * 1000
MEMORY = 200_000
"""Less than COUNT of these take."""


def run_stuck(scenario: Callable[[Cluster, Producer], Coroutine[Any, Any, None]], **settings: object) -> None:
    async def produce(cluster: Cluster) -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "buffer.memory": MEMORY, **settings})
        await producer.start()
        try:
            await scenario(cluster, producer)
        finally:
            await producer.stop(0)

    async def begin(cluster: Cluster) -> None:
        await create(cluster, WELL, {0: [0]}, min_insync_replicas="1")
        await create(cluster, STUCK, {0: [STUCK_BROKER]}, min_insync_replicas="1")
        cluster.kill(STUCK_BROKER)
        await until(lambda: state_of(cluster, STUCK).leader < 0, f"{STUCK} to be without a leader")
        await cluster.in_process("producer", produce(cluster))

    run(begin, brokers=2)


def test_senders_of_other_topics_are_not_blocked() -> None:
    async def scenario(cluster: Cluster, producer: Producer) -> None:
        waiting = [asyncio.create_task(producer.send(STUCK, VALUE)) for _ in range(COUNT)]
        for _ in range(COUNT):
            await producer.send_and_wait(WELL, VALUE)
        begun = [task for task in waiting if task.done()]
        assert 0 < len(begun) < COUNT / 2, "the others wait for memory"
        cluster.loop.call_soon(cluster.start_broker, STUCK_BROKER, context=cluster.network.context)
        written: list[RecordMetadata] = [await (await task) for task in waiting]
        assert [metadata.offset for metadata in written] == list(range(COUNT))

    run_stuck(scenario)


def fill(producer: Producer) -> None:
    def send_all() -> None:
        for _ in range(COUNT):
            producer.send_nowait(STUCK, VALUE, on_delivery=lambda metadata, error: None)

    with pytest.raises(errors.BufferExhaustedError):
        send_all()


def test_without_a_limit_a_topic_takes_all_memory_as_in_kafka() -> None:
    async def scenario(cluster: Cluster, producer: Producer) -> None:
        await producer.send_and_wait(WELL, VALUE)
        fill(producer)
        with pytest.raises(errors.BufferExhaustedError, match=r"buffer\.memory=200000: all of it is in use"):
            await producer.send(WELL, VALUE)

    run_stuck(scenario, **{"buffer.memory.per.topic": MEMORY, "max.block.ms": 300})


def test_a_topic_that_uses_its_share_of_the_buffer_can_be_an_error_at_once() -> None:
    async def scenario(cluster: Cluster, producer: Producer) -> None:
        await producer.partitions_for(STUCK)
        fill(producer)
        began_s = cluster.loop.now
        with pytest.raises(errors.BufferExhaustedError, match="stuck uses its share"):
            await producer.send(STUCK, VALUE)
        assert cluster.loop.now == began_s, "not after max.block.ms"
        await producer.send_and_wait(WELL, VALUE)

    run_stuck(scenario, **{"buffer.memory.per.topic": 10_000, "block.on.topic.full": False})
