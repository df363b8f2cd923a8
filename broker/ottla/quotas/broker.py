"""The quotas of one broker, kept as the settings say.

Made by the server's Broker, which passes on the settings of users, clients, topics and brokers as they are
read; the handlers, fetchers and listeners ask the single quotas. What a setting's text may be was checked
when it was stored: what cannot be read here is somebody else's writing, and raises ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.quotas.clients import ClientQuotas, QuotaEntity, RequestQuotas
from ottla.quotas.connections import ConnectionRates
from ottla.quotas.mutations import MutationQuotas
from ottla.quotas.rates import Windows
from ottla.quotas.replication import ReplicationQuota, throttled_partitions

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"


class BrokerQuotas:
    """What clients may produce and fetch here, and what replicas may move in and out."""

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
        self.requests = RequestQuotas(client_windows)
        self.mutations = MutationQuotas(controller_windows)
        self.connections = ConnectionRates(client_windows)
        self.leader = ReplicationQuota(replication_windows)
        self.follower = ReplicationQuota(replication_windows)
        self.between_log_dirs = ReplicationQuota(log_dir_windows)
        """Of all that this broker moves from one of its directories to another (KIP-113)."""
        self._broker_id = broker_id

    def client_config_changed(self, entity: QuotaEntity, config: Mapping[str, str]) -> None:
        """The settings of a user, a client-id or both are now `config` (empty: none)."""
        for quotas, name in ((self.produce, PRODUCER_BYTE_RATE), (self.fetch, CONSUMER_BYTE_RATE)):
            text = config.get(name)
            quotas.update(entity, None if text is None else float(int(text)))
        for others, name in (
            (self.requests, REQUEST_PERCENTAGE),
            (self.mutations, CONTROLLER_MUTATION_RATE),
        ):
            text = config.get(name)
            others.update(entity, None if text is None else float(text))

    def address_config_changed(self, address: str | None, config: Mapping[str, str]) -> None:
        """The settings of an address, or of all others (None), are now `config`."""
        text = config.get(CONNECTION_CREATION_RATE)
        self.connections.limit_address(address, None if text is None else int(text))

    def topic_config_changed(self, topic: str, config: Mapping[str, str]) -> None:
        """Which of the topic's replicas are throttled."""
        for quota, name in ((self.leader, LEADER_REPLICAS), (self.follower, FOLLOWER_REPLICAS)):
            quota.throttle(topic, throttled_partitions(config.get(name, ""), self._broker_id))

    def replication_rates_changed(self, leader: int, follower: int, between_log_dirs: int) -> None:
        """The dynamic rates, in bytes per second, that hold for throttled replicas."""
        self.between_log_dirs.limit = float(between_log_dirs)
        self.leader.limit = float(leader)
        self.follower.limit = float(follower)
