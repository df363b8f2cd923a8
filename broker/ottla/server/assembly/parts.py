"""What one broker is made of, in the order in which the parts need one another.

Called by ottla.server.assembly.broker, one step after the other. What a step has started it has put on the
stack of undos, so that stopping is right after a step that failed, too. The cluster sees nothing of it: there
is no registration, no election, and no client is served yet.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

from ottla.controller.controller import Controller
from ottla.metadata import policies, znodes
from ottla.metadata.acls import start_acls
from ottla.metadata.cache import MetadataCache
from ottla.metadata.client_quotas import quota_listener
from ottla.metadata.config import BrokerConfig, topic_defaults
from ottla.metadata.dynamic_broker_config import DynamicBrokerConfig
from ottla.metadata.dynamic_configs import DynamicConfigs, legal_topics, usable_topic_config
from ottla.metadata.registration import cluster_id as read_cluster_id
from ottla.metadata.store import MetadataStore, get_many
from ottla.metadata.zookeeper_groups import ZooKeeperGroup, group_names, read_groups
from ottla.replication.manager import ReplicaManager
from ottla.server.assembly import live_settings, routes
from ottla.server.assembly.routes import Rooms
from ottla.server.assembly.security import BrokerSecurity
from ottla.server.coordination.offsets_coordinator import make_coordinator, offsets_partitions
from ottla.server.coordination.transactions import Transactions
from ottla.server.dispatch.counters import TopicCounters
from ottla.server.dispatch.dispatcher import Dispatcher
from ottla.server.dispatch.fetch_sessions import FetchSessionCache
from ottla.server.dispatch.purgatory import Purgatory
from ottla.server.dispatch.throttling import broker_quotas
from ottla.server.handlers.cluster.first_view import FirstView, read_cluster
from ottla.server.inter_broker.controller_channel import ControllerChannel
from ottla.server.logs.cold_reads import ColdReads
from ottla.server.logs.log_cleaner import LogCleaner
from ottla.server.logs.log_dir_watch import LogDirWatch
from ottla.server.logs.lost_logs import LostLogs
from ottla.server.logs.slow_appends import SlowAppends
from ottla.server.network.connection_limits import ConnectionLimits
from ottla.server.network.listener import SocketServer
from ottla.storage.log_manager import LogManager
from ottla.storage.retention import BUILT_IN, DeletionPolicy
from ottla.wire.connection import BrokerConnection
from ottla.wire.inter_broker import InterBrokerClient

log = logging.getLogger("ottla.broker")

ZOOKEEPER_GROUPS_MAX = 1000
"""Groups with offsets in ZooKeeper that /metrics reports."""
_STARTED_NS = time.time_ns() - time.monotonic_ns()


def monotonic_clock_ms() -> int:
    """As the wall clock would be, had nobody set it since this process began: for how long things take."""
    return (_STARTED_NS + time.monotonic_ns()) // 1_000_000


class Parts:
    """Each attribute is there once the step that makes it was taken."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MetadataStore,
        undo: AsyncExitStack,
        *,
        clock: Callable[[], int],
        broker_epoch: Callable[[], int],
        on_failure: Callable[[], None],
    ) -> None:
        """`clock` gives wall time in ms; `on_failure` is called when the broker cannot go on."""
        self._config = config
        self._store = store
        self._undo = undo
        self._clock = clock
        self._broker_epoch = broker_epoch
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self.cache = MetadataCache(config.inter_broker_listener)

    async def load_settings(self) -> None:
        """What was set while brokers ran, policies, and who may come. Raises StoreError, SecurityProblem,
        ConfigError."""
        self.create_topic_policy = self._policy(policies.CREATE_TOPIC)
        self.alter_config_policy = self._policy(policies.ALTER_CONFIG)
        self.deletion_policies = self._deletion_policies()
        self.settings = DynamicBrokerConfig(self._config)
        await live_settings.load(self.settings, self._store)
        self.security = BrokerSecurity(self.settings, self._loop, self._clock)
        self._undo.push_async_callback(self.security.close)
        await self.security.tokens.start(self._store)

    def _policy(self, setting: str) -> policies.Policy | None:
        policy = policies.load_policy(setting, self._config.given)
        self._undo.callback(policies.close, policy)
        return policy

    def _deletion_policies(self) -> dict[str, DeletionPolicy]:
        found: dict[str, DeletionPolicy] = dict(BUILT_IN)
        names = self._config[policies.DELETION]
        assert isinstance(names, tuple)
        for name in names:
            found[name] = policies.load(policies.DELETION, name, self._config.given, "deletable")
            self._undo.callback(policies.close, found[name])
        return found

    async def open_logs(self) -> None:
        """Recover what is on disk, in a thread. Raises LogDirProblem, UnsupportedMessageFormat,
        StoreError."""
        config = self._config
        self.cache.cluster_id = cluster_id = await read_cluster_id(self._store)
        self.logs = LogManager(
            config.log_dirs,
            config.broker_id,
            cluster_id,
            topic_defaults(config),
            recovery_threads=config.get_int("num.recovery.threads.per.data.dir"),
            producer_id_expiration_ms=config.get_int("producer.id.expiration.ms"),
        )
        self.logs.maintenance.deletion_policies = self.deletion_policies
        await asyncio.to_thread(self.logs.load, self._clock(), await self._topic_configs())
        self._undo.push_async_callback(self._close_logs)

    async def _topic_configs(self) -> dict[str, dict[str, str]]:
        """Every topic's own settings, for opening the logs with."""
        topics = legal_topics(await self._store.children(znodes.CONFIG_TOPICS))
        paths = [znodes.topic_config_path(topic) for topic in topics]
        configs: dict[str, dict[str, str]] = {}
        for topic, path, found in zip(topics, paths, await get_many(self._store, paths), strict=True):
            try:
                stored = {} if found is None else znodes.decode_config(path, found[0])
                configs[topic] = usable_topic_config(topic, stored)
            except znodes.InvalidNode as e:
                log.error("ignoring topic settings: %s", e)
        return configs

    async def _close_logs(self) -> None:
        await asyncio.to_thread(self.logs.close, self._clock(), self._broker_epoch())

    def make_replication(self) -> None:
        """Replicas and what they wait for, the controller, the cleaner, the quotas."""
        config, undo, loop, clock = self._config, self._undo, self._loop, self._clock
        sessions = FetchSessionCache(
            config.get_int("max.incremental.fetch.session.cache.slots"),
            partitions_max=config.get_int("ottla.fetch.session.max.partitions"),
        )
        self.cold_reads = ColdReads(loop)
        undo.callback(self.cold_reads.close)
        self.purgatory = Purgatory(loop, sessions)
        undo.callback(self.purgatory.close)
        self.inter_broker = InterBrokerClient(
            self.cache.broker, self.connect, request_timeout_s=config.get_int("request.timeout.ms") / 1000
        )
        undo.callback(self.inter_broker.close)
        self.controller = Controller(
            broker_id=config.broker_id,
            store=self._store,
            config=config,
            clock=clock,
            inter_broker=self.inter_broker,
            create_topic_policy=self.create_topic_policy,
        )
        self.channel = ControllerChannel(self.controller, self.cache, self.inter_broker)
        self.replicas = replicas = ReplicaManager(
            broker_id=config.broker_id,
            config=config,
            logs=self.logs,
            cache=self.cache,
            clock=clock,
            monotonic_clock=monotonic_clock_ms,
            inter_broker=self.inter_broker,
            alter_partition=self.channel.alter_partition,
            listener=self.purgatory,
        )
        sessions.find = replicas.find
        undo.push_async_callback(replicas.stop)
        undo.callback(self.channel.close)
        watch = LogDirWatch(loop, self.logs, replicas, self._store, config.broker_id, self._on_failure)
        undo.push_async_callback(watch.stop)
        self.lost_logs = LostLogs(replicas, self.cache, self.inter_broker, watch.notify_controller)
        undo.push_async_callback(self.lost_logs.stop)
        replicas.start()
        self.cleaner = LogCleaner(config, self.logs, replicas, clock)
        undo.push_async_callback(self.cleaner.stop)
        self.cleaner.start()
        self.quotas = quotas = broker_quotas(config)
        replicas.moves.quota, replicas.moves.look_up = quotas.between_log_dirs, self.cold_reads.look_up
        replicas.leader_quota, replicas.follower_quota = quotas.leader, quotas.follower

    async def zookeeper_groups(self) -> list[ZooKeeperGroup]:
        """Groups that keep their offsets in ZooKeeper; one broker reports them, the controller. Raises
        StoreError."""
        if not self.controller.is_active:
            return []
        names = await group_names(self._store)
        return await read_groups(self._store, names[:ZOOKEEPER_GROUPS_MAX])

    async def connect(self, host: str, port: int) -> BrokerConnection:
        """To another broker."""
        return await BrokerConnection.open(
            host,
            port,
            client_id=f"broker-{self._config.broker_id}",
            limits=self._config.inter_broker_version.limits(),
            security=self.security.between_brokers,
        )

    async def follow_settings(self) -> None:
        """Hear of settings and quotas that change, and have them obeyed. Raises StoreError."""
        replicas, quotas = self.replicas, self.quotas

        def topic_config_changed(topic: str, overrides: dict[str, str]) -> None:
            replicas.topic_config_changed(topic, overrides)
            quotas.topic_config_changed(topic, overrides)

        self.dynamic = DynamicConfigs(
            self._store,
            topic_config_changed,
            self.settings.on_entity_changed,
            on_quota_config=self.security.beside(
                quota_listener(quotas.client_config_changed, quotas.address_config_changed)
            ),
            clock=self._clock,
        )
        live_settings.follow(
            self.settings,
            monotonic_clock=monotonic_clock_ms,
            logs=self.logs,
            replicas=replicas,
            controller=self.controller,
            quotas=quotas,
            cleaner=self.cleaner,
        )
        self._undo.push_async_callback(self.dynamic.stop)
        await self.dynamic.start()

    async def make_coordinators(self) -> None:
        """Of groups and of transactions. Raises StoreError."""
        undo = self._undo
        self.transactions = Transactions(
            self.settings,
            broker_epoch=self._broker_epoch,
            store=self._store,
            replicas=self.replicas,
            purgatory=self.purgatory,
            cache=self.cache,
            channel=self.channel,
            inter_broker=self.inter_broker,
            clock=self._clock,
            cold_reads=self.cold_reads,
        )
        undo.push_async_callback(self.transactions.stop)
        await self.transactions.start()
        self.coordinator = make_coordinator(
            self._config,
            self.replicas,
            self.purgatory,
            self.cache,
            self._clock,
            self.cold_reads,
            partitions=await offsets_partitions(self._store, self._config),
            transactions=self.transactions,
        )
        undo.push_async_callback(self.coordinator.stop)
        self.coordinator.start()
        undo.push_async_callback(self.controller.stop)

    async def make_server(self) -> None:
        """What takes requests, and the handlers. Raises StoreError."""
        config, undo, loop = self._config, self._undo, self._loop
        acls = await start_acls(config.given, self._store, self._clock)
        if acls is not None:
            undo.push_async_callback(acls.stop)
        self.first_view = FirstView(self.cache, lambda: read_cluster(self._store))
        self.dispatcher = Dispatcher(loop)
        undo.push_async_callback(self.dispatcher.stop)
        self.server = SocketServer(
            loop=loop,
            on_frame=self.dispatcher.on_frame,
            max_request_bytes=config.get_int("socket.request.max.bytes"),
            idle_max_ms=config.get_int("connections.max.idle.ms"),
            send_buffer_bytes=config.get_int("socket.send.buffer.bytes"),
            receive_buffer_bytes=config.get_int("socket.receive.buffer.bytes"),
            backlog=config.get_int("socket.listen.backlog.size"),
            queued_max_bytes=config.get_int("queued.max.request.bytes"),
            cold_reads=self.cold_reads,
            limits=ConnectionLimits(config, self.quotas.connections, monotonic_clock_ms),
            secure=self.security.listeners.by_name,
        )
        undo.callback(self.server.close_all)
        undo.callback(self.server.stop_accepting)
        slow_appends = SlowAppends(loop)
        undo.push_async_callback(slow_appends.close)
        self.rooms = Rooms(
            config=config,
            clock=self._clock,
            monotonic_clock=monotonic_clock_ms,
            broker_epoch=self._broker_epoch,
            store=self._store,
            cache=self.cache,
            dynamic=self.dynamic,
            settings=self.settings,
            quotas=self.quotas,
            logs=self.logs,
            replicas=self.replicas,
            purgatory=self.purgatory,
            coordinator=self.coordinator,
            transactions=self.transactions,
            controller=self.controller,
            channel=self.channel,
            lost_logs=self.lost_logs,
            first_view=self.first_view,
            cold_reads=self.cold_reads,
            acls=acls,
            alter_config_policy=self.alter_config_policy,
            tokens=self.security.tokens,
            counters=TopicCounters(),
            slow_appends=slow_appends,
        )
        routes.register(self.rooms, self.dispatcher)
