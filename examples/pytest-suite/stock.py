"""Keeps the stock of a shop, with confluent-kafka: reads sales, orders more when an article runs low.

A record that is not a sale goes to a topic of dead letters, so that the others behind it are processed.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer

LOW = 3


class Stock:
    """One member of a group. Commits an offset after the records that follow from the sale are written."""

    def __init__(
        self, bootstrap: str, sales: str, *, reorders: str, dead_letters: str, initial: dict[str, int]
    ) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": f"stock-{sales}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        self._consumer = Consumer(settings)
        self._consumer.subscribe([sales])
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._reorders, self._dead_letters = reorders, dead_letters
        self.articles = Counter(initial)

    def process(self, count: int, timeout_s: float = 30) -> None:
        """Processes so many sales. Raises TimeoutError if there are fewer."""
        for _ in range(count):
            message = self._consumer.poll(timeout_s)
            if message is None:
                raise TimeoutError(f"no sale within {timeout_s:g} s")
            if message.error():
                raise KafkaException(message.error())
            self._apply(message)
            if self._producer.flush(timeout_s):
                raise TimeoutError("a record was not acknowledged")
            self._consumer.commit(message=message, asynchronous=False)

    def _apply(self, message: Message) -> None:
        value = message.value() or b""
        try:
            sale = json.loads(value)
            article, sold = str(sale["article"]), int(sale["sold"])
        except (ValueError, KeyError, TypeError) as error:
            self._producer.produce(self._dead_letters, value, headers={"reason": repr(error)})
            return
        self.articles[article] -= sold
        if self.articles[article] < LOW:
            self._producer.produce(self._reorders, json.dumps({"article": article}), key=article)

    def close(self) -> None:
        self._consumer.close()
