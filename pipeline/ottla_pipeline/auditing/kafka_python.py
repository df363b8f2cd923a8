"""`AuditedProducer`, an audited `KafkaProducer` of kafka-python.

    producer = AuditedProducer(bootstrap_servers="…", audit=AuditOptions(topic="ottla.audit"))

For applications. It has the interface of KafkaProducer. A record counts when its future succeeds; in a
transaction, when the transaction is committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial as bind
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError

from ottla_pipeline.auditing.producer_counts import Window
from ottla_pipeline.auditing.reporting import (
    CLOSE_AT_EXIT_S,
    CLOSE_S,
    AuditOptions,
    Reporter,
    close_at_exit,
    stamp,
)

_NOT_SHARED = frozenset(
    {
        *("acks", "enable_idempotence", "client_id", "partitioner", "key_serializer", "value_serializer"),
        *("transactional_id", "transaction_timeout_ms", "metric_reporters"),
    }
)


class _Publisher:
    """The producer of audit events: acks=all, idempotent."""

    def __init__(self, config: dict[str, Any]) -> None:
        shared = {name: value for name, value in config.items() if name not in _NOT_SHARED}
        self._producer = KafkaProducer(**shared, acks="all", enable_idempotence=True, client_id="ottla-audit")

    def publish(self, topic: str, key: bytes, value: bytes, done: Callable[[bool], None]) -> None:
        try:
            future = self._producer.send(topic, value, key)
        except KafkaError:
            done(False)
            return
        future.add_callback(lambda _: done(True))
        future.add_errback(lambda _: done(False))

    def flush(self, timeout_s: float) -> None:
        try:
            self._producer.flush(timeout_s)
        except KafkaError:
            return  # the futures of the events have the outcome

    def close(self) -> None:
        self._producer.close(timeout=1)


class AuditedProducer(KafkaProducer):  # type: ignore[misc]  # kafka-python has no types
    """A kafka-python KafkaProducer whose records are counted for the audit."""

    def __init__(self, *, audit: AuditOptions | None = None, **config: Any) -> None:
        super().__init__(**config)
        self._reporter = Reporter(audit or AuditOptions(), _Publisher(config))
        self._counter = self._reporter.counter
        close_at_exit(self, self._reporter)

    @property
    def audit_name(self) -> str:
        """The value of the header `ottla-producer`."""
        return self._counter.producer

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: list[tuple[str, bytes]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Any:
        # The number is assigned first: `send` may wait for metadata or memory, and must not hold the lock.
        with self._reporter.lock:
            if self._reporter.closed:
                raise RuntimeError("the audited producer is closed")
            window = self._counter.window(topic, time.time_ns() // 1_000_000)
            at_ms = max(self._counter.latest_ms, window.start_ms)
            number = window.sent
            window.sent += 1
            in_transaction = self._counter.in_transaction
        ours = [self._reporter.producer_header, stamp(at_ms, number), *(headers or ())]
        try:
            future = super().send(topic, value, key, ours, partition, timestamp_ms)
        except BaseException:
            if not in_transaction:
                self._failed(window, number, None)
            raise
        if not in_transaction:
            future.add_callback(bind(self._acknowledged, window))
            future.add_errback(bind(self._failed, window, number))
        return future

    def flush(self, timeout: float | None = None) -> None:
        super().flush(timeout)
        if not self._reporter.closed:
            self._reporter.flushed(CLOSE_S if timeout is None else timeout)

    def begin_transaction(self) -> None:
        super().begin_transaction()
        with self._reporter.lock:
            self._counter.begin_transaction()

    def commit_transaction(self) -> None:
        super().commit_transaction()
        with self._reporter.lock:
            self._counter.end_transaction(committed=True)

    def abort_transaction(self) -> None:
        super().abort_transaction()
        with self._reporter.lock:
            self._counter.end_transaction(committed=False)

    def close(self, timeout: float | None = None, null_logger: bool = False) -> None:
        """Closes the producer, which delivers the remaining records, and publishes the last report."""
        super().close(timeout=timeout, null_logger=null_logger)
        if hasattr(self, "_reporter"):  # else its own __init__ failed
            self._reporter.close(CLOSE_S if timeout is None else timeout)

    def _close_at_exit(self) -> None:
        self.close(timeout=CLOSE_AT_EXIT_S)

    def _acknowledged(self, window: Window, _: Any) -> None:
        with self._reporter.lock:
            window.acknowledged += 1

    def _failed(self, window: Window, number: int, _: Any) -> None:
        with self._reporter.lock:
            window.fail(number, number)
