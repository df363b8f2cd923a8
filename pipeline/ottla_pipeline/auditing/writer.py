"""`AuditedWriter` in the place of `ottla.client`'s `Writer`.

    writer = AuditedWriter(brokers, "orders", audit=AuditOptions(topic="ottla.audit"))
    await writer.open()

For applications. A call's records count when `write` returns; when it raises, none of them is counted as
acknowledged, though some may have been written.

No thread here: reports are published by a task of the same event loop, as the client is not for several.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace

from ottla.client.connection import ConnectionLost
from ottla.client.routing import Brokers, ClusterUnreachable
from ottla.client.writer import NewRecord, Writer
from ottla.protocol.compression import Codec
from ottla.protocol.errors import KafkaError
from ottla_pipeline.auditing.events import PRODUCER_HEADER
from ottla_pipeline.auditing.reporting import AuditOptions, now_ms, stamp

_UNDELIVERED = (KafkaError, TimeoutError, ConnectionLost, ClusterUnreachable, OSError)


class AuditedWriter(Writer):
    """Use: `await open()`, `await write(records)` as often as wanted, `await close()`."""

    def __init__(
        self, brokers: Brokers, topic: str, *, codec: Codec = Codec.NONE, audit: AuditOptions | None = None
    ) -> None:
        super().__init__(brokers, topic, codec=codec)
        self._options = audit or AuditOptions()
        self._counter = self._options.counter()
        self._producer_header = (PRODUCER_HEADER, self._counter.producer.encode())
        self._reports = Writer(brokers, self._options.topic)
        self._reporting = asyncio.Lock()
        self._periodic: asyncio.Task[None] | None = None

    @property
    def audit_name(self) -> str:
        """What the header `ottla-producer` says."""
        return self._counter.producer

    async def open(self) -> None:
        await super().open()
        await self._reports.open()
        self._periodic = asyncio.create_task(self._report_now_and_then(), name="ottla-audit")

    async def write(self, records: Sequence[NewRecord]) -> dict[int, int]:
        if self._periodic is None:
            raise RuntimeError("the audited writer is not open")
        window = self._counter.window(self.topic, now_ms())
        at_ms, first = self._counter.latest_ms, window.sent
        stamped = [
            replace(record, headers=[self._producer_header, stamp(at_ms, first + place), *record.headers])
            for place, record in enumerate(records)
        ]
        window.sent += len(stamped)
        try:
            written = await super().write(stamped)
        except BaseException:
            if stamped:
                window.fail(first, first + len(stamped) - 1)
            raise
        window.acknowledged += len(stamped)
        return written

    async def report(self, *, final: bool = False) -> None:
        """Publishes what changed, and waits until it has arrived or not."""
        async with self._reporting:
            event = self._counter.report(now_ms(), final=final)
            try:
                await self._reports.write([NewRecord(event.to_json(), event.producer.encode())])
            except _UNDELIVERED:
                self._counter.lost(event.report)
            else:
                self._counter.arrived(event.report)

    async def close(self) -> None:
        """Publishes the last report. The brokers' connections are the caller's to close."""
        periodic, self._periodic = self._periodic, None
        if periodic is not None:
            periodic.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await periodic
            await self.report(final=True)

    async def _report_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._options.interval_s)
            await self.report()
