"""Coordination of a connector by ZooKeeper, as in Kafka 0.8.2; a group may have members in Java.

Created by `connector`. Each consumer computes the assignment from the group's nodes in ZooKeeper, and owns
its partitions by ephemeral nodes. A rebalance stops fetching, clears the streams, commits, releases the owned
partitions, reads the group, computes the assignment and claims the new partitions. It is repeated after
rebalance.backoff.ms while former owners have not released theirs. Unlike Kafka's, a rebalance is skipped if
the inputs of the assignment have not changed. Invariants: a consumer owns the partitions that it reads;
offsets are committed before a partition is released (with auto.commit.enable).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from typing import Final

from ottla.client.core.types import TopicPartition
from ottla.client.legacy import consumer_registry, partition_assignor
from ottla.client.legacy.configs import ConsumerConfig
from ottla.client.legacy.consumer_fetcher import ConsumerFetcher
from ottla.client.legacy.consumer_registry import ConsumerRegistry
from ottla.client.legacy.errors import ConsumerRebalanceFailedError
from ottla.client.legacy.group_nodes import Subscription
from ottla.client.legacy.handlers import ConsumerRebalanceListener, call_listener
from ottla.client.legacy.partition_assignor import AssignableTopic, ConsumerThreadId
from ottla.client.legacy.streams import KafkaStream

log = logging.getLogger(__name__)

_RETRY_S: Final = 1.0


class ZooKeeperCoordination:
    """Implements `connector.Coordination` by nodes in ZooKeeper, with a thread that watches the group."""

    def __init__(self, config: ConsumerConfig, consumer: str) -> None:
        """Raises ClientError."""
        assert config.rebalance_backoff_ms is not None
        self._config = config
        self._backoff_s = config.rebalance_backoff_ms / 1000
        self._session_timeout_s = config.zookeeper_session_timeout_ms / 1000
        self._consumer = consumer
        self._lock = threading.RLock()
        """Held by rebalances and commits, so that only owned partitions are committed."""
        self._rebalance_needed = threading.Event()
        self._shutdown = threading.Event()
        self._registry = ConsumerRegistry(config, consumer, self._rebalance_needed.set)
        self._watcher = threading.Thread(target=self._watch, name=f"{consumer}_watcher_executor", daemon=True)
        self._fetcher: ConsumerFetcher | None = None
        self.listener: ConsumerRebalanceListener | None = None
        self._owned: dict[TopicPartition, ConsumerThreadId] = {}
        self._assignment_inputs: dict[str, AssignableTopic] | None = None
        """The inputs of the current assignment; None without one."""

    def start(
        self,
        subscription: Subscription,
        streams: Collection[KafkaStream],
        stream_of: Callable[[str, int], KafkaStream],
    ) -> None:
        """Raises ConsumerRebalanceFailedError, ClientError."""
        self._subscription = subscription
        self._streams = streams
        self._stream_of = stream_of
        self._registry.register(subscription)
        try:
            self._rebalance()
        finally:
            self._watcher.start()

    def close(self, *, commit: bool) -> None:
        self._shutdown.set()
        self._rebalance_needed.set()
        # If ZooKeeper is not reachable, closing its client ends the calls that wait for it.
        close_timer = threading.Timer(2 * self._session_timeout_s, self._registry.close)
        close_timer.start()
        with self._lock:
            try:
                self._stop_reading(commit=commit, retries=self._config.offsets_commit_max_retries)
            finally:
                close_timer.cancel()
                if self._fetcher is not None:
                    self._fetcher.close()
                self._registry.close()
        if self._watcher.is_alive():
            self._watcher.join()

    # --- commits ---

    def commit(self) -> None:
        """Commit the consumed offsets to ZooKeeper, Kafka or both. Raises ClientError, KazooException."""
        with self._lock:
            if self._fetcher is None:
                return
            offsets = self._fetcher.consumed_offsets()
            if self._config.offsets_storage == "kafka":
                self._fetcher.commit(offsets)
            if self._config.offsets_storage == "zookeeper" or self._config.dual_commit_enabled:
                self._registry.commit(offsets)

    def _commit_quietly(self, retries: int) -> None:
        """Commit; log an error after `retries` more attempts. Uncommitted messages are read again."""
        for left in reversed(range(retries + 1)):
            try:
                self.commit()
                return
            except consumer_registry.ERRORS as problem:
                log.warning("%s: a commit failed: %s", self._consumer, _error_text(problem))
                if not left:
                    return
                self._shutdown.wait(_RETRY_S)

    def _offsets(
        self, fetcher: ConsumerFetcher, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int | None]:
        """The committed offset of each partition; None where there is none."""
        if self._config.offsets_storage == "zookeeper":
            return {tp: self._registry.offset(tp) for tp in partitions}
        committed = fetcher.committed(partitions)
        if self._config.dual_commit_enabled:
            for tp, offset in committed.items():
                other = self._registry.offset(tp)
                if other is not None:
                    committed[tp] = other if offset is None else max(offset, other)
        return committed

    # --- rebalances ---

    def _watch(self) -> None:
        """The watcher thread: rebalances when the group, its topics or the session have changed."""
        while True:
            self._rebalance_needed.wait()
            self._rebalance_needed.clear()
            if self._shutdown.is_set():
                return
            try:
                if self._registry.expired:
                    self._register_again()
                if (
                    self._assignment_inputs is None
                    or self._registry.assignable_topics(self._subscription) != self._assignment_inputs
                ):
                    self._rebalance()
            except ConsumerRebalanceFailedError as problem:
                log.error("%s", problem)  # as in Kafka, the next change starts the next attempt
            except consumer_registry.ERRORS as problem:
                if not self._shutdown.is_set():
                    log.warning("%s: %s", self._consumer, _error_text(problem))
                self._shutdown.wait(_RETRY_S)
                self._rebalance_needed.set()

    def _register_again(self) -> None:
        """Register again after the session has expired. The partitions may have new owners: no offset is
        committed."""
        with self._lock:
            log.warning("%s: the ZooKeeper session has expired", self._consumer)
            self._stop_reading(commit=False)
            self._owned = {}
            if self._fetcher is not None:
                self._fetcher.drop_offsets()
            self._registry.register(self._subscription)

    def _rebalance(self) -> None:
        """Rebalance, at most rebalance.max.retries times. Raises ConsumerRebalanceFailedError."""
        tries = self._config.rebalance_max_retries
        last_error: Exception | None = None
        with self._lock:
            for _ in range(tries):
                if self._shutdown.is_set():
                    return
                last_error = None
                try:
                    if self._rebalance_once():
                        return
                except consumer_registry.ERRORS as problem:
                    # Another consumer may have changed the nodes in between.
                    log.info("%s: a rebalance failed: %s", self._consumer, _error_text(problem))
                    last_error = problem
                self._stop_reading(commit=self._config.auto_commit_enable)
                self._shutdown.wait(self._backoff_s)
        reason = "former owners have not released their partitions"
        if last_error is not None:
            reason = _error_text(last_error)
        raise ConsumerRebalanceFailedError(
            f"{self._consumer}: no rebalance in rebalance.max.retries={tries} tries: {reason}"
        ) from last_error

    def _rebalance_once(self) -> bool:
        fetcher = self._open_fetcher()
        if fetcher is None:
            log.warning("%s: no broker is registered in ZooKeeper", self._consumer)
            return True
        self._stop_reading(commit=self._config.auto_commit_enable)
        call_listener(self.listener, self._owned)
        self._registry.release(self._owned)
        fetcher.drop_offsets()
        topics = self._registry.assignable_topics(self._subscription)
        strategy = self._config.partition_assignment_strategy
        self._owned = partition_assignor.assign(strategy, topics, self._consumer)
        offsets = self._offsets(fetcher, self._owned)
        if not self._registry.claim(self._owned):
            self._registry.release(self._owned)
            self._owned = {}
            return False
        fetcher.start_fetching(
            {
                tp: (self._stream_of(tp.topic, thread.number), offsets[tp])
                for tp, thread in self._owned.items()
            }
        )
        self._assignment_inputs = topics
        log.info("%s owns %s", self._consumer, ", ".join(map(str, sorted(self._owned))) or "nothing")
        return True

    def _stop_reading(self, *, commit: bool, retries: int = 0) -> None:
        self._assignment_inputs = None
        if self._fetcher is not None:
            self._fetcher.stop()
            if commit:
                self._commit_quietly(retries)

    def _open_fetcher(self) -> ConsumerFetcher | None:
        if self._fetcher is None:
            servers = list(self._config.bootstrap_servers) or self._registry.brokers()
            if not servers:
                return None
            settings = {**self._config.properties(), "bootstrap.servers": servers}
            self._fetcher = ConsumerFetcher(settings, f"ottla-{self._consumer}", self._streams)
        return self._fetcher


def _error_text(problem: Exception) -> str:
    """The text of an error, or its class name; many of kazoo's errors have no text."""
    return str(problem) or type(problem).__name__
