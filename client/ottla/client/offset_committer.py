"""Commits of a consumer: on demand, without waiting, and automatic ones (enable.auto.commit).

Called by `Consumer`. The requests are sent by `core.offsets`, which retries. Invariant: without explicit
offsets, a commit covers the records that `poll` has returned, and of the records that iteration holds back
only those that the user has taken.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

from ottla.client import errors
from ottla.client.consumer_records import PrefetchedRecords
from ottla.client.consumer_runtime import ConsumerRuntime, Records
from ottla.client.core.assigned import OffsetAndMetadata
from ottla.client.core.types import TopicPartition
from ottla.client.interceptors import ConsumerInterceptors
from ottla.protocol.errors import ErrorCode
from ottla.wire.connection import resolve

log = logging.getLogger(__name__)

Offsets: TypeAlias = (
    Mapping[TopicPartition, int | OffsetAndMetadata] | Mapping[tuple[str, int], int | OffsetAndMetadata]
)
OnCommit: TypeAlias = Callable[[dict[TopicPartition, OffsetAndMetadata], Exception | None], Any]
"""Kafka's OffsetCommitCallback: gets the offsets, and the error or None."""


class OffsetCommitter:
    """Commits offsets of a consumer to its group, and reads committed offsets."""

    def __init__(
        self,
        runtime: ConsumerRuntime,
        prefetched: PrefetchedRecords,
        interceptors: ConsumerInterceptors[Records],
    ) -> None:
        self._runtime = runtime
        self._config = runtime.config
        self._prefetched = prefetched
        self._interceptors = interceptors
        self._next_auto_commit = -math.inf

    def offsets_to_commit(self, offsets: Offsets | None) -> dict[TopicPartition, OffsetAndMetadata]:
        """The given offsets in one form, or the consumed ones. Raises IllegalStateError, ValueError."""
        self._runtime.check_started()
        self._runtime.check_group()
        if offsets is None:
            return self.consumed()
        converted = {}
        for partition, offset in offsets.items():
            entry = OffsetAndMetadata(offset) if isinstance(offset, int) else offset
            if entry.offset < 0:
                raise ValueError(f"{TopicPartition(*partition)}: offset {entry.offset} must not be negative")
            converted[TopicPartition(*partition)] = entry
        return converted

    def consumed(self, *, finished: bool = True) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets after the records that the user has taken. `finished`: whether the last record that
        iteration has returned counts as processed."""
        return self._prefetched.before(self._runtime.assigned.consumed(), finished=finished)

    def _consumed_of_known_topics(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """For automatic commits, which are retried: without deleted topics, because a topic of the same name
        may be created before the retry."""
        cluster = self._runtime.cluster

        def exists(topic: str) -> bool:
            deleted = cluster.error(topic) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return topic in cluster.topics and not deleted

        consumed = self._runtime.assigned.consumed()
        return {tp: offset for tp, offset in consumed.items() if exists(tp.topic)}

    # --- commits ---

    async def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], timeout_s: float) -> None:
        """Commit, with retries until the timeout. Raises ClientError."""
        deadline = self._runtime.now() + timeout_s
        await self._call(lambda done: self._runtime.offsets.commit(offsets, deadline, done))
        if self._interceptors:
            self._interceptors.on_commit(offsets)

    def commit_nowait(
        self, offsets: dict[TopicPartition, OffsetAndMetadata], on_done: OnCommit | None = None
    ) -> None:
        """Send a commit without waiting and without retries; a failure is logged if there is no `on_done`."""

        def done(problem: Exception | None) -> None:
            if problem is None and self._interceptors:
                self._interceptors.on_commit(offsets)
            if on_done is not None:
                try:
                    on_done(offsets, problem)
                except Exception:
                    log.exception("the callback of a commit of %s failed", names_of(offsets))
            elif problem is not None:
                log.warning("group %s: commit of %s failed: %s", self._group, names_of(offsets), problem)

        self._runtime.offsets.commit(offsets, self._runtime.api_deadline(), done, once=True)
        self._runtime.wake()

    @property
    def _group(self) -> str | None:
        return self._config.group_id

    async def _call(self, begin: Callable[[Callable[[Any], None]], None]) -> Any:
        """Begin an operation of the offset manager and wait for its result."""
        self._runtime.check_started()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        begin(partial(resolve, future))
        self._runtime.wake()
        return await future

    async def committed(
        self, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets; None for a partition without one. Raises ClientError."""
        deadline = self._runtime.api_deadline()
        found: dict[TopicPartition, OffsetAndMetadata | None] = await self._call(
            lambda done: self._runtime.offsets.fetch(partitions, deadline, done)
        )
        return found

    # --- automatic commits ---

    def auto_commit_if_due(self) -> None:
        """Send an automatic commit if auto.commit.interval.ms has passed; does not wait for the response."""
        now = self._runtime.now()
        if not self._config.enable_auto_commit or now < self._next_auto_commit:
            return
        self.restart_interval()
        consumed = self._consumed_of_known_topics()
        if consumed:
            self.commit_nowait(consumed, self._auto_commit_done)

    def restart_interval(self) -> None:
        """The next automatic commit is due after auto.commit.interval.ms."""
        self._next_auto_commit = self._runtime.now() + self._config.auto_commit_interval_ms / 1000

    def _auto_commit_done(self, offsets: Iterable[TopicPartition], problem: Exception | None) -> None:
        if isinstance(problem, errors.RetriableError):
            self._next_auto_commit = self._runtime.now() + self._config.retry_backoff_ms / 1000
        elif problem is not None:
            self._log_failure(offsets, problem)

    async def auto_commit(
        self, offsets: dict[TopicPartition, OffsetAndMetadata] | None = None, timeout_s: float | None = None
    ) -> None:
        """Commit and wait, if enable.auto.commit is set: before partitions are revoked and when the consumer
        stops. A failure is logged only, since the records are read again."""
        if not self._config.enable_auto_commit:
            return
        offsets = self._consumed_of_known_topics() if offsets is None else offsets
        limit_s = self._config.default_api_timeout_ms / 1000 if timeout_s is None else timeout_s
        try:
            await self.commit(offsets, limit_s)
        except errors.ClientError as problem:
            self._log_failure(offsets, problem)

    def _log_failure(self, offsets: Iterable[TopicPartition], problem: Exception) -> None:
        log.warning("group %s: automatic commit of %s failed: %s", self._group, names_of(offsets), problem)


def names_of(partitions: Iterable[TopicPartition]) -> str:
    """Partitions as text for a log line."""
    return ", ".join(map(str, partitions)) or "no partitions"
