"""The components of one broker, made in stages; each stage takes what it needs and returns what it makes.

Called by ottla.server.assembly.broker, in the order of this module. A stage registers on the context's stack
how to stop each thing that it starts, so that a stop is right after a stage that failed, too. Nothing of this
is visible to the cluster: there is no registration and no election yet, and no client is served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from ottla.controller.controller import Controller
from ottla.coordinators.coordinator import GroupCoordinator
from ottla.metadata import znodes
from ottla.metadata.cache import MetadataCache
from ottla.metadata.config import BrokerConfig, topic_defaults
from ottla.metadata.dynamic_configs import legal_topics, usable_topic_config
from ottla.metadata.registration import cluster_id as read_cluster_id
from ottla.metadata.store import MetadataStore
from ottla.quotas.broker import BrokerQuotas
from ottla.replication.manager import ReplicaManager
from ottla.security.clients import ClientSecurity
from ottla.server.assembly.configuration import BrokerContext, Configuration
from ottla.server.coordination.controller_channel import ControllerChannel
from ottla.server.coordination.group_coordinator import make_group_coordinator, offsets_partitions
from ottla.server.coordination.transactions import TransactionService
from ottla.server.dispatch.fetch_sessions import FetchSessionCache
from ottla.server.dispatch.purgatory import Purgatory
from ottla.server.dispatch.throttling import broker_quotas
from ottla.server.logs.log_cleaner import LogCleaner
from ottla.server.logs.log_dir_failure_handler import LogDirFailureHandler
from ottla.server.logs.lost_logs import LostLogDetector
from ottla.server.logs.page_cache_reader import PageCacheReader
from ottla.storage.log_manager import LogManager
from ottla.storage.retention import DeletionPolicy
from ottla.wire.connection import BrokerConnection
from ottla.wire.inter_broker import Connect, InterBrokerClient

log = logging.getLogger("ottla.broker")


@dataclass(frozen=True)
class Replication:
    """Replicas and what serves them: the controller, inter-broker connections, the cleaner, quotas."""

    cache: MetadataCache
    controller: Controller
    channel: ControllerChannel
    connect: Connect
    inter_broker: InterBrokerClient
    replicas: ReplicaManager
    purgatory: Purgatory
    page_cache_reader: PageCacheReader
    lost_logs: LostLogDetector
    cleaner: LogCleaner
    quotas: BrokerQuotas


@dataclass(frozen=True)
class Coordinators:
    transactions: TransactionService
    groups: GroupCoordinator


async def open_logs(context: BrokerContext, deletion_policies: dict[str, DeletionPolicy]) -> LogManager:
    """Recover the logs on disk, in a thread. Raises LogDirProblem, UnsupportedMessageFormat, StoreError."""
    config = context.config
    logs = LogManager(
        config.log_dirs,
        config.broker_id,
        await read_cluster_id(context.store, context.ports.random),
        topic_defaults(config),
        recovery_threads=config.get_int("num.recovery.threads.per.data.dir"),
        producer_id_expiration_ms=config.get_int("producer.id.expiration.ms"),
        files=context.ports.files,
        source=context.ports.random,
        run_parallel=context.ports.run_parallel,
    )
    for log_dir in logs.online_dirs():
        log_dir.flushes.monotonic_s = context.ports.clock.monotonic_s
    logs.maintenance.deletion_policies = deletion_policies
    await asyncio.to_thread(logs.load, context.clock(), await _read_topic_configs(context.store))

    async def close_logs() -> None:
        await asyncio.to_thread(logs.close, context.clock(), context.broker_epoch())

    context.undo.push_async_callback(close_logs)
    return logs


async def _read_topic_configs(store: MetadataStore) -> Mapping[str, dict[str, str]]:
    """The settings of every topic that has its own."""
    topics = legal_topics(await store.children(znodes.CONFIG_TOPICS))
    paths = [znodes.topic_config_path(topic) for topic in topics]
    configs: dict[str, dict[str, str]] = {}
    for topic, path, node in zip(topics, paths, await store.get_many(paths), strict=True):
        try:
            stored = {} if node is None else znodes.decode_config(path, node[0])
            configs[topic] = usable_topic_config(topic, stored)
        except znodes.InvalidNode as e:
            log.error("ignoring topic settings: %s", e)
    return configs


def start_replication(context: BrokerContext, configuration: Configuration, logs: LogManager) -> Replication:
    config, undo, clock = context.config, context.undo, context.clock
    loop = asyncio.get_running_loop()
    cache = MetadataCache(config.inter_broker_listener)
    cache.cluster_id = logs.cluster_id
    connect = _inter_broker_connect(config, configuration.security.inter_broker)
    sessions = FetchSessionCache(
        context.ports.random,
        config.get_int("max.incremental.fetch.session.cache.slots"),
        partitions_max=config.get_int("ottla.fetch.session.max.partitions"),
    )
    page_cache_reader = PageCacheReader(loop, context.ports.workers)
    undo.push_async_callback(page_cache_reader.stop)
    purgatory = Purgatory(loop, sessions)
    undo.callback(purgatory.close)
    inter_broker = InterBrokerClient(
        cache.broker, connect, request_timeout_s=config.get_int("request.timeout.ms") / 1000
    )
    undo.callback(inter_broker.close)
    controller = Controller(
        broker_id=config.broker_id,
        store=context.store,
        config=config,
        clock=clock,
        random=context.ports.random,
        inter_broker=inter_broker,
        create_topic_policy=configuration.create_topic_policy,
    )
    channel = ControllerChannel(controller, cache, inter_broker)
    replicas = ReplicaManager(
        broker_id=config.broker_id,
        config=config,
        logs=logs,
        cache=cache,
        clock=clock,
        monotonic_clock=context.monotonic_clock,
        inter_broker=inter_broker,
        alter_partition=channel.alter_partition,
        listener=purgatory,
    )
    sessions.find = replicas.find
    undo.push_async_callback(replicas.stop)
    undo.callback(channel.close)
    log_dir_failures = LogDirFailureHandler(
        loop, logs, replicas, context.store, config.broker_id, context.on_failure
    )
    undo.push_async_callback(log_dir_failures.stop)
    lost_logs = LostLogDetector(replicas, cache, inter_broker, log_dir_failures.notify_controller)
    undo.push_async_callback(lost_logs.stop)
    replicas.start()
    cleaner = LogCleaner(config, logs, replicas, context.ports)
    undo.push_async_callback(cleaner.stop)
    cleaner.start()
    quotas = broker_quotas(config)
    replicas.moves.quota, replicas.moves.look_up = quotas.log_dirs, page_cache_reader.look_up
    replicas.leader_quota, replicas.follower_quota = quotas.leader, quotas.follower
    return Replication(
        cache=cache,
        controller=controller,
        channel=channel,
        connect=connect,
        inter_broker=inter_broker,
        replicas=replicas,
        purgatory=purgatory,
        page_cache_reader=page_cache_reader,
        lost_logs=lost_logs,
        cleaner=cleaner,
        quotas=quotas,
    )


def _inter_broker_connect(config: BrokerConfig, security: ClientSecurity | None) -> Connect:
    async def connect(host: str, port: int) -> BrokerConnection:
        return await BrokerConnection.open(
            host,
            port,
            client_id=f"broker-{config.broker_id}",
            limits=config.inter_broker_version.limits(),
            security=security,
        )

    return connect


async def start_coordinators(
    context: BrokerContext, configuration: Configuration, replication: Replication
) -> Coordinators:
    """The coordinators of groups and of transactions. Raises StoreError."""
    undo, store = context.undo, context.store
    transactions = TransactionService(
        configuration.settings,
        broker_epoch=context.broker_epoch,
        store=store,
        replicas=replication.replicas,
        purgatory=replication.purgatory,
        cache=replication.cache,
        channel=replication.channel,
        inter_broker=replication.inter_broker,
        clock=context.clock,
        page_cache_reader=replication.page_cache_reader,
    )
    undo.push_async_callback(transactions.stop)
    await transactions.start()
    groups = make_group_coordinator(
        context.config,
        replication.replicas,
        replication.purgatory,
        replication.cache,
        context.ports,
        replication.page_cache_reader,
        partitions=await offsets_partitions(store, context.config),
        transactions=transactions,
    )
    undo.push_async_callback(groups.stop)
    groups.start()
    undo.push_async_callback(replication.controller.stop)
    return Coordinators(transactions, groups)
