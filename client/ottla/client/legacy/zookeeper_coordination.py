"""A connector coordinated by ZooKeeper, as Kafka 0.8.2 does it: each consumer decides for itself, by what it
sees there, and owns what it reads by ephemeral nodes. Its groups may have members in Java.

Made by `connector`. A rebalance: fetch nothing more, take back what was not given out, commit, release what
is owned, look, decide, claim; and that again after rebalance.backoff.ms while former owners have not
released theirs. Unlike Kafka's, it is left out when a look shows that nothing is decided otherwise.
Invariants: what is read is owned; what is released was committed before (with auto.commit.enable).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from typing import Final

from ottla.client.core.types import TopicPartition
from ottla.client.legacy import range_assignor, registry
from ottla.client.legacy.configs import ConsumerConfig
from ottla.client.legacy.errors import ConsumerRebalanceFailedError
from ottla.client.legacy.feed import Feed
from ottla.client.legacy.group_nodes import Subscription
from ottla.client.legacy.handlers import ConsumerRebalanceListener, call_listener
from ottla.client.legacy.range_assignor import Share, ThreadId
from ottla.client.legacy.registry import Registry
from ottla.client.legacy.streams import KafkaStream

log = logging.getLogger(__name__)

_AGAIN_S: Final = 1.0


class ZooKeeperCoordination:
    def __init__(self, config: ConsumerConfig, consumer: str) -> None:
        """Raises ClientError."""
        assert config.rebalance_backoff_ms is not None
        self._config = config
        self._backoff_s = config.rebalance_backoff_ms / 1000
        self._session_s = config.zookeeper_session_timeout_ms / 1000
        self._consumer = consumer
        self._lock = threading.RLock()
        """Held by rebalances and commits: what is committed is still owned."""
        self._news = threading.Event()
        self._closing = threading.Event()
        self._registry = Registry(config, consumer, self._news.set)
        self._watcher = threading.Thread(target=self._watch, name=f"{consumer}_watcher_executor", daemon=True)
        self._feed: Feed | None = None
        self.listener: ConsumerRebalanceListener | None = None
        self._owned: dict[TopicPartition, ThreadId] = {}
        self._shares: dict[str, Share] | None = None
        """What was seen when the partitions that are read were decided on; None when none were."""

    def begin(
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
        self._closing.set()
        self._news.set()
        # Whoever waits for a ZooKeeper that has gone is let go when its client is closed.
        patience = threading.Timer(2 * self._session_s, self._registry.close)
        patience.start()
        with self._lock:
            try:
                self._stop_reading(commit=commit, retries=self._config.offsets_commit_max_retries)
            finally:
                patience.cancel()
                if self._feed is not None:
                    self._feed.close()
                self._registry.close()
        if self._watcher.is_alive():
            self._watcher.join()

    # --- commits ---

    def commit(self) -> None:
        """Raises ClientError, KazooException."""
        with self._lock:
            if self._feed is None:
                return
            offsets = self._feed.consumed()
            if self._config.offsets_storage == "kafka":
                self._feed.commit(offsets)
            if self._config.offsets_storage == "zookeeper" or self._config.dual_commit_enabled:
                self._registry.commit(offsets)

    def _commit_quietly(self, retries: int) -> None:
        """What cannot be committed is read again: no reason to stop."""
        for left in reversed(range(retries + 1)):
            try:
                self.commit()
                return
            except registry.PROBLEMS as problem:
                log.warning("%s: a commit failed: %s", self._consumer, _text(problem))
                if not left:
                    return
                self._closing.wait(_AGAIN_S)

    def _offsets(
        self, feed: Feed, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int | None]:
        """Where to begin; None where nothing is kept."""
        if self._config.offsets_storage == "zookeeper":
            return {tp: self._registry.offset(tp) for tp in partitions}
        kept = feed.committed(partitions)
        if self._config.dual_commit_enabled:
            for tp, offset in kept.items():
                other = self._registry.offset(tp)
                if other is not None:
                    kept[tp] = other if offset is None else max(offset, other)
        return kept

    # --- rebalances ---

    def _watch(self) -> None:
        """In a thread of its own: whatever changes may change what is to be read."""
        while True:
            self._news.wait()
            self._news.clear()
            if self._closing.is_set():
                return
            try:
                if self._registry.expired:
                    self._begin_anew()
                if self._shares is None or self._registry.shares(self._subscription) != self._shares:
                    self._rebalance()
            except ConsumerRebalanceFailedError as problem:
                log.error("%s", problem)  # as Kafka's: the next change is the next occasion
            except registry.PROBLEMS as problem:
                if not self._closing.is_set():
                    log.warning("%s: %s", self._consumer, _text(problem))
                self._closing.wait(_AGAIN_S)
                self._news.set()

    def _begin_anew(self) -> None:
        """The session has ended, and others own by now what was ours: nothing of it can be committed."""
        with self._lock:
            log.warning("%s: the session with ZooKeeper has ended", self._consumer)
            self._stop_reading(commit=False)
            self._owned = {}
            if self._feed is not None:
                self._feed.forget()
            self._registry.register(self._subscription)

    def _rebalance(self) -> None:
        """Raises ConsumerRebalanceFailedError."""
        tries = self._config.rebalance_max_retries
        why: Exception | None = None
        with self._lock:
            for _ in range(tries):
                if self._closing.is_set():
                    return
                why = None
                try:
                    if self._try_to_rebalance():
                        return
                except registry.PROBLEMS as problem:
                    # While one looks around in ZooKeeper, others change it.
                    log.info("%s: a rebalance failed: %s", self._consumer, _text(problem))
                    why = problem
                self._stop_reading(commit=self._config.auto_commit_enable)
                self._closing.wait(self._backoff_s)
        raise ConsumerRebalanceFailedError(
            f"{self._consumer}: no rebalance in rebalance.max.retries={tries} tries: "
            f"{'former owners have not released their partitions' if why is None else _text(why)}"
        ) from why

    def _try_to_rebalance(self) -> bool:
        feed = self._reach_brokers()
        if feed is None:
            log.warning("%s: no brokers are known to ZooKeeper", self._consumer)
            return True
        self._stop_reading(commit=self._config.auto_commit_enable)
        call_listener(self.listener, self._owned)
        self._registry.release(self._owned)
        feed.forget()
        shares = self._registry.shares(self._subscription)
        strategy = self._config.partition_assignment_strategy
        self._owned = range_assignor.of_consumer(strategy, shares, self._consumer)
        offsets = self._offsets(feed, self._owned)
        if not self._registry.claim(self._owned):
            self._registry.release(self._owned)
            self._owned = {}
            return False
        feed.begin(
            {
                tp: (self._stream_of(tp.topic, thread.number), offsets[tp])
                for tp, thread in self._owned.items()
            }
        )
        self._shares = shares
        log.info("%s reads %s", self._consumer, ", ".join(map(str, sorted(self._owned))) or "nothing")
        return True

    def _stop_reading(self, *, commit: bool, retries: int = 0) -> None:
        self._shares = None
        if self._feed is not None:
            self._feed.stop()
            if commit:
                self._commit_quietly(retries)

    def _reach_brokers(self) -> Feed | None:
        if self._feed is None:
            servers = list(self._config.bootstrap_servers) or self._registry.brokers()
            if not servers:
                return None
            settings = {**self._config.properties(), "bootstrap.servers": servers}
            self._feed = Feed(settings, f"ottla-{self._consumer}", self._streams)
        return self._feed


def _text(problem: Exception) -> str:
    """Many of kazoo's errors have no text but their name."""
    return str(problem) or type(problem).__name__
