"""The registry's store over a topic that is not quite there yet."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from ottla_pipeline.registry import log as topic_logs
from ottla_pipeline.registry import store as stores
from ottla_pipeline.registry.log import TopicLog
from ottla_pipeline.registry.store import Store
from ottla_pipeline.registry.worker import WorkerPool


class EndOfPartition:
    def error(self) -> KafkaError:
        return KafkaError(KafkaError._PARTITION_EOF)

    def offset(self) -> int:
        return 0


class NewTopicConsumer:
    """librdkafka's consumer of a topic that was just created: its leader is not elected at first."""

    refusals: list[int]

    def __init__(self, settings: dict[str, Any]) -> None:
        self._waiting = threading.Event()

    def assign(self, partitions: Any) -> None:
        pass

    def poll(self, timeout_s: float) -> EndOfPartition:
        self._waiting.wait(0.01)
        return EndOfPartition()

    def consume(self, count: int, timeout: float) -> list[Any]:
        return []

    def get_watermark_offsets(self, partition: Any, timeout_s: float, *, cached: bool) -> tuple[int, int]:
        if self.failures:
            raise KafkaException(KafkaError(self.failures.pop(0)))
        return 0, 0

    def close(self) -> None:
        pass


@pytest.fixture
def new_topic(monkeypatch: pytest.MonkeyPatch) -> type[NewTopicConsumer]:
    async def no_pause(delay_s: float) -> None:
        await pause(0)

    pause = asyncio.sleep
    monkeypatch.setattr(topic_logs, "Consumer", NewTopicConsumer)
    monkeypatch.setattr(TopicLog, "ensure_topic", lambda self: None)
    monkeypatch.setattr(stores.asyncio, "sleep", no_pause)
    return NewTopicConsumer


async def started() -> Store:
    store = Store(TopicLog("localhost:1", "_schemas", {}), WorkerPool(1))
    try:
        await store.start()
    finally:
        await store.stop()
    return store


def test_a_store_starts_on_a_topic_that_was_just_created(new_topic: type[NewTopicConsumer]) -> None:
    new_topic.failures = [
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    ]
    assert asyncio.run(started()).failure is None
    assert not new_topic.failures


def test_a_topic_without_a_leader_ends_the_start_in_time(
    new_topic: type[NewTopicConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    new_topic.failures = [KafkaError.LEADER_NOT_AVAILABLE] * 1_000_000
    monkeypatch.setattr(stores, "BROKERS_S", 0.2)
    with pytest.raises(topic_logs.LogFailed, match="Leader not available"):
        asyncio.run(started())
