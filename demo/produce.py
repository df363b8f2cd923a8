"""Sends the events with acks=all and idempotence, and records the acknowledgements.

Called by `demo.run`. The manifest has a line for each event that the brokers acknowledged, and no other
lines. The audit compares it with the brokers and the lake.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from confluent_kafka import KafkaError, Message, Producer

from demo.events import Event

DELIVERY_TIMEOUT_S = 120
FLUSH_S = 150.0
FULL_QUEUE_WAIT_S = 0.05

Partition = tuple[str, int]


class DeliveryFailed(Exception):
    """Events were not acknowledged in time; the message has the first error."""


class AckClock:
    """The longest time without an acknowledgement on the watched partitions.

    Times are monotonic seconds, passed in. Partitions are watched from the kill of their leader; a gap starts
    at the last acknowledgement before it.
    """

    def __init__(self) -> None:
        self._last: dict[Partition, float] = {}
        self._gaps: dict[Partition, float] = {}
        self._lock = threading.Lock()

    def watch(self, partitions: Sequence[Partition], now_s: float) -> None:
        with self._lock:
            self._gaps = dict.fromkeys(partitions, 0.0)
            for partition in partitions:
                self._last.setdefault(partition, now_s)

    def acknowledged(self, partition: Partition, now_s: float) -> None:
        with self._lock:
            if partition in self._gaps:
                self._gaps[partition] = max(self._gaps[partition], now_s - self._last[partition])
            self._last[partition] = now_s

    def longest_gap_s(self) -> float:
        """The longest gap in seconds; 0.0 without watched partitions."""
        with self._lock:
            return max(self._gaps.values(), default=0.0)


class DeliveryRecorder:
    """Counts acknowledgements and writes the manifest, in the thread that polls the producer."""

    def __init__(self, manifest: IO[str], clock: AckClock) -> None:
        self.acknowledged = 0
        self.failed = 0
        self.first_error = ""
        self._manifest = manifest
        self._clock = clock

    def delivered(self, event: Event, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed += 1
            self.first_error = self.first_error or f"{event.id}: {error.str()}"
            return
        self.acknowledged += 1
        self._clock.acknowledged((str(message.topic()), int(message.partition() or 0)), time.monotonic())
        line = {"id": event.id, "topic": event.topic, "time": event.time}
        self._manifest.write(json.dumps(line, separators=(",", ":")) + "\n")


def settings(bootstrap: str) -> dict[str, str | int | bool]:
    return {
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "enable.idempotence": True,
        "compression.type": "lz4",
        "linger.ms": 20,
        "delivery.timeout.ms": DELIVERY_TIMEOUT_S * 1000,
        # The failover is expected; librdkafka would log many lines about it.
        "log_level": 2,
    }


def produce(
    bootstrap: str,
    events: Sequence[Event],
    manifest: Path,
    clock: AckClock,
    *,
    progress: Callable[[int], None],
    half_way: Callable[[], None],
) -> float:
    """Send all events; the seconds to the last acknowledgement. Raises DeliveryFailed.

    `progress` gets the number of acknowledgements; `half_way` is called once, after half of the events.
    """
    producer = Producer(settings(bootstrap), logger=None)
    began = time.monotonic()
    with manifest.open("w") as lines:
        recorder = DeliveryRecorder(lines, clock)
        for number, event in enumerate(events):
            if number == len(events) // 2:
                half_way()
            delivered = partial(recorder.delivered, event)
            while True:
                try:
                    producer.produce(event.topic, event.value, event.key, on_delivery=delivered)
                    break
                except BufferError:  # the queue is full: wait for acknowledgements
                    producer.poll(FULL_QUEUE_WAIT_S)
                    progress(recorder.acknowledged)
            if number % 500 == 0:
                producer.poll(0)
                progress(recorder.acknowledged)
        deadline = time.monotonic() + FLUSH_S
        while len(producer) and time.monotonic() < deadline:
            producer.flush(0.2)
            progress(recorder.acknowledged)
    if recorder.failed or recorder.acknowledged != len(events):
        lost = len(events) - recorder.acknowledged
        raise DeliveryFailed(
            f"{lost:,} events were not acknowledged; {recorder.first_error or 'time is over'}"
        )
    return time.monotonic() - began
