"""Every API that this broker serves, with the handler that serves it: what ApiVersions advertises.

Called once by ottla.server.assembly.broker, when the rooms below are there. A new handler is one line in
`handlers`; what it needs and nobody had to hand on yet is a field of `Rooms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Protocol

from ottla.controller.controller import Controller
from ottla.coordinators.coordinator import GroupCoordinator
from ottla.metadata.acls import StoredAcls
from ottla.metadata.cache import MetadataCache
from ottla.metadata.client_quotas import StoredQuotas
from ottla.metadata.config import BrokerConfig
from ottla.metadata.consumer_offsets import ConsumerOffsets
from ottla.metadata.delegation_tokens import DelegationTokens
from ottla.metadata.dynamic_broker_config import DynamicBrokerConfig
from ottla.metadata.dynamic_configs import DynamicConfigs
from ottla.metadata.policies import Policy
from ottla.metadata.store import MetadataStore
from ottla.metadata.stored_topics import read_topics
from ottla.protocol.api import ApiKey
from ottla.quotas.broker import BrokerQuotas
from ottla.replication.manager import ReplicaManager
from ottla.replication.replica_selector import SELECTORS
from ottla.server.authorization.table import guard_all, guards
from ottla.server.authorization.topic_access import TopicAccess
from ottla.server.coordination.transactions import Transactions
from ottla.server.dispatch.counters import TopicCounters
from ottla.server.dispatch.dispatcher import Dispatcher, Route
from ottla.server.dispatch.large_requests import LargeRequests
from ottla.server.dispatch.purgatory import Purgatory
from ottla.server.dispatch.throttling import ClientThrottle, RequestTimeMeters
from ottla.server.handlers.admin.acls import AclsHandler
from ottla.server.handlers.admin.alter_configs import AlterConfigsHandler
from ottla.server.handlers.admin.client_quotas import ClientQuotasHandler
from ottla.server.handlers.admin.configs import ConfigsHandler
from ottla.server.handlers.admin.delegation_tokens import DelegationTokensHandler
from ottla.server.handlers.admin.delete_records import DeleteRecordsHandler
from ottla.server.handlers.admin.describe_producers import DescribeProducersHandler
from ottla.server.handlers.admin.features import FeaturesHandler
from ottla.server.handlers.admin.log_dirs import LogDirsHandler
from ottla.server.handlers.admin.reassignments import ReassignmentsHandler
from ottla.server.handlers.admin.scram_credentials import ScramCredentialsHandler
from ottla.server.handlers.admin.topics import TopicsHandler
from ottla.server.handlers.cluster.api_versions import ApiVersionsHandler
from ottla.server.handlers.cluster.auto_create import TopicCreator
from ottla.server.handlers.cluster.control import ClusterHandler
from ottla.server.handlers.cluster.first_view import FirstView
from ottla.server.handlers.cluster.left_out import LeftOutHandler
from ottla.server.handlers.cluster.metadata import MetadataHandler
from ottla.server.handlers.cluster.sasl import SaslHandler
from ottla.server.handlers.fetch.handler import FetchHandler
from ottla.server.handlers.fetch.large_fetch import LargeFetches
from ottla.server.handlers.fetch.list_offsets import OffsetsHandler
from ottla.server.handlers.groups.find_coordinator import FindCoordinatorHandler
from ottla.server.handlers.groups.handler import GroupsHandler
from ottla.server.handlers.groups.zookeeper_offsets import ZooKeeperOffsets
from ottla.server.handlers.produce.handler import ProduceHandler
from ottla.server.handlers.produce.transactions import TransactionGate
from ottla.server.handlers.transactions.handler import TransactionsHandler
from ottla.server.handlers.transactions.producer_ids import ProducerIdsHandler
from ottla.server.handlers.transactions.states import TransactionStatesHandler
from ottla.server.inter_broker.controller_channel import ControllerChannel
from ottla.server.logs.cold_reads import ColdReads
from ottla.server.logs.lost_logs import LostLogs
from ottla.server.logs.slow_appends import SlowAppends
from ottla.storage.log_manager import LogManager


@dataclass(frozen=True)
class Rooms:
    """What handlers are made of."""

    config: BrokerConfig
    clock: Callable[[], int]
    """Wall time, in ms, which may step."""
    monotonic_clock: Callable[[], int]
    """Ms of a clock that does not: as replication counts them."""
    """Wall time in ms."""
    broker_epoch: Callable[[], int]
    store: MetadataStore
    cache: MetadataCache
    dynamic: DynamicConfigs
    settings: DynamicBrokerConfig
    quotas: BrokerQuotas
    logs: LogManager
    replicas: ReplicaManager
    purgatory: Purgatory
    coordinator: GroupCoordinator
    transactions: Transactions
    controller: Controller
    channel: ControllerChannel
    lost_logs: LostLogs
    first_view: FirstView
    cold_reads: ColdReads
    counters: TopicCounters
    slow_appends: SlowAppends
    tokens: DelegationTokens
    acls: StoredAcls | None = None
    """None: there is no authorizer, and everybody may do everything."""
    alter_config_policy: Policy | None = None


class Handler(Protocol):
    def routes(self) -> list[Route]: ...


def handlers(rooms: Rooms, dispatcher: Dispatcher) -> Iterable[Handler]:
    config, cache, clock = rooms.config, rooms.cache, rooms.clock
    replicas, purgatory, controller = rooms.replicas, rooms.purgatory, rooms.controller
    transactions = rooms.transactions
    fetch_max_bytes = config.get_int("fetch.max.bytes")
    throttle = ClientThrottle(rooms.quotas, clock)
    creator = TopicCreator(config, rooms.channel.create_topics, throttle)
    access = None if rooms.acls is None else TopicAccess(rooms.acls.authorizer)
    dispatcher.meters = RequestTimeMeters(rooms.quotas.requests, clock)
    dispatcher.large = LargeRequests(dispatcher.loop)
    return (
        ProduceHandler(
            replicas,
            purgatory,
            cache,
            clock,
            throttle,
            TransactionGate(replicas, transactions.verifier, clock),
            rooms.slow_appends,
            access,
            rooms.counters,
        ),
        LargeFetches(
            FetchHandler(
                replicas,
                purgatory,
                cache,
                rooms.monotonic_clock,
                throttle,
                cold_reads=rooms.cold_reads,
                fetch_max_bytes=fetch_max_bytes,
                selector=SELECTORS.get(config.get_optional_str("replica.selector.class") or ""),
                access=access,
                counters=rooms.counters,
            )
        ),
        OffsetsHandler(replicas, clock, rooms.cold_reads),
        MetadataHandler(cache, creator, config, dispatcher.respond_in_slices),
        FindCoordinatorHandler(
            cache, creator, rooms.coordinator.partition_for, transactions.coordinator.partition_for
        ),
        GroupsHandler(
            rooms.coordinator,
            ZooKeeperOffsets(
                ConsumerOffsets(rooms.store),
                lambda topic, partition: partition in (cache.partitions(topic) or ()),
                metadata_max=config.get_int("offset.metadata.max.bytes"),
            ),
        ),
        ClusterHandler(
            replicas,
            cache,
            controller,
            broker_epoch=rooms.broker_epoch,
            load_topic_configs=rooms.dynamic.load_topics,
            read_topics=partial(read_topics, rooms.store),
            lost_logs=rooms.lost_logs,
            on_topics_deleted=rooms.coordinator.topics_deleted,
        ),
        TopicsHandler(controller, throttle),
        ConfigsHandler(config, cache, rooms.dynamic.topic_config),
        AlterConfigsHandler(rooms.settings, cache, rooms.dynamic, rooms.alter_config_policy),
        ReassignmentsHandler(controller),
        ScramCredentialsHandler(rooms.dynamic, lambda: controller.is_active),
        ClientQuotasHandler(StoredQuotas(rooms.dynamic)),
        ProducerIdsHandler(transactions, controller),
        TransactionsHandler(transactions.coordinator, rooms.coordinator, transactions.writer, cache),
        TransactionStatesHandler(transactions.coordinator),
        DeleteRecordsHandler(replicas, cache, monotonic),
        LogDirsHandler(rooms.logs, replicas),
        DescribeProducersHandler(replicas, cache),
        FeaturesHandler(controller),
        LeftOutHandler(),
        AclsHandler(rooms.acls),
        SaslHandler(),
        DelegationTokensHandler(rooms.tokens, {x.name: x.protocol for x in config.listeners}, clock),
        ApiVersionsHandler(dispatcher),
    )


def register(rooms: Rooms, dispatcher: Dispatcher) -> None:
    routes = [route for handler in handlers(rooms, dispatcher) for route in handler.routes()]
    if rooms.acls is not None:
        guard_of = guards(rooms.config, rooms.cache, lambda: rooms.controller.is_active)
        routes = guard_all(routes, rooms.acls.authorizer, guard_of)
    # Before the cluster is known there are no brokers to name, and every topic would be one to create.
    held = (ApiKey.METADATA, ApiKey.DESCRIBE_CLUSTER)
    dispatcher.register(rooms.first_view.hold(route) if route.api_key in held else route for route in routes)
