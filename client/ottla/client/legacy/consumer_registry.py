"""Reads and writes the nodes of a consumer group in ZooKeeper, with kazoo; `group_nodes` has paths and
formats.

Called by `zookeeper_coordination`; calls block. The inputs of an assignment are read with watches:
`on_change` is called in kazoo's thread when one of them may have changed, or when the session is connected
again.
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
from ottla.client.legacy.partition_assignor import AssignableTopic, ConsumerThreadId, assignable_topic

log = logging.getLogger(__name__)

_RETRY_S: Final = 0.1
_RECONNECT_DELAY_S_MAX: Final = 1.0
"""kazoo's default grows to a minute, in which a consumer may read partitions that it does not own any
more."""
ERRORS: Final = (KazooException, KazooTimeoutError, ClientError, ValueError)
"""Raised by the methods when ZooKeeper is not addresses or a node is invalid; the caller retries."""


class ConsumerRegistry:
    """The nodes of one group, for one of its consumers."""

    def __init__(self, config: ConsumerConfig, consumer: str, on_change: Callable[[], None]) -> None:
        """Connect. Raises ClientError when there is no ZooKeeper within zookeeper.connection.timeout.ms."""
        assert config.zookeeper_connect is not None
        assert config.zookeeper_connection_timeout_ms is not None
        self._config = config
        self._consumer = consumer
        self._paths = GroupPaths(config.group_id)
        self._on_change = on_change
        self._offsets: dict[TopicPartition, int] = {}
        """The offsets that were read or written last; unchanged ones are not written again."""
        self.expired = False
        """Whether the session, and with it all ephemeral nodes, has expired; reset by `register`."""
        self._client = _client(config)
        self._client.add_listener(self._state_changed)
        _start(self._client, config)

    def close(self) -> None:
        """End the session, which deletes its ephemeral nodes."""
        self._client.stop()
        self._client.close()

    def _state_changed(self, state: str) -> None:
        if state == KazooState.LOST:
            self.expired = True
        if state != KazooState.SUSPENDED:
            self._on_change()

    def _watch(self, event: object) -> None:
        self._on_change()

    # --- members, brokers, topics ---

    def register(self, subscription: Subscription) -> None:
        """Register the consumer. Raises one of ERRORS, also when another consumer has this id."""
        self.expired = False
        try:
            self._register(subscription)
        except ERRORS:
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
                # Of an earlier session of this consumer that has not expired, or of another consumer with
                # this id.
                if self._owns(path):
                    return
                if time.monotonic() >= until:
                    raise ClientError(
                        f"{path} in ZooKeeper belongs to another consumer: set consumer.id"
                    ) from None
                time.sleep(_RETRY_S)

    def brokers(self) -> list[tuple[str, int]]:
        """The addresses of the registered brokers. If there are none, registrations are watched."""
        addresses = _registered_brokers(self._client, self._config.security_protocol)
        if not addresses:
            self._children(group_nodes.BROKERS, watch=True)
        return addresses

    def assignable_topics(self, own: Subscription) -> dict[str, AssignableTopic]:
        """The inputs of the assignment: partitions and subscribed threads of this consumer's topics; for
        roundrobin, of all topics of the group."""
        consumers = {
            consumer: group_nodes.parse_registration(self._paths.consumer(consumer), data)
            for consumer in self._children(self._paths.ids, watch=True)
            if (data := self._data(self._paths.consumer(consumer))) is not None
        }
        whole_group = self._config.partition_assignment_strategy == "roundrobin"
        subscriptions = [*consumers.values(), own] if whole_group else [own]
        existing: Collection[str] = ()
        if any(each.filter is not None for each in subscriptions):
            existing = self._children(group_nodes.TOPICS, watch=True)
        topics = {topic for each in subscriptions for topic in self._topics(each, existing)}
        partitions = {topic: self._partitions(topic) for topic in sorted(topics)}
        return {
            topic: assignable_topic(found, self._threads(topic, consumers))
            for topic, found in partitions.items()
        }

    def _topics(self, subscription: Subscription, existing: Collection[str]) -> list[str]:
        excluded = self._config.exclude_internal_topics
        return subscription.topics(existing, exclude_internal_topics=excluded)

    def _threads(self, topic: str, consumers: Mapping[str, Subscription]) -> Iterable[ConsumerThreadId]:
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

    # --- owners of partitions ---

    def claim(self, owned: Mapping[TopicPartition, ConsumerThreadId]) -> bool:
        """Create the owner nodes. Returns False if some partitions still have another owner; the caller then
        releases the others."""
        claimed = [self._claim(tp, str(thread).encode()) for tp, thread in owned.items()]
        return all(claimed)

    def _claim(self, tp: TopicPartition, owner: bytes) -> bool:
        path = self._paths.owner(tp)
        try:
            self._client.create(path, owner, ephemeral=True, makepath=True)
        except NodeExistsError:
            log.info("%s: %s still has another owner", self._consumer, tp)
            return False
        return True

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Delete the owner nodes of this session."""
        for tp in partitions:
            path = self._paths.owner(tp)
            try:
                if self._owns(path):
                    self._client.delete(path)
            except NoNodeError:
                log.debug("%s has no owner", tp)

    def _owns(self, path: str) -> bool:
        """Whether this session has created the node, perhaps by a request whose response was lost."""
        found = self._client.exists(path)
        return found is not None and found.ephemeralOwner == self._client.client_id[0]

    # --- offsets ---

    def offset(self, tp: TopicPartition) -> int | None:
        """The committed offset; None without one."""
        path = self._paths.offset(tp)
        data = self._data(path)
        if data is None:
            self._offsets.pop(tp, None)
            return None
        offset = group_nodes.parse_offset(path, data)
        self._offsets[tp] = offset
        return offset

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write the offsets that have changed."""
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
    """The addresses of the brokers registered at a producer's zookeeper.connect. Raises ClientError if
    ZooKeeper is not addresses, or no broker has a listener of security.protocol."""
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
