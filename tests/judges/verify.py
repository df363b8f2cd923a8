"""Producers that record what was acknowledged, and checks that name each lost, duplicated or moved record."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from bench.apache_kafka import java_command
from ottla.local.processes import wait_until


class VerifiableProducer:
    """Kafka's own VerifiableProducer with acks=all and idempotence: sends 0, 1, 2, … and reports each
    acknowledgement. It retries for ever, and may not double a record."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        directory: Path,
        *,
        per_second: int = 500,
        more_settings: Mapping[str, str] | None = None,
    ) -> None:
        config = directory / f"producer-{topic}.properties"
        settings = {"linger.ms": "5", "request.timeout.ms": "5000", "delivery.timeout.ms": "120000"}
        settings |= {"enable.idempotence": "true", "retries": "2147483647", "retry.backoff.ms": "50"}
        settings |= more_settings or {}
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._command = java_command(
            "org.apache.kafka.tools.VerifiableProducer",
            *("--bootstrap-server", bootstrap, "--topic", topic, "--acks", "-1"),
            *("--throughput", str(per_second), "--producer.config", str(config)),
        )
        self.bootstrap, self.topic = bootstrap, topic
        self.acknowledged: dict[tuple[int, int], str] = {}
        """(partition, offset) -> value."""
        self.errors: list[str] = []
        self._stopping = False
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                event = json.loads(line) if line.startswith("{") else {}
                if event.get("name") == "producer_send_success":
                    self.acknowledged[event["partition"], event["offset"]] = event["value"]
                elif event.get("name") == "producer_send_error" and not self._was_cut_off(event):
                    self.errors.append(f"{event['value']}: {event.get('exception')}: {event.get('message')}")

    def _was_cut_off(self, event: Mapping[str, str]) -> bool:
        """Whether a send failed because the tool was stopped while it waited for metadata. Such a record was
        never acknowledged."""
        message = event.get("message", "")
        words = "Producer closed while send in progress", "after producer has been closed"
        return self._stopping and any(each in message for each in words)

    def wait_for(self, acknowledged: int, timeout_s: float = 120) -> None:
        """Waits for a total of acknowledgements."""
        if not wait_until(lambda: len(self.acknowledged) >= acknowledged, timeout_s=timeout_s):
            raise AssertionError(
                f"{len(self.acknowledged)} of {acknowledged} acknowledged after {timeout_s} s; "
                f"errors: {self.errors[:3]}"
            )

    def wait_for_more(self, more: int, timeout_s: float = 120) -> None:
        self.wait_for(len(self.acknowledged) + more, timeout_s)

    def stop(self) -> None:
        """Asks the tool to flush and exit, and reads its remaining output."""
        if self._process is None:
            return
        self._stopping = True
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._reader is not None
        self._reader.join(60)
        assert not self._reader.is_alive(), "what it reported is not all read"
        self._process = None


def read_topic(
    bootstrap: str,
    topic: str,
    partitions: int,
    *,
    expected: Collection[tuple[int, int]] = (),
    timeout_s: float = 150,
) -> dict[tuple[int, int], str]:
    """Reads every record of a topic up to its present end, by (partition, offset), with librdkafka.

    A new leader reports a low high watermark until followers have fetched from it: the offsets in `expected`
    are waited for. Whatever was read is returned.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "verify",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partitions)])
        found: dict[tuple[int, int], str] = {}
        ended: set[int] = set()

        def drained() -> bool:
            for message in consumer.consume(1000, timeout=0.5):
                _take(message, found, ended)
            return len(ended) == partitions and all(place in found for place in expected)

        if not wait_until(drained, timeout_s=timeout_s, poll_s=0) and len(ended) < partitions:
            raise AssertionError(f"read {len(found)} records of {topic}, the end of partitions {ended} only")
        return found
    finally:
        consumer.close()


def check_all_kept(producer: VerifiableProducer, partitions: int) -> dict[tuple[int, int], str]:
    """Stops the producer and asserts that it met no error and that its topic has every acknowledged record,
    once and in order. Returns all records of the topic."""
    producer.stop()
    assert producer.errors == []
    stored = read_topic(producer.bootstrap, producer.topic, partitions, expected=producer.acknowledged)
    assert_nothing_lost_or_doubled(producer.acknowledged, stored)
    return stored


def _take(message: Message, found: dict[tuple[int, int], str], ended: set[int]) -> None:
    error, partition, offset = message.error(), message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    if error is None:
        value = message.value()
        assert value is not None
        found[partition, offset] = value.decode()
        ended.discard(partition)
    elif error.code() == KafkaError._PARTITION_EOF:
        ended.add(partition)


def assert_nothing_lost_or_doubled(
    acknowledged: dict[tuple[int, int], str], stored: dict[tuple[int, int], str]
) -> None:
    """Asserts that each acknowledged record is at its offset, once; offsets have no gaps; each partition kept
    the order."""
    lost = {place: value for place, value in acknowledged.items() if stored.get(place) != value}
    assert not lost, f"{len(lost)} acknowledged records lost, the first at {sorted(lost.items())[:5]}"
    doubled = {value: count for value, count in Counter(stored.values()).items() if count > 1}
    assert not doubled, f"{len(doubled)} records doubled: {sorted(doubled.items())[:5]}"
    by_partition: dict[int, list[int]] = {}
    for partition, offset in sorted(stored):
        by_partition.setdefault(partition, []).append(offset)
    for partition, offsets in by_partition.items():
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets))), (
            f"holes in partition {partition}"
        )
        values = [int(stored[partition, offset]) for offset in offsets if (partition, offset) in acknowledged]
        assert values == sorted(values), f"partition {partition} lost its order"
