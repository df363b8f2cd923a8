"""The life of one broker: start, membership of the cluster, re-registration, controlled shutdown, stop.

Called by `ottla broker` and by tests (with a `MemoryStore`: a single broker without ZooKeeper).

The order of start is Kafka's: metadata store, cluster id, logs (recovered in a thread), replicas,
coordinators, request processing, the listeners' sockets, the registration (which gives the broker epoch),
requests, controller election. A stop first requests a controlled shutdown, which moves leaders off while the
broker still serves.

Invariants: every stage registers on one AsyncExitStack how to stop what it starts, so that `stop` is right
after a start that failed half-way, too; after a lost session the broker registers anew, with a new epoch,
before it stands for election.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ottla.metadata import unclean_restart, znodes
from ottla.metadata.config import BrokerConfig, ConfigError, Listener
from ottla.metadata.dynamic_configs import DynamicConfigs
from ottla.metadata.registration import AlreadyRegistered, BrokerRegistration
from ottla.metadata.store import MetadataStore, StoreError, StoreUnavailable
from ottla.ports import Ports
from ottla.server.assembly.components import (
    Coordinators,
    Replication,
    open_logs,
    start_coordinators,
    start_replication,
)
from ottla.server.assembly.configuration import (
    BrokerContext,
    Configuration,
    follow_settings,
    load_configuration,
)
from ottla.server.assembly.controlled_shutdown import ControlledShutdown
from ottla.server.assembly.request_processing import RequestProcessing, start_request_processing
from ottla.server.dispatch.counters import LoopUsage
from ottla.server.handlers.cluster.initial_metadata_gate import INITIAL_METADATA_TIMEOUT_S
from ottla.server.metrics.http_server import HttpServer
from ottla.server.network.listener import Endpoint
from ottla.server.network.secure_listeners import SecurityProblem
from ottla.storage.log_dir import LogDirProblem
from ottla.storage.log_loader import UnsupportedMessageFormat
from ottla.storage.log_manager import LogManager

if TYPE_CHECKING:
    from ottla.metadata.zookeeper_access import ZooKeeperAccess

log = logging.getLogger("ottla.broker")

new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.SelectorEventLoop
"""Makes the event loop that brokers run on; it must have add_reader and add_writer."""

Phase = Literal["starting", "recovering", "ready", "stopping"]

TICK_S = 1.0
REJOIN_RETRY_S = 1.0


class StartupError(Exception):
    """The broker cannot start; the message is one line and says why."""


class Broker:
    """See the module. `start` and `stop` belong to one event loop."""

    # What the stages of the start make.
    configuration: Configuration
    logs: LogManager
    replication: Replication
    dynamic_configs: DynamicConfigs
    coordinators: Coordinators
    requests: RequestProcessing

    def __init__(
        self,
        config: BrokerConfig,
        *,
        store: MetadataStore | None = None,
        zookeeper_access: ZooKeeperAccess | None = None,
        ports: Ports | None = None,
    ) -> None:
        """By default with the ports of this machine, and the store in ZooKeeper."""
        self.config = config
        self.broker_id = config.broker_id
        self.endpoints: list[Endpoint] = []
        """The bound listeners, with their real ports."""
        self.store = store or _zookeeper(config, zookeeper_access)
        self.ports = ports or Ports()
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
        self._session_timeout_s = config.get_int("zookeeper.session.timeout.ms") / 1000

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's registration; -1 before the first."""
        return -1 if self._registration is None else self._registration.broker_epoch

    @property
    def phase(self) -> Phase:
        """For probes and metrics; a broker that lost its ZooKeeper session is starting again."""
        if self._stopping:
            return "stopping"
        return "starting" if self._session_lost else self._phase

    # --- start --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start and serve. Raises StartupError."""
        started = self.ports.clock.monotonic_s()
        try:
            await self._start()
        except StoreError as e:
            raise StartupError(f"the metadata store: {e}") from e
        except (
            LogDirProblem,
            UnsupportedMessageFormat,
            AlreadyRegistered,
            SecurityProblem,
            ConfigError,
        ) as e:
            raise StartupError(str(e)) from e
        except OSError as e:
            raise StartupError(e.strerror or str(e)) from e
        self._phase = "ready"
        listeners = ",".join(f"{e.listener}://{e.host}:{e.port}" for e in self.endpoints)
        log.info(
            "started broker.id=%d listeners=%s in %.2f s",
            self.broker_id,
            listeners,
            self.ports.clock.monotonic_s() - started,
        )

    async def _start(self) -> None:
        """Run the stages, each with the results of earlier ones."""
        await self._open_http_port()
        await self._connect_store()
        context = BrokerContext(
            self.config,
            self.store,
            self._undo,
            self.ports,
            broker_epoch=lambda: self.broker_epoch,
            on_failure=self._failed.set,
        )
        self.configuration = configuration = await load_configuration(context)
        self._phase = "recovering"
        self.logs = logs = await open_logs(context, configuration.deletion_policies)
        self._phase = "starting"
        self.replication = replication = start_replication(context, configuration, logs)
        self.dynamic_configs = await follow_settings(
            context,
            configuration,
            logs=logs,
            replicas=replication.replicas,
            controller=replication.controller,
            quotas=replication.quotas,
            cleaner=replication.cleaner,
        )
        self.coordinators = await start_coordinators(context, configuration, replication)
        self.requests = requests = await start_request_processing(
            context, configuration, logs, replication, self.dynamic_configs, self.coordinators
        )
        self._serve_metrics()
        self._bind_listeners()
        await self._expire_stale_session()
        # Others connect as soon as they see the registration: they wait in the backlog until `serve`.
        requests.server.listen()
        await self._register()
        requests.server.serve()
        await replication.controller.start(self.broker_epoch)
        self._start_ticking()
        await self._wait_for_metadata()

    async def _open_http_port(self) -> None:
        """First of all, so that probes get an answer while the broker starts."""
        config = self.config
        self.http = HttpServer(
            config.get_str("ottla.http.host"), config.get_int("ottla.http.port"), lambda: self.phase
        )
        self._undo.push_async_callback(self.http.stop)
        await self.http.start()

    async def _connect_store(self) -> None:
        self._undo.push_async_callback(self.store.close)
        await self.store.connect()

    def _serve_metrics(self) -> None:
        if self.http.port >= 0:
            # Imported here only: it takes time, and mostly the port is off.
            from ottla.server.assembly.metrics_page import broker_metrics

            self.http.metrics = broker_metrics(
                phase=lambda: self.phase,
                usage=self.usage,
                store=self.store,
                logs=self.logs,
                replication=self.replication,
                coordinators=self.coordinators,
                requests=self.requests,
                now_ms=self.ports.clock.wall_ms,
                names=self.config.get_str("ottla.metrics.names"),
            )

    def _bind_listeners(self) -> None:
        server = self.requests.server
        self.endpoints = [server.bind(Endpoint(x.name, x.host, x.port)) for x in self.config.listeners]

    async def _expire_stale_session(self) -> None:
        """End the session of this broker's previous process, which a crash left open, and let the controller
        fail over its leaders."""
        self._session_dirs = [log_dir.path for log_dir in self.logs.online_dirs()]
        if await unclean_restart.expire_session(self.ports.files, self.store, self._session_dirs):
            await self._wait_for_failover()

    async def _wait_for_failover(self) -> None:
        """Wait until other brokers lead what this one led before a crash."""
        partitions = list(self.logs.logs())
        await unclean_restart.wait_for_failover(
            self.store, self.broker_id, partitions, session_timeout_s=self._session_timeout_s
        )

    async def _register(self) -> None:
        store, undo = self.store, self._undo
        unclean_restart.save_session(self.ports.files, store, self._session_dirs)
        undo.callback(unclean_restart.clear_session, self.ports.files, self._session_dirs)
        self._registration = BrokerRegistration(
            store,
            self.broker_id,
            self._advertised(),
            rack=self.config.rack,
            clock=self.ports.clock.wall_ms,
            # The session of this broker's previous process, after a crash, ends within its time-out.
            wait_s=self._session_timeout_s * 1.5 + 2,
            after_crash=self._wait_for_failover,
        )
        undo.callback(store.on_session_expired(self._session_expired))
        self.replication.replicas.broker_epoch = await self._registration.register()

    def _start_ticking(self) -> None:
        self._undo.callback(self._stop_ticking)
        self._tick()

    async def _wait_for_metadata(self) -> None:
        metadata_gate = self.requests.metadata_gate
        reading = asyncio.create_task(metadata_gate.run(), name="read the cluster from the store")
        self._undo.callback(reading.cancel)
        try:
            await asyncio.wait_for(metadata_gate.opened.wait(), INITIAL_METADATA_TIMEOUT_S)
        except TimeoutError:
            log.warning("The controller has not sent metadata yet")

    def _advertised(self) -> list[znodes.Endpoint]:
        """The advertised listeners, with the bound port where the setting says 0."""
        bound = {endpoint.listener: endpoint for endpoint in self.endpoints}

        def port_of(listener: Listener) -> int:
            return listener.port or bound[listener.name].port

        return [
            znodes.Endpoint(x.name, x.host or self.ports.network.host_name(), port_of(x), x.protocol)
            for x in self.config.advertised_listeners
        ]

    # --- while it runs ------------------------------------------------------------------------------

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        lag_s = 0.0 if self._tick_timer is None else max(0.0, loop.time() - self._tick_timer.when())
        self._tick_timer = loop.call_later(TICK_S, self._tick)
        try:
            clock = self.ports.clock
            self.usage.sample(clock.monotonic_s(), clock.cpu_s(), lag_s)
            self.requests.server.tick()
            replication = self.replication
            self.configuration.security.tick(is_controller=replication.controller.is_active)
            replication.replicas.tick(clock.monotonic_ms())
        except Exception:
            log.exception("a maintenance task failed")

    def _stop_ticking(self) -> None:
        if self._tick_timer is not None:
            self._tick_timer.cancel()

    async def wait_failed(self) -> None:
        """Return when the broker cannot go on (the log says why)."""
        await self._failed.wait()

    def _session_expired(self) -> None:
        if self._stopping:
            return
        log.warning("The session with the metadata store has expired: registering again")
        self._session_lost = True
        if self._rejoining is None or self._rejoining.done():
            self._rejoining = asyncio.get_running_loop().create_task(self._rejoin())

    async def _rejoin(self) -> None:
        """Register under a new epoch and stand for election again; repeat if that session is lost, too."""
        assert self._registration is not None
        replication = self.replication
        while self._session_lost:
            self._session_lost = False
            try:
                replication.replicas.broker_epoch = await self._registration.register()
                unclean_restart.save_session(self.ports.files, self.store, self._session_dirs)
                await replication.controller.start(self.broker_epoch)
            except AlreadyRegistered as e:
                log.error("%s", e)
                self._failed.set()
                return
            except Exception as e:
                # Whatever the cause, retrying is better than a broker that stays unregistered.
                log.warning(
                    "Cannot register yet: %s", e, exc_info=not isinstance(e, StoreUnavailable | OSError)
                )
                self._session_lost = True
                await asyncio.sleep(REJOIN_RETRY_S)

    # --- stop ---------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Move leaders off, then stop the stages in reverse order. Safe at any time, and repeatedly."""
        if self._stopping:
            return
        self._stopping = True
        is_member = self.broker_epoch >= 0
        if self._rejoining is not None and not self._rejoining.done():
            is_member = False  # its session has expired: the controller has moved its leaders already
            self._rejoining.cancel()
            await asyncio.gather(self._rejoining, return_exceptions=True)
        if is_member and self.config.get_bool("controlled.shutdown.enable"):
            replication = self.replication
            shutdown = ControlledShutdown(
                self.config, replication.channel, replication.controller, self.store
            )
            await shutdown.run(self.broker_epoch)
        try:
            await self._undo.aclose()
        except Exception:
            log.exception("broker %d did not stop cleanly", self.broker_id)
            return
        log.info("stopped broker.id=%d", self.broker_id)


def _zookeeper(config: BrokerConfig, access: ZooKeeperAccess | None) -> MetadataStore:
    from ottla.metadata.zookeeper import (
        ZooKeeperStore,  # not imported by brokers without ZooKeeper: it takes time
    )

    return ZooKeeperStore(
        config.zookeeper_connect or "",
        config.get_int("zookeeper.session.timeout.ms"),
        config.get_optional_int("zookeeper.connection.timeout.ms"),
        access,
    )
