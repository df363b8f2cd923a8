"""`AuditedProducer`, an audited `confluent_kafka.Producer`.

    producer = AuditedProducer({"bootstrap.servers": "…"}, audit=AuditOptions(topic="ottla.audit"))

For applications. It has the interface of Producer. Delivery reports are served by `poll` and `flush`, as with
any Producer: without these calls no record counts as acknowledged. Close the producer, or let the program
end: the last report marks the end of its records.

A record counts once, when its delivery report is successful; in a transaction, when the transaction is
committed. With acks=0 librdkafka reports records that it has sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial as bind
from time import time_ns
from typing import Any

from confluent_kafka import KafkaException, Producer

from ottla_pipeline.auditing.events import PRODUCED_HEADER
from ottla_pipeline.auditing.producer_counts import Window
from ottla_pipeline.auditing.reporting import CLOSE_AT_EXIT_S, CLOSE_S, AuditOptions, Reporter, close_at_exit

Delivery = Callable[[Any, Any], None]
Headers = Mapping[str, Any] | Sequence[tuple[str, Any]] | None
# Settings of the application that the audit's own client must not share.
_NOT_SHARED = frozenset(
    {
        *("acks", "request.required.acks", "enable.idempotence", "client.id", "partitioner", "logger"),
        *("transactional.id", "transaction.timeout.ms", "statistics.interval.ms", "enable.gapless.guarantee"),
        *("stats_cb", "throttle_cb", "on_delivery", "dr_cb", "dr_msg_cb", "partitioner_cb"),
    }
)


# A plain function: the lookup through super() takes as long as the call.
_produce: Any = Producer.produce


class _Publisher:
    """The producer of audit events: acks=all, idempotent."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        shared = {name: value for name, value in config.items() if name not in _NOT_SHARED}
        self._producer = Producer({**shared, "enable.idempotence": True, "client.id": "ottla-audit"})

    def publish(self, topic: str, key: bytes, value: bytes, done: Callable[[bool], None]) -> None:
        try:
            self._producer.produce(topic, value, key, on_delivery=lambda error, _: done(error is None))
        except (BufferError, KafkaException):
            done(False)
        self._producer.poll(0)

    def flush(self, timeout_s: float) -> None:
        self._producer.flush(timeout_s)

    def close(self) -> None:
        self._producer.flush(0)


class AuditedProducer(Producer):
    """A confluent-kafka Producer whose records are counted for the audit."""

    def __init__(
        self, config: Mapping[str, Any], *, audit: AuditOptions | None = None, **settings: Any
    ) -> None:
        given = {**config, **{name.replace("_", "."): value for name, value in settings.items()}}
        if str(given.get("delivery.report.only.error", "false")).lower() == "true":
            raise ValueError("delivery.report.only.error: must be false, the audit counts what was delivered")
        # librdkafka calls it for records without their own callback; audited records all have one.
        own = [given.pop(name) for name in ("on_delivery", "dr_cb") if name in given]
        self._on_delivery: Delivery | None = own[0] if own else None
        super().__init__(given)
        self._reporter = Reporter(audit or AuditOptions(), _Publisher(given))
        self._lock = self._reporter.lock
        self._counter = self._reporter.counter
        self._current = self._counter.current
        self._producer_header = self._reporter.producer_header
        close_at_exit(self, self._reporter)

    @property
    def audit_name(self) -> str:
        """The value of the header `ottla-producer`."""
        return self._counter.producer

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        callback: Delivery | None = None,
        on_delivery: Delivery | None = None,
        timestamp: int = 0,
        headers: Headers = None,
    ) -> None:
        then = on_delivery or callback or self._on_delivery
        with self._lock:
            now_ms = time_ns() // 1_000_000
            window = self._current.get(topic)
            if window is None or now_ms >= window.end_ms:
                if self._reporter.closed:
                    raise RuntimeError("the audited producer is closed")
                window = self._counter.window(topic, now_ms)
            if now_ms < window.start_ms:  # the clock was set back
                now_ms = window.start_ms
            number = window.sent
            ours: list[tuple[str, Any]] = [
                self._producer_header,
                (PRODUCED_HEADER, b"%d/%d" % (now_ms, number)),
            ]
            if headers:
                ours += headers.items() if isinstance(headers, Mapping) else headers
            if not self._counter.in_transaction:
                then = bind(self._delivered, window, number, then)  # a delivery report has no headers
            # Callbacks run in poll and flush only. If it raises, the next record gets the number.
            _produce(self, topic, value, key, partition, then, then, timestamp, ours)
            window.sent = number + 1

    def produce_batch(
        self,
        topic: str,
        messages: list[dict[str, Any]],
        partition: int = -1,
        callback: Delivery | None = None,
        on_delivery: Delivery | None = None,
    ) -> int:
        queued = 0
        for message in messages:
            fields = {"partition": partition, "on_delivery": on_delivery or callback} | message
            try:
                self.produce(topic, **fields)
                queued += 1
            except (BufferError, KafkaException) as error:
                message["_error"] = error
        return queued

    def flush(self, timeout: float = -1) -> int:
        left = super().flush(timeout)
        if not self._reporter.closed:
            self._reporter.flushed(CLOSE_S if timeout < 0 else timeout)
        return left

    def begin_transaction(self) -> None:
        super().begin_transaction()
        with self._lock:
            self._counter.begin_transaction()

    def commit_transaction(self, timeout: float = -1) -> None:
        super().commit_transaction(timeout)
        self._end_transaction(committed=True)

    def abort_transaction(self, timeout: float = -1) -> None:
        super().abort_transaction(timeout)
        self._end_transaction(committed=False)

    def close(self, timeout: float = CLOSE_S) -> bool:
        """Flushes and publishes the last report. Returns True if every record was delivered."""
        if self._reporter.closed:
            return True
        left = super().flush(timeout)
        self._reporter.close(timeout)
        return left == 0

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _close_at_exit(self) -> None:
        self.close(CLOSE_AT_EXIT_S)

    def _end_transaction(self, *, committed: bool) -> None:
        with self._lock:
            self._counter.end_transaction(committed)

    def _delivered(
        self, window: Window, number: int, then: Delivery | None, error: Any, message: Any
    ) -> None:
        with self._lock:
            if error is None:
                window.acknowledged += 1
            else:
                window.fail(number, number)
        if then is not None:
            then(error, message)
