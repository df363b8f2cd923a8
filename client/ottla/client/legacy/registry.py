"""A consumer group's nodes in a real ZooKeeper: `group_nodes` over kazoo.

Called by `zookeeper_coordination`, whose thread blocks in here. Whatever it reads to decide by, it reads
with a watch; `changed` is called, in kazoo's thread, when that may have become untrue or the session has
come back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry

from ottla.client.core.types import TopicPartition
from ottla.client.errors import ClientError
from ottla.client.legacy import group_nodes
from ottla.client.legacy.configs import ConsumerConfig, ProducerConfig
from ottla.client.legacy.group_nodes import GroupPaths, Subscription
from ottla.client.legacy.range_assignor import Share, ThreadId, share

log = logging.getLogger(__name__)

_SETTLE_S: Final = 0.1
_RECONNECT_DELAY_S_MAX: Final = 1.0
"""kazoo's own would grow to a minute, in which a consumer reads what it does not own any more."""
PROBLEMS: Final = (KazooException, KazooTimeoutError, ClientError, ValueError)
"""What its methods raise when ZooKeeper is away, or holds what cannot be: try again later."""


class Registry:
    def __init__(self, config: ConsumerConfig, consumer: str, changed: Callable[[], None]) -> None:
        """Connect. Raises ClientError when there is no ZooKeeper within zookeeper.connection.timeout.ms."""
        assert config.zookeeper_connect is not None
        assert config.zookeeper_connection_timeout_ms is not None
        self._config = config
        self._consumer = consumer
        self._paths = GroupPaths(config.group_id)
        self._changed = changed
        self._offsets: dict[TopicPartition, int] = {}
        """What was written or read last, so that only news are written."""
        self.expired = False
        """The session has ended, and all that is ephemeral with it; set back by `register`."""
        self._client = _client(config)
        self._client.add_listener(self._state_changed)
        _start(self._client, config)

    def close(self) -> None:
        """End the session: what is ephemeral goes at once."""
        self._client.stop()
        self._client.close()

    def _state_changed(self, state: str) -> None:
        if state == KazooState.LOST:
            self.expired = True
        if state != KazooState.SUSPENDED:
            self._changed()

    def _watch(self, event: object) -> None:
        self._changed()

    # --- who is there ---

    def register(self, subscription: Subscription) -> None:
        """Raises one of PROBLEMS, also when another consumer has this id."""
        self.expired = False
        try:
            self._register(subscription)
        except PROBLEMS:
            self.expired = True
            raise

    def _register(self, subscription: Subscription) -> None:
        path = self._paths.consumer(self._consumer)
        node = group_nodes.registration(subscription, int(time.time() * 1000))
        until = time.monotonic() + 2 * self._config.zookeeper_session_timeout_ms / 1000
        while True:
            try:
                self._client.create(path, node, ephemeral=True, makepath=True)
                return
            except NodeExistsError:
                # Of a session of ours that has not expired yet, or of somebody with the same consumer.id.
                if self._ours(path):
                    return
                if time.monotonic() >= until:
                    raise ClientError(f"{path} in ZooKeeper is another consumer's: set consumer.id") from None
                time.sleep(_SETTLE_S)

    def brokers(self) -> list[tuple[str, int]]:
        """Where they can be reached; when there are none, it is told of the first one."""
        reachable = _registered_brokers(self._client, self._config.security_protocol)
        if not reachable:
            self._children(group_nodes.BROKERS, watch=True)
        return reachable

    def shares(self, mine: Subscription) -> dict[str, Share]:
        """What there is of topics, and which streams want some: of this consumer's; for roundrobin, of the
        whole group's."""
        consumers = {
            consumer: group_nodes.parse_registration(self._paths.consumer(consumer), data)
            for consumer in self._children(self._paths.ids, watch=True)
            if (data := self._data(self._paths.consumer(consumer))) is not None
        }
        everybody = self._config.partition_assignment_strategy == "roundrobin"
        wanting = [*consumers.values(), mine] if everybody else [mine]
        existing: Collection[str] = ()
        if any(each.filter is not None for each in wanting):
            existing = self._children(group_nodes.TOPICS, watch=True)
        topics = {topic for each in wanting for topic in self._topics(each, existing)}
        partitions = {topic: self._partitions(topic) for topic in sorted(topics)}
        return {topic: share(found, self._threads(topic, consumers)) for topic, found in partitions.items()}

    def _topics(self, subscription: Subscription, existing: Collection[str]) -> list[str]:
        excluded = self._config.exclude_internal_topics
        return subscription.topics(existing, exclude_internal_topics=excluded)

    def _threads(self, topic: str, consumers: Mapping[str, Subscription]) -> Iterable[ThreadId]:
        for consumer, subscription in consumers.items():
            if topic in self._topics(subscription, (topic,)):
                yield from subscription.threads(consumer, topic)

    def _partitions(self, topic: str) -> list[int]:
        path = f"{group_nodes.TOPICS}/{topic}"
        if self._client.exists(path, watch=self._watch) is None:
            return []
        data = self._data(path)
        return [] if data is None else group_nodes.parse_partitions(path, data)

    def _children(self, path: str, *, watch: bool) -> list[str]:
        try:
            return list(self._client.get_children(path, watch=self._watch if watch else None))
        except NoNodeError:
            if watch:
                self._client.exists(path, watch=self._watch)
            return []

    def _data(self, path: str) -> bytes | None:
        return _data(self._client, path)

    # --- who owns what ---

    def claim(self, owned: Mapping[TopicPartition, ThreadId]) -> bool:
        """Become the owner of all of these; when some are still somebody else's, of the others, which are to
        be released then."""
        claimed = [self._claim(tp, str(thread).encode()) for tp, thread in owned.items()]
        return all(claimed)

    def _claim(self, tp: TopicPartition, owner: bytes) -> bool:
        path = self._paths.owner(tp)
        try:
            self._client.create(path, owner, ephemeral=True, makepath=True)
        except NodeExistsError:
            log.info("%s: %s has an owner still", self._consumer, tp)
            return False
        return True

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Those of them that are ours."""
        for tp in partitions:
            path = self._paths.owner(tp)
            try:
                if self._ours(path):
                    self._client.delete(path)
            except NoNodeError:
                log.debug("%s was not owned any more", tp)

    def _ours(self, path: str) -> bool:
        """Whether this session has made a node, one whose answer was lost with a connection among them."""
        found = self._client.exists(path)
        return found is not None and found.ephemeralOwner == self._client.client_id[0]

    # --- offsets ---

    def offset(self, tp: TopicPartition) -> int | None:
        path = self._paths.offset(tp)
        data = self._data(path)
        if data is None:
            self._offsets.pop(tp, None)
            return None
        offset = group_nodes.parse_offset(path, data)
        self._offsets[tp] = offset
        return offset

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        for tp, offset in offsets.items():
            if self._offsets.get(tp) != offset:
                self._write(self._paths.offset(tp), b"%d" % offset)
                self._offsets[tp] = offset

    def _write(self, path: str, data: bytes) -> None:
        try:
            self._client.set(path, data)
        except NoNodeError:
            try:
                self._client.create(path, data, makepath=True)
            except NodeExistsError:
                self._client.set(path, data)


def read_brokers(config: ProducerConfig) -> tuple[tuple[str, int], ...]:
    """The brokers registered at a producer's zookeeper.connect. Raises ClientError when there are none that
    serve its security.protocol, or no ZooKeeper."""
    client = _client(config)
    _start(client, config)
    try:
        found = _registered_brokers(client, config.security_protocol)
    except KazooException as problem:
        raise ClientError(f"zookeeper.connect={config.zookeeper_connect}: {problem!r}") from problem
    finally:
        client.stop()
        client.close()
    if not found:
        raise ClientError(
            f"no broker with a {config.security_protocol} listener is registered in ZooKeeper at "
            f"zookeeper.connect={config.zookeeper_connect}"
        )
    return tuple(found)


def _client(config: ConsumerConfig | ProducerConfig) -> KazooClient:
    assert config.zookeeper_connect is not None
    return KazooClient(
        hosts=config.zookeeper_connect,
        timeout=config.zookeeper_session_timeout_ms / 1000,
        connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=_RECONNECT_DELAY_S_MAX),
    )


def _start(client: KazooClient, config: ConsumerConfig | ProducerConfig) -> None:
    """Raises ClientError when there is no ZooKeeper within zookeeper.connection.timeout.ms."""
    assert config.zookeeper_connection_timeout_ms is not None
    try:
        client.start(timeout=config.zookeeper_connection_timeout_ms / 1000)
    except KazooTimeoutError:
        client.close()
        raise ClientError(
            f"no ZooKeeper at zookeeper.connect={config.zookeeper_connect} within "
            f"zookeeper.connection.timeout.ms={config.zookeeper_connection_timeout_ms}"
        ) from None


def _registered_brokers(client: KazooClient, security_protocol: str) -> list[tuple[str, int]]:
    try:
        ids = client.get_children(group_nodes.BROKERS)
    except NoNodeError:
        return []
    found = []
    for broker in ids:
        path = f"{group_nodes.BROKERS}/{broker}"
        data = _data(client, path)
        if data is not None:
            found.append(group_nodes.parse_broker(path, data, security_protocol))
    return [each for each in found if each is not None]


def _data(client: KazooClient, path: str) -> bytes | None:
    try:
        data: Any = client.get(path)[0]
    except NoNodeError:
        return None
    return bytes(data or b"")
