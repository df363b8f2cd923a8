"""Clients in a cluster's network: an idempotent producer with acks=all, a consumer of a group, a recorder of
ISRs.

`clients.Traffic` runs this program where Service names resolve (`kube.sh node`). Until its standard input
ends it writes numbered records, reads them and polls every partition's ISR; then it prints a summary as a
line of JSON: lost and duplicated records, the longest pauses, and the smallest ISR. It uses librdkafka and no
file of this project.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

_FLUSH_S = 90.0
_CATCH_UP_S = 60.0
_WATCH_S = 0.25


class Pauses:
    """The longest time between two successes of one partition, and the times of pauses over a second."""

    def __init__(self) -> None:
        self._last: dict[int | None, float] = {}
        self.longest_s = 0.0
        self.long: list[str] = []

    def success(self, partition: int | None) -> None:
        now = time.time()
        length_s = now - self._last.get(partition, now)
        self.longest_s = max(self.longest_s, length_s)
        if length_s > 1:
            began = time.strftime("%H:%M:%S", time.gmtime(self._last[partition]))
            self.long.append(f"{began} partition {partition}: {length_s:.1f} s")
        self._last[partition] = now


class Clients:
    def __init__(self, bootstrap: str, topic: str, per_second: int, security: Mapping[str, str]) -> None:
        self._servers = {"bootstrap.servers": bootstrap, **security}
        self._topic, self._per_second = topic, per_second
        # Earlier runs' records are in the topic, too.
        self._run = f"{time.time_ns()}"
        self._stop = threading.Event()
        self._read_all = threading.Event()
        self.acknowledged: dict[str, tuple[int, int] | None] = {}
        """Where each value is, as far as the broker said."""
        self.consumed: dict[tuple[int, int], str] = {}
        self.delivered_twice = 0
        self.errors: list[str] = []
        self.produce_pauses, self.consume_pauses = Pauses(), Pauses()
        self.isr_min: dict[int, int] = {}
        self.min_isr_times: list[float] = []

    def run(self) -> dict[str, Any]:
        workers = [
            threading.Thread(target=self._guard, args=(work,), daemon=True)
            for work in (self._produce, self._consume, self._watch)
        ]
        for worker in workers:
            worker.start()
        reporter = threading.Thread(target=self._report, daemon=True)
        reporter.start()
        sys.stdin.read()
        self._stop.set()
        workers[0].join(_FLUSH_S + 10)
        deadline = time.monotonic() + _CATCH_UP_S
        while time.monotonic() < deadline and len(self.consumed) < len(self.acknowledged):
            time.sleep(0.1)
        self._read_all.set()
        workers[1].join(10)
        return self._summary()

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.errors.append(f"{work.__name__} ended: {error!r}")

    def _report(self) -> None:
        while not self._stop.wait(0.5):
            print(
                json.dumps({"acknowledged": len(self.acknowledged), "consumed": len(self.consumed)}),
                flush=True,
            )

    def _summary(self) -> dict[str, Any]:
        stored = dict(self.consumed)
        values = list(stored.values())
        known = set(values)
        lost = {
            value: place
            for value, place in self.acknowledged.items()
            if value not in known or (place is not None and stored.get(place) != value)
        }
        return {
            "summary": True,
            "acknowledged": len(self.acknowledged),
            "without_offset": sum(place is None for place in self.acknowledged.values()),
            "consumed": len(stored),
            "lost": dict(list(lost.items())[:10]),
            "lost_count": len(lost),
            "doubled": len(values) - len(set(values)),
            "delivered_twice": self.delivered_twice,
            "errors": self.errors[:10],
            "produce_pause_s": round(self.produce_pauses.longest_s, 2),
            "consume_pause_s": round(self.consume_pauses.longest_s, 2),
            "long_produce_pauses": self.produce_pauses.long[:30],
            "long_consume_pauses": self.consume_pauses.long[:30],
            "isr_min": min(self.isr_min.values(), default=0),
        }

    # ---- the three

    def _produce(self) -> None:
        producer = Producer(
            {
                **self._servers,
                "client.id": "e2e-producer",
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                "request.timeout.ms": 5000,
                "delivery.timeout.ms": int(_FLUSH_S * 1000),
                "topic.metadata.refresh.interval.ms": 5000,
            }
        )

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.errors.append(f"produce: {error}")
                return
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert value is not None
            # No offset: the broker had it already, from a request whose answer was lost.
            self.acknowledged[value.decode()] = (
                None if partition is None or offset is None else (partition, offset)
            )
            self.produce_pauses.success(partition)

        number, began = 0, time.monotonic()
        while not self._stop.is_set():
            due = int((time.monotonic() - began) * self._per_second)
            while number < due:
                try:
                    producer.produce(
                        self._topic,
                        value=f"{self._run}-{number}",
                        key=str(number % 100),
                        on_delivery=delivered,
                    )
                except BufferError:
                    break
                number += 1
            producer.poll(0.02)
        left = producer.flush(_FLUSH_S)
        if left:
            self.errors.append(f"produce: {left} records are neither acknowledged nor refused")

    def _consume(self) -> None:
        consumer = Consumer(
            {
                **self._servers,
                "group.id": f"e2e-{time.time_ns()}",
                "client.id": "e2e-consumer",
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 10000,
                "fetch.wait.max.ms": 200,
            }
        )
        consumer.subscribe([self._topic])
        try:
            while not self._read_all.is_set():
                for message in consumer.consume(500, timeout=0.2):
                    self._consumed(message)
        finally:
            consumer.close()

    def _consumed(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            if not error.retriable() and error.code() not in _PASSING:
                self.errors.append(f"consume: {error}")
            return
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert offset is not None
        assert value is not None
        if not value.decode().startswith(self._run):
            return
        if (partition, offset) in self.consumed:
            self.delivered_twice += 1
            if self.consumed[partition, offset] != value.decode():
                self.errors.append(f"consume: {partition}@{offset} has changed")
        self.consumed[partition, offset] = value.decode()
        self.consume_pauses.success(partition)

    def _watch(self) -> None:
        admin = AdminClient({**self._servers, "client.id": "e2e-watcher"})
        while not self._stop.wait(_WATCH_S):
            try:
                partitions = admin.list_topics(self._topic, timeout=5).topics[self._topic].partitions
            except (KafkaException, KeyError):
                continue
            for number, partition in partitions.items():
                if partition.error is None and partition.isrs:
                    self.isr_min[number] = min(self.isr_min.get(number, 99), len(partition.isrs))


# What a client meets while brokers come and go, and gets over by itself.
_PASSING = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--per-second", type=int, default=200)
    parser.add_argument("--security", type=json.loads, default={}, help="librdkafka's settings, in JSON")
    options = parser.parse_args()
    clients = Clients(options.bootstrap, options.topic, options.per_second, options.security)
    print(json.dumps(clients.run()), flush=True)


if __name__ == "__main__":
    main()
