"""All quotas of one broker, updated from the settings; connection rates and replication throttles.

Made by the broker's assembly, which passes on changed settings of users, clients, topics and brokers;
handlers, fetchers and listeners use the single quotas. Settings were validated when they were stored; an
invalid one, which another program wrote, raises ValueError.

Connection creation rates are those of a listener, of the broker, and of an IP address (KIP-402, KIP-612). The
listener checks them for each accepted connection. The first two delay the acceptor. A connection from an
address above its rate is closed after a delay, and not counted. Delays are at most one window.

Replication is throttled on the leader's and on the follower's side (KIP-73): the fetch handler checks the
leader's before it reads for a follower, the fetcher the follower's before it fetches. Both measure the
traffic of all throttled replicas, and throttle only those that are not in sync: throttling would make an
in-sync replica leave the ISR.

Both behave as `ConnectionQuotas` and `ReplicationQuotaManager` of Kafka 3.9.1; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.quotas.clients import ClientQuotas, bounded_throttle_ms
from ottla.quotas.levels import DEFAULT, QuotaEntity
from ottla.quotas.mutations import ControllerMutationQuotas
from ottla.quotas.rates import Rate, Windows

ALL_PARTITIONS: Final[frozenset[int]] = frozenset((-1,))
"""The value of a topic setting of `*`."""


class ReplicationQuota:
    """The limit of one side in bytes per second, its throttled replicas, and their measured rate."""

    def __init__(self, windows: Windows) -> None:
        self.limit: float | None = None
        self.active = False
        """Whether any replica is throttled; if not, callers neither check nor record."""
        self._windows = windows
        self._throttled: dict[str, frozenset[int]] = {}
        self._rate = Rate(windows, is_simple=True)

    def throttle(self, topic: str, partitions: frozenset[int]) -> None:
        """Set the topic's throttled partitions (none, some, or ALL_PARTITIONS)."""
        if partitions:
            self._throttled[topic] = partitions
        else:
            self._throttled.pop(topic, None)
        self.active = bool(self._throttled)

    def is_throttled(self, topic: str, partition: int) -> bool:
        partitions = self._throttled.get(topic)
        return partitions is not None and (partitions is ALL_PARTITIONS or partition in partitions)

    def is_exceeded(self, now_ms: int) -> bool:
        """Whether the rate of the throttled replicas is above the limit."""
        return self.limit is not None and self._rate.measure(now_ms)[0] > self.limit

    def record(self, size: int, now_ms: int) -> None:
        """Record bytes of throttled replicas, in sync or not."""
        self._rate.record(size, now_ms)


def throttled_partitions(setting: str, broker_id: int) -> frozenset[int]:
    """The partitions of a topic that `leader|follower.replication.throttled.replicas` throttles on a broker.

    The setting is `*`, or pairs `partition:broker`. Raises ValueError for anything else.
    """
    setting = setting.strip()
    if setting == "*":
        return ALL_PARTITIONS
    partitions = set()
    for pair in filter(None, (item.strip() for item in setting.split(","))):
        partition, _, broker = pair.partition(":")
        if int(broker) == broker_id:
            partitions.add(int(partition))
    return frozenset(partitions)


class ConnectionQuotas:
    """Limits are in connections per second; callers pass those of listeners and of the broker."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._broker = Rate(windows)
        self._listeners: dict[str, Rate] = {}
        # An address takes the place of a client-id.
        self._addresses = ClientQuotas(windows, is_bounded=True)

    def set_address_limit(self, address: str | None, limit: int | None) -> None:
        """Set the limit of an address, or the default (address None); limit None removes it."""
        self._addresses.update(QuotaEntity(client_id=DEFAULT if address is None else address), limit)

    def accepted(self, listener: str, listener_limit: int, broker_limit: int | None, now_ms: int) -> int:
        """Record a connection; returns the delay in ms of it and of those behind it. The inter-broker
        listener is exempt from the broker's limit (`broker_limit` None)."""
        rate = self._listeners.get(listener)
        if rate is None:
            rate = self._listeners[listener] = Rate(self._windows)
        wait_ms = self._record(rate, listener_limit, now_ms)
        if broker_limit is not None:
            wait_ms = max(wait_ms, self._record(self._broker, broker_limit, now_ms))
        return wait_ms

    def record_address(self, address: str, listener: str, now_ms: int, *, of_broker: bool) -> int:
        """Record a connection of an address. Positive: the rate is exceeded, the connection is not counted
        and must be closed after so many ms. `of_broker`: `accepted` counted it for the broker."""
        if self._addresses.limit_of("", address) is None:
            return 0
        wait_ms = self._addresses.record("", address, 1, now_ms)
        if wait_ms > 0:
            self._addresses.unrecord("", address, 1, now_ms)
            self._listeners[listener].record(-1, now_ms)
            if of_broker:
                self._broker.record(-1, now_ms)
        return wait_ms

    def _record(self, rate: Rate, limit: int, now_ms: int) -> int:
        rate.record(1, now_ms)
        observed, window_ms = rate.measure(now_ms)
        if observed <= limit:
            return 0
        return bounded_throttle_ms(observed, limit, window_ms, self._windows.window_ms)


PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"


class BrokerQuotas:
    """See the module."""

    def __init__(
        self,
        broker_id: int,
        client_windows: Windows,
        replication_windows: Windows,
        log_dir_windows: Windows,
        controller_windows: Windows,
    ) -> None:
        self.produce = ClientQuotas(client_windows)
        self.fetch = ClientQuotas(client_windows)
        self.requests = ClientQuotas(client_windows, is_bounded=True)
        """The share of the event loop's time in percent."""
        self.mutations = ControllerMutationQuotas(controller_windows)
        self.connections = ConnectionQuotas(client_windows)
        self.leader = ReplicationQuota(replication_windows)
        self.follower = ReplicationQuota(replication_windows)
        self.log_dirs = ReplicationQuota(log_dir_windows)
        """For moves of replicas between log directories (KIP-113)."""
        self._broker_id = broker_id

    def client_config_changed(self, entity: QuotaEntity, config: Mapping[str, str]) -> None:
        """Apply the settings of a user, a client-id or both; empty: no settings."""
        for quotas, name in ((self.produce, PRODUCER_BYTE_RATE), (self.fetch, CONSUMER_BYTE_RATE)):
            text = config.get(name)
            quotas.update(entity, None if text is None else float(int(text)))
        for quota, name in (
            (self.requests, REQUEST_PERCENTAGE),
            (self.mutations, CONTROLLER_MUTATION_RATE),
        ):
            text = config.get(name)
            quota.update(entity, None if text is None else float(text))

    def address_config_changed(self, address: str | None, config: Mapping[str, str]) -> None:
        """Apply the settings of an IP address, or of the default (None)."""
        text = config.get(CONNECTION_CREATION_RATE)
        self.connections.set_address_limit(address, None if text is None else int(text))

    def topic_config_changed(self, topic: str, config: Mapping[str, str]) -> None:
        """Apply the topic's throttled replicas."""
        for quota, name in ((self.leader, LEADER_REPLICAS), (self.follower, FOLLOWER_REPLICAS)):
            quota.throttle(topic, throttled_partitions(config.get(name, ""), self._broker_id))

    def replication_rates_changed(self, leader: int, follower: int, log_dirs: int) -> None:
        """Apply the rates of throttled replicas, in bytes per second."""
        self.log_dirs.limit = float(log_dirs)
        self.leader.limit = float(leader)
        self.follower.limit = float(follower)
