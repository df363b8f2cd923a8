"""One broker: makes every room, wires them, starts them in order and stops them in the reverse.

Called by `ottla broker` and by tests (with a `MemoryStore`: a single broker without ZooKeeper).

Order, as in Kafka: metadata store, cluster id, logs (recovered in a thread), replicas and coordinator, the
listeners' sockets, the registration (whose epoch the controller knows us by), requests, controller election.
A stop first asks the controller to move leaders off (controlled shutdown), while everything still serves.

Invariants: whatever was started is on one stack of undos, so that `stop` is right after a start that failed
half-way too; after a lost session the broker registers anew, with a new epoch, before it stands for election.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal

from ottla.client.connection import BrokerConnection
from ottla.controller.controller import Controller
from ottla.metadata import former_session, znodes
from ottla.metadata.acls import start_acls
from ottla.metadata.cache import MetadataCache
from ottla.metadata.client_quotas import quota_listener
from ottla.metadata.config import BrokerConfig, Listener, topic_defaults
from ottla.metadata.dynamic import DynamicConfigs, usable_topic_config
from ottla.metadata.dynamic_broker import DynamicBrokerConfig
from ottla.metadata.registration import AlreadyRegistered, BrokerRegistration
from ottla.metadata.registration import cluster_id as read_cluster_id
from ottla.metadata.store import MetadataStore, StoreError, StoreUnavailable, get_many
from ottla.metadata.succession import wait_for_successors
from ottla.metadata.zookeeper import ZooKeeperStore
from ottla.replication.manager import ReplicaManager
from ottla.server import live_settings, routes
from ottla.server.cold_reads import ColdReads
from ottla.server.connection_limits import ConnectionLimits
from ottla.server.controlled_shutdown import ControlledShutdown
from ottla.server.controller_channel import ControllerChannel
from ottla.server.dispatch import Dispatcher
from ottla.server.fetch_sessions import FetchSessionCache
from ottla.server.handlers.first_view import FIRST_VIEW_TIMEOUT_S, FirstView
from ottla.server.http_port import HttpPort
from ottla.server.listener import Endpoint, SocketServer
from ottla.server.log_cleaner import LogCleaner
from ottla.server.log_dir_watch import LogDirWatch
from ottla.server.loop_usage import LoopUsage
from ottla.server.metrics.counters import TopicCounters
from ottla.server.metrics.page import broker_metrics
from ottla.server.offsets_coordinator import make_coordinator, offsets_partitions
from ottla.server.purgatory import Purgatory
from ottla.server.routes import Rooms
from ottla.server.secure_listeners import SecurityProblem
from ottla.server.security import BrokerSecurity
from ottla.server.slow_appends import SlowAppends
from ottla.server.throttling import broker_quotas
from ottla.server.transactions import Transactions
from ottla.storage.directories import LogDirProblem
from ottla.storage.loading import OldFormat
from ottla.storage.manager import LogManager

log = logging.getLogger("ottla.broker")

new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.SelectorEventLoop
"""The event loop that brokers run on: the one line to change (it needs add_reader and add_writer)."""

Phase = Literal["starting", "recovering", "ready", "stopping"]

TICK_S = 1.0
REJOIN_RETRY_S = 1.0


class StartupError(Exception):
    """Why the broker cannot start, in one line."""


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


_STARTED_NS = time.time_ns() - time.monotonic_ns()


def steady_clock_ms() -> int:
    """As the wall clock would be, had nobody set it since this process began: for how long things take."""
    return (_STARTED_NS + time.monotonic_ns()) // 1_000_000


class Broker:
    """See the module. `start` and `stop` belong to one event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        store: MetadataStore | None = None,
        clock: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.config = config
        self.broker_id = config.broker_id
        self.endpoints: list[Endpoint] = []
        """The listeners as bound, with their real ports."""
        self.store: MetadataStore = store or ZooKeeperStore(
            config.zookeeper_connect or "",
            config.get_int("zookeeper.session.timeout.ms"),
            config.get_optional_int("zookeeper.connection.timeout.ms"),
        )
        self.cache = MetadataCache(config.inter_broker_listener)
        self._clock = clock
        self._session_dirs: list[Path] = []
        self._undo = AsyncExitStack()
        self._failed = asyncio.Event()
        self.usage = LoopUsage()
        self._phase: Phase = "starting"
        self._stopping = False
        self._session_lost = False
        self._rejoining: asyncio.Task[None] | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self._registration: BrokerRegistration | None = None
        self._channel: ControllerChannel | None = None

    @property
    def broker_epoch(self) -> int:
        """The epoch of our registration; -1 before the first."""
        return -1 if self._registration is None else self._registration.broker_epoch

    @property
    def phase(self) -> Phase:
        """How far it is with its life; a broker that lost its ZooKeeper session is starting again."""
        if self._stopping:
            return "stopping"
        return "starting" if self._session_lost else self._phase

    # --- start --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve, or raise StartupError."""
        started = time.monotonic()
        try:
            await self._start()
        except StoreError as e:
            raise StartupError(f"the metadata store: {e}") from e
        except (LogDirProblem, OldFormat, AlreadyRegistered, SecurityProblem) as e:
            raise StartupError(str(e)) from e
        except OSError as e:
            raise StartupError(e.strerror or str(e)) from e
        self._phase = "ready"
        listeners = ",".join(f"{e.listener}://{e.host}:{e.port}" for e in self.endpoints)
        log.info(
            "started broker.id=%d listeners=%s in %.2f s",
            self.broker_id,
            listeners,
            time.monotonic() - started,
        )

    async def _start(self) -> None:
        config, store, clock = self.config, self.store, self._clock
        loop = asyncio.get_running_loop()
        undo = self._undo

        self.http = http = HttpPort(
            config.get_str("ottla.http.host"), config.get_int("ottla.http.port"), lambda: self.phase
        )
        undo.push_async_callback(http.stop)
        await http.start()
        undo.push_async_callback(store.close)
        await store.connect()
        self.cache.cluster_id = await read_cluster_id(store)

        self.settings = settings = DynamicBrokerConfig(config)
        await live_settings.load(settings, store)
        self.security = security = BrokerSecurity(settings, loop, clock)
        undo.push_async_callback(security.close)
        await security.tokens.start(store)
        logs = LogManager(
            config.log_dirs,
            self.broker_id,
            self.cache.cluster_id,
            topic_defaults(config),
            recovery_threads=config.get_int("num.recovery.threads.per.data.dir"),
            producer_id_expiration_ms=config.get_int("producer.id.expiration.ms"),
        )
        self._phase = "recovering"
        await asyncio.to_thread(logs.load, clock(), await self._topic_configs())
        self._phase = "starting"
        undo.push_async_callback(self._close_logs, logs)

        sessions = FetchSessionCache(config.get_int("max.incremental.fetch.session.cache.slots"))
        self.cold_reads = cold_reads = ColdReads(loop)
        undo.callback(cold_reads.close)
        self.purgatory = purgatory = Purgatory(loop, sessions)
        undo.callback(purgatory.close)
        self.controller = controller = Controller(
            broker_id=self.broker_id, store=store, config=config, clock=clock, client_factory=self._connect
        )
        timeout_s = config.get_int("request.timeout.ms") / 1000
        self._channel = channel = ControllerChannel(
            controller, self.cache, self._connect, timeout_s=timeout_s
        )
        self.replicas = replicas = ReplicaManager(
            broker_id=self.broker_id,
            config=config,
            logs=logs,
            cache=self.cache,
            clock=clock,
            steady_clock=steady_clock_ms,
            connect=self._connect,
            alter_partition=channel.alter_partition,
            listener=purgatory,
        )
        sessions.find = replicas.find
        undo.push_async_callback(replicas.stop)
        undo.callback(channel.close)
        watch = LogDirWatch(loop, logs, replicas, store, self.broker_id, self._failed.set)
        undo.push_async_callback(watch.stop)
        replicas.start()
        self.cleaner = cleaner = LogCleaner(config, logs, replicas, clock)
        undo.push_async_callback(cleaner.stop)
        cleaner.start()

        self.quotas = quotas = broker_quotas(config)
        replicas.moves.quota, replicas.moves.look_up = quotas.between_log_dirs, cold_reads.look_up
        replicas.leader_quota, replicas.follower_quota = quotas.leader, quotas.follower

        def topic_config_changed(topic: str, overrides: dict[str, str]) -> None:
            replicas.topic_config_changed(topic, overrides)
            quotas.topic_config_changed(topic, overrides)

        self.dynamic = dynamic = DynamicConfigs(
            store,
            topic_config_changed,
            settings.heard,
            on_quota_config=security.beside(
                quota_listener(quotas.client_config_changed, quotas.address_config_changed)
            ),
            clock=clock,
        )
        live_settings.follow(
            settings,
            steady_clock=steady_clock_ms,
            logs=logs,
            replicas=replicas,
            controller=controller,
            quotas=quotas,
            cleaner=cleaner,
        )
        undo.push_async_callback(dynamic.stop)
        await dynamic.start()

        self.transactions = transactions = Transactions(
            settings,
            broker_epoch=lambda: self.broker_epoch,
            store=store,
            replicas=replicas,
            purgatory=purgatory,
            cache=self.cache,
            channel=channel,
            connect=self._connect,
            clock=clock,
            cold_reads=cold_reads,
        )
        undo.push_async_callback(transactions.stop)
        await transactions.start()

        self.coordinator = coordinator = make_coordinator(
            config,
            replicas,
            purgatory,
            self.cache,
            clock,
            cold_reads,
            partitions=await offsets_partitions(store, config),
            transactions=transactions,
        )
        undo.push_async_callback(coordinator.stop)
        coordinator.start()

        undo.push_async_callback(controller.stop)
        acls = await start_acls(config.given, store, clock)
        if acls is not None:
            undo.push_async_callback(acls.stop)
        self._first_view = FirstView(self.cache, loop)
        self.dispatcher = dispatcher = Dispatcher(loop)
        undo.push_async_callback(dispatcher.stop)
        self.server = server = SocketServer(
            loop=loop,
            on_frame=dispatcher.on_frame,
            max_request_bytes=config.get_int("socket.request.max.bytes"),
            idle_max_ms=config.get_int("connections.max.idle.ms"),
            send_buffer_bytes=config.get_int("socket.send.buffer.bytes"),
            receive_buffer_bytes=config.get_int("socket.receive.buffer.bytes"),
            backlog=config.get_int("socket.listen.backlog.size"),
            queued_max_bytes=config.get_int("queued.max.request.bytes"),
            cold_reads=cold_reads,
            limits=ConnectionLimits(config, quotas.connections, steady_clock_ms),
            secure=security.listeners.by_name,
        )
        undo.callback(server.close_all)
        undo.callback(server.stop_accepting)
        slow_appends = SlowAppends(loop)
        undo.push_async_callback(slow_appends.close)
        rooms = Rooms(
            config=config,
            clock=clock,
            steady_clock=steady_clock_ms,
            broker_epoch=lambda: self.broker_epoch,
            store=store,
            cache=self.cache,
            dynamic=dynamic,
            settings=settings,
            quotas=quotas,
            logs=logs,
            replicas=replicas,
            purgatory=purgatory,
            coordinator=coordinator,
            transactions=transactions,
            controller=controller,
            channel=channel,
            first_view=self._first_view,
            cold_reads=cold_reads,
            acls=acls,
            tokens=security.tokens,
            counters=TopicCounters(),
            slow_appends=slow_appends,
        )
        routes.register(rooms, dispatcher)
        http.metrics = broker_metrics(
            rooms, server, dispatcher, cleaner, self.usage, phase=lambda: self.phase, connect=self._connect
        )
        self.endpoints = [server.bind(Endpoint(x.name, x.host, x.port)) for x in config.listeners]

        session_timeout_s = config.get_int("zookeeper.session.timeout.ms") / 1000

        async def give_way() -> None:
            await wait_for_successors(store, self.broker_id, list(logs.logs()), timeout_s=session_timeout_s)

        self._session_dirs = [log_dir.path for log_dir in logs.online_dirs()]
        if await former_session.end_former(store, self._session_dirs):
            await give_way()
        # Others may connect as soon as they see the registration: they wait in the backlog until `serve`.
        server.listen()
        former_session.remember(store, self._session_dirs)
        undo.callback(former_session.forget, self._session_dirs)
        self._registration = BrokerRegistration(
            store,
            self.broker_id,
            self._advertised(),
            rack=config.rack,
            clock=clock,
            # Our own previous session, after a crash, ends within its time-out.
            wait_s=session_timeout_s * 1.5 + 2,
            after_crash=give_way,
        )
        undo.callback(store.on_session_expired(self._session_expired))
        replicas.broker_epoch = await self._registration.register()
        server.serve()
        await controller.start(self.broker_epoch)
        undo.callback(self._stop_ticking)
        self._tick()
        try:
            await asyncio.wait_for(self._first_view.reached.wait(), FIRST_VIEW_TIMEOUT_S)
        except TimeoutError:
            log.warning("the controller has not told us of the cluster yet")

    async def _topic_configs(self) -> dict[str, dict[str, str]]:
        """Every topic's own settings, for opening the logs with."""
        topics = await self.store.children(znodes.CONFIG_TOPICS)
        paths = [znodes.topic_config_path(topic) for topic in topics]
        configs: dict[str, dict[str, str]] = {}
        for topic, path, found in zip(topics, paths, await get_many(self.store, paths), strict=True):
            try:
                stored = {} if found is None else znodes.decode_config(path, found[0])
                configs[topic] = usable_topic_config(topic, stored)
            except znodes.InvalidNode as e:
                log.error("ignoring topic settings: %s", e)
        return configs

    def _advertised(self) -> list[znodes.Endpoint]:
        """What clients and brokers are told: the advertised address, with the real port where it says 0."""
        bound = {endpoint.listener: endpoint for endpoint in self.endpoints}

        def port_of(listener: Listener) -> int:
            return listener.port or bound[listener.name].port

        return [
            znodes.Endpoint(x.name, x.host or socket.getfqdn(), port_of(x), x.protocol)
            for x in self.config.advertised_listeners
        ]

    async def _connect(self, host: str, port: int) -> BrokerConnection:
        return await BrokerConnection.open(
            host,
            port,
            client_id=f"broker-{self.broker_id}",
            limits=self.config.inter_broker_version.limits(),
            security=self.security.between_brokers,
        )

    # --- while it runs ------------------------------------------------------------------------------

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._tick_timer = loop.call_later(TICK_S, self._tick)
        try:
            self.usage.sample(time.monotonic(), time.thread_time())
            self.server.tick()
            self.security.tick(is_controller=self.controller.is_active)
            self.replicas.tick(steady_clock_ms())
        except Exception:
            log.exception("upkeep failed")

    def _stop_ticking(self) -> None:
        if self._tick_timer is not None:
            self._tick_timer.cancel()

    async def wait_failed(self) -> None:
        """Return when the broker cannot go on (the log says why)."""
        await self._failed.wait()

    def _session_expired(self) -> None:
        if self._stopping:
            return
        log.warning("the metadata store's session has expired: registering again")
        self._session_lost = True
        if self._rejoining is None or self._rejoining.done():
            self._rejoining = asyncio.get_running_loop().create_task(self._rejoin())

    async def _rejoin(self) -> None:
        """Register under a new epoch, and stand for election again; once more if that session is lost too."""
        assert self._registration is not None
        while self._session_lost:
            self._session_lost = False
            try:
                self.replicas.broker_epoch = await self._registration.register()
                former_session.remember(self.store, self._session_dirs)
                await self.controller.start(self.broker_epoch)
            except AlreadyRegistered as e:
                log.error("%s", e)
                self._failed.set()
                return
            except Exception as e:
                # Whatever it is, a broker that stays away without a word is worse.
                log.warning(
                    "cannot register yet: %s", e, exc_info=not isinstance(e, StoreUnavailable | OSError)
                )
                self._session_lost = True
                await asyncio.sleep(REJOIN_RETRY_S)

    # --- stop ---------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Move leaders off, then stop in order; safe at any time, and once more."""
        if self._stopping:
            return
        self._stopping = True
        is_member = self.broker_epoch >= 0
        if self._rejoining is not None and not self._rejoining.done():
            is_member = False  # the others think this broker dead, and have moved its leaders already
            self._rejoining.cancel()
            await asyncio.gather(self._rejoining, return_exceptions=True)
        if is_member and self.config.get_bool("controlled.shutdown.enable"):
            assert self._channel is not None
            leaving = ControlledShutdown(self.config, self._channel, self.controller, self.store)
            await leaving.run(self.broker_epoch)
        try:
            await self._undo.aclose()
        except Exception:
            log.exception("broker %d did not stop cleanly", self.broker_id)
            return
        log.info("stopped broker.id=%d", self.broker_id)

    async def _close_logs(self, logs: LogManager) -> None:
        await asyncio.to_thread(logs.close, self._clock(), self.broker_epoch)
