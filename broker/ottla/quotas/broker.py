"""All quotas of one broker, updated from the settings.

Made by the broker's assembly, which passes on changed settings of users, clients, topics and brokers;
handlers, fetchers and listeners use the single quotas. Settings were validated when they were stored; an
invalid one, which another program wrote, raises ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.quotas.clients import ClientQuotas, QuotaEntity, RequestQuotas
from ottla.quotas.connections import ConnectionQuotas
from ottla.quotas.mutations import ControllerMutationQuotas
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
        self.requests = RequestQuotas(client_windows)
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
