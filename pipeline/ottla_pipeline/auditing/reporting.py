"""Shared by the adapters that use threads: the producer's name, the lock of its counts, and the reporting
thread.

Called by the adapters. A thread publishes a report every `interval_s`, also if no records were sent, so
that a killed producer differs from an idle one. Reports use a client of their own (`Publisher`), which
transactions, acks=0 and a purge of the application's producer do not affect.
"""

from __future__ import annotations

import atexit
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from ottla_pipeline.auditing.consumer_counts import ConsumerCounter
from ottla_pipeline.auditing.events import AUDIT_TOPIC, PRODUCED_HEADER, PRODUCER_HEADER
from ottla_pipeline.auditing.producer_counts import ProducerCounter

FLUSH_REPORT_S: Final = 1.0
"""Minimum time between reports of flushes: some applications flush after every record."""
CLOSE_S: Final = 30.0
CLOSE_AT_EXIT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """How a client is audited. The window's length must be that of the audit job. `application` names a
    consumer's application; its default is group.id."""

    topic: str = AUDIT_TOPIC
    window_s: float = 60.0
    interval_s: float = 10.0
    server: str = ""  # this machine's name
    application: str = ""

    def producer_counter(self) -> ProducerCounter:
        return ProducerCounter(*self._names(), round(self.window_s * 1000))

    def consumer_counter(self, application: str) -> ConsumerCounter:
        return ConsumerCounter(*self._names(), application, round(self.window_s * 1000))

    def _names(self) -> tuple[str, str]:
        """A unique name of the client, and its server's name."""
        server = self.server or socket.gethostname()
        return f"{server}/{secrets.token_hex(8)}", server


class Publisher(Protocol):
    """A client of the library that publishes audit events only."""

    def publish(self, topic: str, key: bytes, value: bytes, done: Callable[[bool], None]) -> None:
        """Sends an event; `done` is called once, from any thread, with whether it was acknowledged."""

    def flush(self, timeout_s: float) -> None:
        """Waits for published events, at most for this time."""

    def close(self) -> None: ...


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Reporter:
    """The counts of one producer and their publication. Access to `counter` requires `lock`."""

    def __init__(self, options: AuditOptions, publisher: Publisher) -> None:
        self.options = options
        self.counter = options.producer_counter()
        self.lock = threading.Lock()
        self.producer_header = (PRODUCER_HEADER, self.counter.producer.encode())
        self._publisher = publisher
        self._ending = threading.Event()
        self.at_exit: Callable[[], None] | None = None
        self._reported_s = 0.0
        self._thread = threading.Thread(target=self._run, name="ottla-audit", daemon=True)
        self._thread.start()

    def report(self, *, final: bool = False) -> None:
        """Publishes changed counts without waiting for the acknowledgement."""
        with self.lock:
            self._reported_s = time.monotonic()
            event = self.counter.report(now_ms(), final=final)

        def done(acknowledged: bool) -> None:
            with self.lock:
                (self.counter.arrived if acknowledged else self.counter.lost)(event.report)

        self._publisher.publish(self.options.topic, event.producer.encode(), event.to_json(), done)

    def flushed(self, timeout_s: float) -> None:
        """The application has flushed: publishes its counts and waits for the acknowledgement."""
        if time.monotonic() - self._reported_s >= FLUSH_REPORT_S:
            self.report()
            self._publisher.flush(timeout_s)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Publishes the last report, after which no record may be sent. Does nothing on the second call."""
        if self._ending.is_set():
            return
        self._ending.set()
        if self.at_exit is not None:
            atexit.unregister(self.at_exit)
            self.at_exit = None  # it refers to this object: together they would keep the publisher's client
        self._thread.join()
        self._publisher.flush(timeout_s)  # so that the last report includes the counts of lost ones
        self.report(final=True)
        self._publisher.flush(timeout_s)
        self._publisher.close()

    @property
    def closed(self) -> bool:
        return self._ending.is_set()

    def _run(self) -> None:
        while not self._ending.wait(self.options.interval_s):
            self.report()
            self._publisher.flush(self.options.interval_s)


class AuditedClient(Protocol):
    """A client that can publish its last report at the exit of the process."""

    def _close_at_exit(self) -> None: ...


def close_at_exit(producer: AuditedClient, reporter: Reporter) -> None:
    """Registers an exit handler, so that a program that ends without closing its producer publishes the
    last report, also if the producer has been garbage-collected."""
    held = weakref.ref(producer)

    def close() -> None:
        alive = held()
        if alive is not None:
            alive._close_at_exit()
        else:
            reporter.close(CLOSE_AT_EXIT_S)

    reporter.at_exit = close
    atexit.register(close)


def stamp(at_ms: int, number: int) -> tuple[str, bytes]:
    """The header with a record's time and number (see `events`)."""
    return (PRODUCED_HEADER, b"%d/%d" % (at_ms, number))
