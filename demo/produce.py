"""Sends the events with acks=all and idempotence, and keeps the books: what was acknowledged, and when.

Called by `demo.run`. The manifest has a line for every event that the brokers acknowledged, and for no other:
it is what the audit holds brokers and lake against.
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
    """Events that the brokers did not take in time; the message has the first reason."""


class AckClock:
    """The longest time without an acknowledgement, on partitions that are being watched.

    Times are monotonic seconds, passed in. Partitions are watched from the moment their leader is killed; an
    acknowledgement before counts as the start of the gap.
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
        """0.0 when nothing was watched."""
        with self._lock:
            return max(self._gaps.values(), default=0.0)


class Ledger:
    """Counts acknowledgements and writes the manifest; used from the thread that polls the producer."""

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
        # The fail-over of the demo is the point, not news; librdkafka's view of it would fill the screen.
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
    """Sends all events; returns the seconds to the last acknowledgement. DeliveryFailed if one is lost.

    `progress` gets the number acknowledged so far, `half_way` is called once, when half of them are sent.
    """
    producer = Producer(settings(bootstrap), logger=None)
    began = time.monotonic()
    with manifest.open("w") as lines:
        ledger = Ledger(lines, clock)
        for number, event in enumerate(events):
            if number == len(events) // 2:
                half_way()
            delivered = partial(ledger.delivered, event)
            while True:
                try:
                    producer.produce(event.topic, event.value, event.key, on_delivery=delivered)
                    break
                except BufferError:  # the queue is full: wait for acknowledgements
                    producer.poll(FULL_QUEUE_WAIT_S)
                    progress(ledger.acknowledged)
            if number % 500 == 0:
                producer.poll(0)
                progress(ledger.acknowledged)
        deadline = time.monotonic() + FLUSH_S
        while len(producer) and time.monotonic() < deadline:
            producer.flush(0.2)
            progress(ledger.acknowledged)
    if ledger.failed or ledger.acknowledged != len(events):
        lost = len(events) - ledger.acknowledged
        raise DeliveryFailed(f"{lost:,} events were not acknowledged; {ledger.first_error or 'time is over'}")
    return time.monotonic() - began
