"""`AuditedProducer`, an audited `ottla.client.Producer`.

    async with AuditedProducer(bootstrap_servers="…", audit=AuditOptions(topic="ottla.audit")) as producer:
        await producer.send("orders", b"…")

For applications. It has the interface of Producer. A record counts once, when it is acknowledged; in a
transaction, when the transaction is committed. Stop the producer: the last report marks the end of its
records.

It uses no thread: a task of the same event loop publishes reports, through a second producer that is
independent of transactions and acks=0.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from ottla.client.core.types import Header, RecordMetadata
from ottla.client.deliveries import OnDelivery, log_failure
from ottla.client.errors import ClientError, IllegalStateError
from ottla.client.producer import Producer
from ottla_pipeline.auditing.events import PRODUCER_HEADER
from ottla_pipeline.auditing.producer_counts import Window
from ottla_pipeline.auditing.reporting import CLOSE_S, AuditOptions, now_ms, stamp

log = logging.getLogger(__name__)

_SHARED: Final = (
    "bootstrap.servers",
    "security.protocol",
    "sasl.",
    "ssl.",
    "reconnect.",
    "socket.",
    "metadata.",
)
"""Prefixes of the application's settings that the producer of reports shares."""


def reports_producer(settings: Mapping[str, object] | None, keywords: Mapping[str, object]) -> Producer:
    """The producer of audit events, for a client with these settings."""
    written = {**(settings or {}), **{name.replace("_", "."): value for name, value in keywords.items()}}
    shared = {key: value for key, value in written.items() if key.startswith(_SHARED)}
    return Producer({**shared, "client.id": "ottla-audit"})


class AuditedProducer(Producer):
    """An Ottla Producer whose records are counted for the audit."""

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        /,
        *,
        audit: AuditOptions | None = None,
        **keywords: object,
    ) -> None:
        super().__init__(settings, **keywords)
        self._options = audit or AuditOptions()
        self._counter = self._options.producer_counter()
        self._producer_header = (PRODUCER_HEADER, self._counter.producer.encode())
        self._reports = reports_producer(settings, keywords)
        self._reporting = asyncio.Lock()
        self._periodic: asyncio.Task[None] | None = None

    @property
    def audit_name(self) -> str:
        """The value of the header `ottla-producer`."""
        return self._counter.producer

    async def start(self) -> None:
        await super().start()
        await self._reports.start()
        self._periodic = asyncio.create_task(self._report_periodically(), name="ottla-audit")

    async def stop(self, timeout_s: float | None = None) -> None:
        """Stops the producer and publishes the last report."""
        await super().stop(timeout_s)
        periodic, self._periodic = self._periodic, None
        if periodic is not None:
            self._end_transaction(committed=False)
            periodic.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await periodic
            await self.report(final=True)
            await self._reports.stop(0)

    # --- sending ---

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
    ) -> asyncio.Future[RecordMetadata]:
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        counted, stamped = self._number(topic, headers, future)
        with counted:
            await self.append_or_wait(counted, topic, value, key, partition, timestamp_ms, stamped)
        return future

    def send_nowait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        counted, stamped = self._number(topic, headers, None)
        then = partial(log_failure, topic) if on_delivery is None else on_delivery

        def delivered(metadata: RecordMetadata | None, error: BaseException | None) -> None:
            counted.end(error is None)
            then(metadata, error)

        with counted:
            super().send_nowait(
                topic,
                value,
                key,
                partition=partition,
                timestamp_ms=timestamp_ms,
                headers=stamped,
                on_delivery=delivered,
            )

    def _number(
        self, topic: str, headers: Sequence[Header], then: asyncio.Future[RecordMetadata] | None
    ) -> tuple[_Counted, list[Header]]:
        """Assigns the record's number in its window. Returns its outcome tracker and its headers."""
        if self._periodic is None:
            raise IllegalStateError("the audited producer is not started")
        window = self._counter.window(topic, now_ms())
        number = window.sent
        window.sent += 1
        counted = _Counted(window, number, then, in_transaction=self._counter.in_transaction)
        return counted, [self._producer_header, stamp(self._counter.latest_ms, number), *headers]

    # --- transactions ---

    def begin_transaction(self) -> None:
        super().begin_transaction()
        self._counter.begin_transaction()

    async def commit_transaction(self) -> None:
        await super().commit_transaction()
        self._end_transaction(committed=True)

    async def abort_transaction(self) -> None:
        await super().abort_transaction()
        self._end_transaction(committed=False)

    def _end_transaction(self, *, committed: bool) -> None:
        if self._counter.in_transaction:
            self._counter.end_transaction(committed)

    # --- reports ---

    async def report(self, *, final: bool = False) -> None:
        """Publishes changed counts and waits for the acknowledgement or the failure."""
        async with self._reporting:
            event = self._counter.report(now_ms(), final=final)
            try:
                async with asyncio.timeout(CLOSE_S):
                    key = event.producer.encode()
                    await self._reports.send_and_wait(self._options.topic, event.to_json(), key)
            except (ClientError, TimeoutError) as problem:
                log.info("audit report %d was not acknowledged: %s", event.report, problem)
                self._counter.lost(event.report)
            else:
                self._counter.arrived(event.report)

    async def _report_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._options.interval_s)
            await self.report()


class _Counted:
    """Tracks the outcome of one record: acknowledged or failed, once. It takes the place of the caller's
    future and forwards the result. As a context manager around the send call, it counts an exception as a
    failure."""

    __slots__ = ("_ended", "_in_transaction", "_number", "_then", "_window")

    def __init__(
        self,
        window: Window,
        number: int,
        then: asyncio.Future[RecordMetadata] | None,
        *,
        in_transaction: bool,
    ) -> None:
        self._window = window
        self._number = number
        self._then = then
        self._in_transaction = in_transaction
        self._ended = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not self._ended:
            # Also a cancelled send whose record is delivered later: for the caller it has failed.
            self._ended = True
            self._window.fail(self._number, self._number)

    def end(self, acknowledged: bool) -> None:
        if self._ended:
            return
        self._ended = True
        if self._in_transaction:
            return  # the end of the transaction counts
        if acknowledged:
            self._window.acknowledged += 1
        else:
            self._window.fail(self._number, self._number)

    # --- as a future ---

    def done(self) -> bool:
        return False

    def set_result(self, metadata: RecordMetadata) -> None:
        self.end(acknowledged=True)
        if self._then is not None and not self._then.done():
            self._then.set_result(metadata)

    def set_exception(self, error: BaseException) -> None:
        self.end(acknowledged=False)
        if self._then is not None and not self._then.done():
            self._then.set_exception(error)
