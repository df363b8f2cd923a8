"""The socket server, the dispatcher and every API that this broker serves, with the handler that serves it.

Called by ottla.server.assembly.broker as the last stage before the broker joins the cluster. A new handler is
one line in the function of its family. ApiVersions advertises what is registered here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ottla.metadata.acls import StoredAcls, start_acls
from ottla.metadata.client_quotas import StoredQuotas
from ottla.metadata.config import BrokerConfig
from ottla.metadata.dynamic_configs import DynamicConfigs
from ottla.metadata.stored_topics import read_topics
from ottla.metadata.zookeeper_groups import ConsumerOffsets
from ottla.protocol.api import ApiKey
from ottla.replication.replica_selector import SELECTORS
from ottla.security.authorizer import Authorizer
from ottla.server.assembly.components import Coordinators, Replication
from ottla.server.assembly.configuration import BrokerContext, Configuration
from ottla.server.authorization.auth_helper import TopicAuthorizer
from ottla.server.authorization.checks_by_api import authorize_routes, checks_by_api
from ottla.server.dispatch.counters import TopicCounters
from ottla.server.dispatch.dispatcher import Dispatcher, Route
from ottla.server.dispatch.large_requests import LargeRequests
from ottla.server.dispatch.request_log import RequestLog
from ottla.server.dispatch.throttling import ClientThrottle, RequestTimeMeters
from ottla.server.handlers.admin.acls import AclsHandler
from ottla.server.handlers.admin.alter_configs import AlterConfigsHandler
from ottla.server.handlers.admin.client_quotas import ClientQuotasHandler
from ottla.server.handlers.admin.configs import ConfigsHandler
from ottla.server.handlers.admin.controller_apis import ControllerApisHandler
from ottla.server.handlers.admin.delegation_tokens import DelegationTokensHandler
from ottla.server.handlers.admin.delete_records import DeleteRecordsHandler
from ottla.server.handlers.admin.describe_producers import DescribeProducersHandler
from ottla.server.handlers.admin.log_dirs import LogDirsHandler
from ottla.server.handlers.admin.scram_credentials import ScramCredentialsHandler
from ottla.server.handlers.cluster.api_versions import ApiVersionsHandler, SaslHandler, UnsupportedApisHandler
from ottla.server.handlers.cluster.auto_create import TopicCreator
from ottla.server.handlers.cluster.initial_metadata_gate import InitialMetadataGate, read_cluster
from ottla.server.handlers.cluster.inter_broker_requests import InterBrokerRequestsHandler
from ottla.server.handlers.cluster.metadata import MetadataHandler
from ottla.server.handlers.fetch.down_conversion import DownConverter
from ottla.server.handlers.fetch.handler import FetchHandler
from ottla.server.handlers.fetch.large_fetch import LargeFetchHandler
from ottla.server.handlers.fetch.list_offsets import ListOffsetsHandler
from ottla.server.handlers.groups.find_coordinator import FindCoordinatorHandler
from ottla.server.handlers.groups.handler import GroupsHandler
from ottla.server.handlers.groups.zookeeper_offsets import ZooKeeperOffsets
from ottla.server.handlers.produce.handler import ProduceHandler
from ottla.server.handlers.produce.verification import TransactionVerification
from ottla.server.handlers.transactions.handler import (
    ProducerIdsHandler,
    TransactionsHandler,
    TransactionStatesHandler,
)
from ottla.server.logs.deferred_validation import DeferredValidation
from ottla.server.network.connection_limits import ConnectionLimits
from ottla.server.network.listener import SocketServer
from ottla.storage.log_manager import LogManager


class Handler(Protocol):
    def routes(self) -> list[Route]: ...


@dataclass(frozen=True)
class RequestProcessing:
    """Accepts connections, and dispatches requests to the handlers."""

    server: SocketServer
    dispatcher: Dispatcher
    metadata_gate: InitialMetadataGate
    counters: TopicCounters


async def start_request_processing(
    context: BrokerContext,
    configuration: Configuration,
    logs: LogManager,
    replication: Replication,
    dynamic: DynamicConfigs,
    coordinators: Coordinators,
) -> RequestProcessing:
    """Make the server and register the handlers; it does not listen yet. Raises StoreError."""
    config, undo, cache = context.config, context.undo, replication.cache
    loop = asyncio.get_running_loop()
    acls = await start_acls(config.static, context.store, context.clock)
    authorizer: Authorizer | None = configuration.custom_authorizer
    if acls is not None:
        authorizer = acls.authorizer
        undo.push_async_callback(acls.stop)
    metadata_gate = InitialMetadataGate(cache, lambda: read_cluster(context.store))
    dispatcher = Dispatcher(loop)
    undo.push_async_callback(dispatcher.stop)
    if every := config.get_int("ottla.request.log.every"):
        dispatcher.on_timed.append(RequestLog(every))
    if endpoint := config.get_str("ottla.tracing.endpoint"):
        # Imported here only: it is off by default, and needs an extra.
        from ottla.server.metrics.tracing import RequestTraces

        every = config.get_int("ottla.tracing.every")
        traces = RequestTraces(endpoint, every, config.broker_id, context.ports.clock.wall_ms)
        undo.push_async_callback(traces.stop)
        dispatcher.on_timed.append(traces)
    # Ends after the connections: a producer sends again what has no response, and gives up what has an error.
    deferred_validation = DeferredValidation(context.ports.workers)
    undo.push_async_callback(deferred_validation.close)
    server = SocketServer(
        loop=loop,
        network=context.ports.network,
        on_frame=dispatcher.on_frame,
        max_request_bytes=config.get_int("socket.request.max.bytes"),
        idle_max_ms=config.get_int("connections.max.idle.ms"),
        send_buffer_bytes=send_buffer_bytes(config),
        receive_buffer_bytes=config.get_int("socket.receive.buffer.bytes"),
        backlog=config.get_int("socket.listen.backlog.size"),
        queued_max_bytes=config.get_int("queued.max.request.bytes"),
        page_cache_reader=replication.page_cache_reader,
        limits=ConnectionLimits(
            config, replication.quotas.connections, context.monotonic_clock, context.ports.network.resolve
        ),
        secure=configuration.security.listeners.by_name,
    )
    undo.callback(server.close_all)
    undo.callback(server.stop_accepting)
    counters = TopicCounters()
    throttle = ClientThrottle(replication.quotas, context.clock)
    topic_creator = TopicCreator(config, replication.channel.create_topics, throttle)
    undo.push_async_callback(topic_creator.stop)
    dispatcher.meters = RequestTimeMeters(
        replication.quotas.requests, context.clock, context.ports.clock.monotonic_s
    )
    dispatcher.large = LargeRequests(loop, context.ports.clock)
    handlers: tuple[Handler, ...] = (
        *_records_handlers(
            context, replication, coordinators, authorizer, throttle, counters, deferred_validation
        ),
        *_cluster_handlers(context, replication, dynamic, coordinators, topic_creator, dispatcher),
        *_group_handlers(context, replication, coordinators, topic_creator),
        *_admin_handlers(context, configuration, logs, replication, dynamic, throttle, acls),
    )
    _register(handlers, dispatcher, context, replication, authorizer, metadata_gate)
    return RequestProcessing(server, dispatcher, metadata_gate, counters)


def send_buffer_bytes(config: BrokerConfig) -> int:
    """SO_SNDBUF of connections; -1: the system's, which grows with the connection (ADR 111). Kafka's default
    of socket.send.buffer.bytes would cut a response of 1 MiB into five turns of the loop."""
    name = "socket.send.buffer.bytes"
    return config.get_int(name) if name in config.static else -1


def _records_handlers(
    context: BrokerContext,
    replication: Replication,
    coordinators: Coordinators,
    authorizer: Authorizer | None,
    throttle: ClientThrottle,
    counters: TopicCounters,
    deferred_validation: DeferredValidation,
) -> Iterable[Handler]:
    config, clock = context.config, context.clock
    replicas, purgatory, cache = replication.replicas, replication.purgatory, replication.cache
    topic_authorizer = None if authorizer is None else TopicAuthorizer(authorizer)
    converter = DownConverter(context.ports.workers)
    context.undo.push_async_callback(converter.stop)
    verification = TransactionVerification(replicas, coordinators.transactions.add_partitions_manager, clock)
    context.undo.push_async_callback(verification.stop)
    return (
        ProduceHandler(
            replicas,
            purgatory,
            cache,
            clock,
            throttle,
            verification,
            deferred_validation,
            topic_authorizer,
            counters,
        ),
        LargeFetchHandler(
            FetchHandler(
                replicas,
                purgatory,
                cache,
                context.monotonic_clock,
                throttle,
                page_cache_reader=replication.page_cache_reader,
                converter=converter,
                fetch_max_bytes=config.get_int("fetch.max.bytes"),
                selector=SELECTORS.get(config.get_optional_str("replica.selector.class") or ""),
                authorizer=topic_authorizer,
                counters=counters,
            )
        ),
        ListOffsetsHandler(replicas, clock, replication.page_cache_reader),
        DeleteRecordsHandler(replicas, cache, context.ports.clock.monotonic_s),
        DescribeProducersHandler(replicas, cache),
    )


def _cluster_handlers(
    context: BrokerContext,
    replication: Replication,
    dynamic: DynamicConfigs,
    coordinators: Coordinators,
    topic_creator: TopicCreator,
    dispatcher: Dispatcher,
) -> Iterable[Handler]:
    return (
        MetadataHandler(replication.cache, topic_creator, context.config, dispatcher.respond_in_slices),
        InterBrokerRequestsHandler(
            replication.replicas,
            replication.cache,
            replication.controller,
            broker_epoch=context.broker_epoch,
            load_topic_configs=dynamic.load_topics,
            read_topics=partial(read_topics, context.store),
            lost_logs=replication.lost_logs,
            on_topics_deleted=coordinators.groups.topics_deleted,
        ),
        UnsupportedApisHandler(),
        SaslHandler(),
        ApiVersionsHandler(dispatcher),
    )


def _group_handlers(
    context: BrokerContext, replication: Replication, coordinators: Coordinators, topic_creator: TopicCreator
) -> Iterable[Handler]:
    """Of consumer groups and of transactions."""
    cache, groups, transactions = replication.cache, coordinators.groups, coordinators.transactions
    return (
        FindCoordinatorHandler(
            cache, topic_creator, groups.partition_for, transactions.coordinator.partition_for
        ),
        GroupsHandler(
            groups,
            ZooKeeperOffsets(
                ConsumerOffsets(context.store),
                lambda topic, partition: partition in (cache.partitions(topic) or ()),
                metadata_max=context.config.get_int("offset.metadata.max.bytes"),
            ),
        ),
        TransactionsHandler(transactions.coordinator, groups, transactions.marker_writer, cache),
        TransactionStatesHandler(transactions.coordinator),
        ProducerIdsHandler(transactions, replication.controller),
    )


def _admin_handlers(
    context: BrokerContext,
    configuration: Configuration,
    logs: LogManager,
    replication: Replication,
    dynamic: DynamicConfigs,
    throttle: ClientThrottle,
    acls: StoredAcls | None,
) -> Iterable[Handler]:
    config, cache, controller = context.config, replication.cache, replication.controller
    protocols = {listener.name: listener.protocol for listener in config.listeners}
    return (
        ControllerApisHandler(controller, throttle),
        ConfigsHandler(config, cache, dynamic.topic_config),
        AlterConfigsHandler(configuration.settings, cache, dynamic, configuration.alter_config_policy),
        ScramCredentialsHandler(dynamic, lambda: controller.is_active),
        ClientQuotasHandler(StoredQuotas(dynamic)),
        LogDirsHandler(logs, replication.replicas),
        AclsHandler(acls, configuration.custom_authorizer),
        DelegationTokensHandler(configuration.security.tokens, protocols, context.clock),
    )


def _register(
    handlers: Iterable[Handler],
    dispatcher: Dispatcher,
    context: BrokerContext,
    replication: Replication,
    authorizer: Authorizer | None,
    metadata_gate: InitialMetadataGate,
) -> None:
    routes = [route for handler in handlers for route in handler.routes()]
    if authorizer is not None:
        checks = checks_by_api(context.config, replication.cache, lambda: replication.controller.is_active)
        routes = authorize_routes(routes, authorizer, checks)
    # Before the cluster is known there are no brokers to name, and every topic would be one to create.
    held = (ApiKey.METADATA, ApiKey.DESCRIBE_CLUSTER)
    dispatcher.register(metadata_gate.hold(route) if route.api_key in held else route for route in routes)
