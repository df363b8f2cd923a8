"""`AuditedConsumer`, an audited `ottla.client.Consumer`.

    async with AuditedConsumer(bootstrap_servers="…", group_id="billing", audit=AuditOptions()) as consumer:
        consumer.subscribe(["orders"])
        async for record in consumer:
            …

For applications; `BlockingAuditedConsumer` is the same without an event loop. Both have the interface of
Consumer. A record counts as processed when its offset is committed: a commit first publishes the counts of
the records that it covers, waits for the acknowledgement, and is then sent. So every committed record has
been reported, also if the process dies. A record that was reported and not committed is consumed, processed
and counted again. If the audit topic cannot be written, one commit waits COMMIT_WAIT_S; later commits do not
wait, and the counts are published when the topic is available.

Without a group a record counts at the next poll. An application that stores offsets elsewhere, or commits
them in a producer's transaction, calls `processed` before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any, Final

from ottla.client import blocking
from ottla.client.consumer import Consumer
from ottla.client.consumer_runtime import Records
from ottla.client.core.assigned import OffsetAndMetadata
from ottla.client.core.settings import ConfigError
from ottla.client.core.types import ConsumerRecord, TopicPartition
from ottla.client.errors import ClientError
from ottla.client.interceptors import ConsumerInterceptors
from ottla.client.loop_thread import blocking as run_blocking
from ottla.client.loop_thread import in_loop
from ottla.client.offset_committer import OffsetCommitter, Offsets, OnCommit
from ottla.client.producer import Producer
from ottla_pipeline.auditing.ottla_client import reports_producer
from ottla_pipeline.auditing.reporting import CLOSE_S, AuditOptions, now_ms

log = logging.getLogger(__name__)

COMMIT_WAIT_S: Final = 5.0


class AuditedConsumer(Consumer):
    """An Ottla Consumer whose processed records are counted for the audit."""

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        /,
        *,
        audit: AuditOptions | None = None,
        **keywords: object,
    ) -> None:
        """Raises ConfigError, also if neither `audit.application` nor group.id names the application."""
        super().__init__(settings, **keywords)
        self._audit_options = audit or AuditOptions()
        application = self._audit_options.application or self.config.group_id
        if not application:
            raise ConfigError("group.id", None, "is not set: name AuditOptions.application")
        self._receipts = self._audit_options.consumer_counter(application)
        self._commits = self.config.group_id is not None and not self.config.group_ephemeral
        self._interceptors = ConsumerInterceptors((_DeliveryInterceptor(self), *self.config.interceptors))
        self._committer = _ReportingCommitter(self)
        self._audit_producer: Producer = reports_producer(settings, keywords)
        self._audit_lock = asyncio.Lock()
        self._waits_for_reports = True
        """False after a report that was not acknowledged, until one is."""
        self._deferred: set[asyncio.Task[None]] = set()
        self._periodic: asyncio.Task[None] | None = None

    @property
    def audit_name(self) -> str:
        """The name of this consumer in audit events."""
        return self._receipts.consumer

    async def start(self) -> None:
        await super().start()
        await self._audit_producer.start()
        self._periodic = asyncio.create_task(self._report_periodically(), name="ottla-audit")

    async def stop(self, *, commit: bool = True, timeout_s: float = 30.0) -> None:
        """Stops the consumer and publishes the last report."""
        periodic, self._periodic = self._periodic, None
        if periodic is None:
            return await super().stop(commit=commit, timeout_s=timeout_s)
        try:
            if self._deferred:
                await asyncio.wait(self._deferred, timeout=timeout_s)
            if not self._commits:
                self._done_before(self._committer.consumed(finished=commit))
            await super().stop(commit=commit, timeout_s=timeout_s)
        finally:
            periodic.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await periodic
            await self.report(final=True)
            await self._audit_producer.stop(0)

    async def poll(self, timeout_s: float = 0.0, max_records: int | None = None) -> Records:
        if not self._commits:
            self._done_before(self._committer.consumed())
        return await super().poll(timeout_s, max_records)

    # --- what was processed ---

    async def processed(self, offsets: Offsets | None = None) -> None:
        """Counts the records before these next offsets, or all consumed records, as processed and
        publishes the counts, without a commit."""
        if offsets is None:
            self._done_before(self._committer.consumed())
        else:
            self._receipts.processed(
                {(tp[0], tp[1]): at if isinstance(at, int) else at.offset for tp, at in offsets.items()}
            )
        await self._report_before_commit()

    def reject(self, record: ConsumerRecord) -> None:
        """Counts a record as rejected: the application received it and found it invalid. To be called
        before its offset is committed. Raises ValueError for a record that is not pending."""
        self._receipts.reject(record.topic, record.partition, record.offset)

    def _done_before(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self._receipts.processed({tp: entry.offset for tp, entry in offsets.items()})

    # --- reports ---

    async def _report_before_commit(self) -> None:
        if not self._waits_for_reports:
            return
        try:
            async with asyncio.timeout(COMMIT_WAIT_S):
                if self._receipts.waiting or self._audit_lock.locked():
                    await self.report()
        except TimeoutError:
            self._report_failed(f"no acknowledgement within {COMMIT_WAIT_S:g} s")

    async def report(self, *, final: bool = False) -> None:
        """Publishes counts of processed records and waits for the acknowledgement or the failure."""
        async with self._audit_lock:
            while True:
                event = self._receipts.report(now_ms(), final=final)
                try:
                    async with asyncio.timeout(CLOSE_S):
                        key = event.consumer.encode()
                        await self._audit_producer.send_and_wait(
                            self._audit_options.topic, event.to_json(), key
                        )
                except (ClientError, TimeoutError) as problem:
                    self._report_failed(problem)
                    return
                self._receipts.arrived()
                self._waits_for_reports = True
                if event.final or not (final or self._receipts.waiting):
                    return

    def _report_failed(self, problem: object) -> None:
        if self._waits_for_reports:
            log.warning(
                "audit reports to %s are not acknowledged; commits do not wait for them: %s",
                self._audit_options.topic,
                problem,
            )
        self._waits_for_reports = False

    async def _report_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._audit_options.interval_s)
            await self.report()


class _ReportingCommitter(OffsetCommitter):
    """Publishes the counts of the records that a commit covers before it sends the commit."""

    def __init__(self, consumer: AuditedConsumer) -> None:
        super().__init__(consumer._runtime, consumer._prefetched, consumer._interceptors)
        self._consumer = consumer

    async def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], timeout_s: float) -> None:
        self._consumer._done_before(offsets)
        await self._consumer._report_before_commit()
        await super().commit(offsets, timeout_s)

    def commit_nowait(
        self, offsets: dict[TopicPartition, OffsetAndMetadata], on_done: OnCommit | None = None
    ) -> None:
        consumer = self._consumer
        consumer._done_before(offsets)
        if not consumer._receipts.waiting and not consumer._deferred:
            super().commit_nowait(offsets, on_done)
            return
        task = asyncio.create_task(self._commit_when_reported(offsets, on_done), name="ottla-audit-commit")
        consumer._deferred.add(task)
        task.add_done_callback(consumer._deferred.discard)

    async def _commit_when_reported(
        self, offsets: dict[TopicPartition, OffsetAndMetadata], on_done: OnCommit | None
    ) -> None:
        await self._consumer._report_before_commit()
        super().commit_nowait(offsets, on_done)


class _DeliveryInterceptor:
    """Runs before the application's interceptors, so that records count as consumed whatever those return."""

    def __init__(self, consumer: AuditedConsumer) -> None:
        self._consumer = consumer

    def on_consume(self, records: Records) -> Records:
        receipts = self._consumer._receipts
        receipts.retain(self._consumer.assignment())
        for (topic, partition), given in records.items():
            for record in given:
                receipts.delivered(topic, partition, record.offset, record.headers)
        return records

    def on_commit(self, offsets: Mapping[Any, Any]) -> None:
        """Committed records have been counted before the commit."""

    def close(self) -> None: ...


class BlockingAuditedConsumer(blocking.Consumer):
    """An audited consumer with the blocking interface of `ottla.client.blocking`."""

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        /,
        *,
        audit: AuditOptions | None = None,
        **keywords: object,
    ) -> None:
        self._audited = AuditedConsumer(settings, audit=audit, **keywords)
        super().__init__(self._audited)

    @property
    def audit_name(self) -> str:
        """The name of this consumer in audit events."""
        return self._audited.audit_name

    processed = run_blocking(AuditedConsumer.processed)
    reject = in_loop(AuditedConsumer.reject)
