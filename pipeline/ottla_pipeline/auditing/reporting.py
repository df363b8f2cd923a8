"""What the adapters share: a producer's name, the lock over its counts, and the thread that reports them.

Called by the adapters. A report is published every `interval_s` by a thread of its own, also when nothing was
sent: a producer that falls silent can be told from an idle one. Reports go through a client of their
own (`Publish`), so that transactions, acks=0 or a purge of the application's producer leave them alone.
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
"""A flush reports at once, but no more often than this: some applications flush after every record."""
CLOSE_S: Final = 30.0
CLOSE_AT_EXIT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """How a client is audited. The window's length must be that of the audit job. `application` is a
    consumer's, and its group.id when left out."""

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
        """A client's name while it lives, and its server's."""
        server = self.server or socket.gethostname()
        return f"{server}/{secrets.token_hex(8)}", server


class Publisher(Protocol):
    """A client of a library, for the audit events alone."""

    def publish(self, topic: str, key: bytes, value: bytes, done: Callable[[bool], None]) -> None:
        """Sends an event; `done` is called once with whether it was acknowledged, from any thread."""

    def flush(self, timeout_s: float) -> None:
        """Waits for what was published, as long as this at most."""

    def close(self) -> None: ...


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Reporter:
    """The counts of one producer and their way to the audit topic. Whoever touches `counter` holds `lock`."""

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
        """Publishes what changed; does not wait for it to arrive."""
        with self.lock:
            self._reported_s = time.monotonic()
            event = self.counter.report(now_ms(), final=final)

        def done(acknowledged: bool) -> None:
            with self.lock:
                (self.counter.arrived if acknowledged else self.counter.lost)(event.report)

        self._publisher.publish(self.options.topic, event.producer.encode(), event.to_json(), done)

    def flushed(self, timeout_s: float) -> None:
        """The application has flushed: what was acknowledged is reported, and waited for."""
        if time.monotonic() - self._reported_s >= FLUSH_REPORT_S:
            self.report()
            self._publisher.flush(timeout_s)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """The last report, after which nothing may be sent. Does nothing the second time."""
        if self._ending.is_set():
            return
        self._ending.set()
        if self.at_exit is not None:
            atexit.unregister(self.at_exit)
        self._thread.join()
        self._publisher.flush(timeout_s)  # so that the last one tells again what got lost
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


class Closes(Protocol):
    def _close_at_exit(self) -> None: ...


def close_at_exit(producer: Closes, reporter: Reporter) -> None:
    """A program that ends without closing its producer still reports, unless it is killed; also when it has
    let the producer go."""
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
    """The header that names a record (see `events`)."""
    return (PRODUCED_HEADER, b"%d/%d" % (at_ms, number))
