"""One broker's life: has its parts made, joins the cluster, stays in it, leaves it and stops what was made.

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
from typing import TYPE_CHECKING, Literal

from ottla.metadata import unclean_restart, znodes
from ottla.metadata.config import BrokerConfig, ConfigError, Listener
from ottla.metadata.registration import AlreadyRegistered, BrokerRegistration
from ottla.metadata.store import MetadataStore, StoreError, StoreUnavailable
from ottla.server.assembly.controlled_shutdown import ControlledShutdown
from ottla.server.assembly.parts import Parts, monotonic_clock_ms
from ottla.server.handlers.cluster.first_view import FIRST_VIEW_TIMEOUT_S
from ottla.server.metrics.http_port import HttpPort
from ottla.server.metrics.loop_usage import LoopUsage
from ottla.server.network.listener import Endpoint
from ottla.server.network.secure_listeners import SecurityProblem
from ottla.storage.directories import LogDirProblem
from ottla.storage.log_loader import UnsupportedMessageFormat

if TYPE_CHECKING:
    from ottla.metadata.zookeeper_access import ZooKeeperAccess

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


class Broker:
    """See the module. `start` and `stop` belong to one event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        store: MetadataStore | None = None,
        zookeeper_access: ZooKeeperAccess | None = None,
        clock: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.config = config
        self.broker_id = config.broker_id
        self.endpoints: list[Endpoint] = []
        """The listeners as bound, with their real ports."""
        self.store = store or _zookeeper(config, zookeeper_access)
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
            time.monotonic() - started,
        )

    async def _start(self) -> None:
        await self._open()
        self.parts = parts = Parts(
            self.config,
            self.store,
            self._undo,
            clock=self._clock,
            broker_epoch=lambda: self.broker_epoch,
            on_failure=self._failed.set,
        )
        await parts.load_settings()
        self._phase = "recovering"
        await parts.open_logs()
        self._phase = "starting"
        parts.make_replication()
        await parts.follow_settings()
        await parts.make_coordinators()
        await parts.make_server()
        if self.http.port >= 0:
            from ottla.server.assembly.metrics_page import (
                broker_metrics,  # nobody else needs it, and it takes time
            )

            self.http.metrics = broker_metrics(parts, self.usage, phase=lambda: self.phase)
        await self._join()

    async def _open(self) -> None:
        """Be there for probes, and connect to the metadata store."""
        undo, config = self._undo, self.config
        self.http = HttpPort(
            config.get_str("ottla.http.host"), config.get_int("ottla.http.port"), lambda: self.phase
        )
        undo.push_async_callback(self.http.stop)
        await self.http.start()
        undo.push_async_callback(self.store.close)
        await self.store.connect()

    async def _join(self) -> None:
        """Become a member of the cluster, once a former self is out of it, and serve."""
        store, undo, logs, server = self.store, self._undo, self.parts.logs, self.parts.server
        self.endpoints = [server.bind(Endpoint(x.name, x.host, x.port)) for x in self.config.listeners]
        session_timeout_s = self.config.get_int("zookeeper.session.timeout.ms") / 1000

        async def wait_for_failover() -> None:
            await unclean_restart.wait_for_failover(
                store, self.broker_id, list(logs.logs()), timeout_s=session_timeout_s
            )

        self._session_dirs = [log_dir.path for log_dir in logs.online_dirs()]
        if await unclean_restart.expire_session(store, self._session_dirs):
            await wait_for_failover()
        # Others may connect as soon as they see the registration: they wait in the backlog until `serve`.
        server.listen()
        unclean_restart.save_session(store, self._session_dirs)
        undo.callback(unclean_restart.clear_session, self._session_dirs)
        self._registration = BrokerRegistration(
            store,
            self.broker_id,
            self._advertised(),
            rack=self.config.rack,
            clock=self._clock,
            # Our own previous session, after a crash, ends within its time-out.
            wait_s=session_timeout_s * 1.5 + 2,
            after_crash=wait_for_failover,
        )
        undo.callback(store.on_session_expired(self._session_expired))
        self.parts.replicas.broker_epoch = await self._registration.register()
        server.serve()
        await self.parts.controller.start(self.broker_epoch)
        undo.callback(self._stop_ticking)
        self._tick()
        standing_in = asyncio.create_task(self.parts.first_view.run(), name="stand in for the controller")
        undo.callback(standing_in.cancel)
        try:
            await asyncio.wait_for(self.parts.first_view.reached.wait(), FIRST_VIEW_TIMEOUT_S)
        except TimeoutError:
            log.warning("the controller has not told us of the cluster yet")

    def _advertised(self) -> list[znodes.Endpoint]:
        """What clients and brokers are told: the advertised address, with the real port where it says 0."""
        bound = {endpoint.listener: endpoint for endpoint in self.endpoints}

        def port_of(listener: Listener) -> int:
            return listener.port or bound[listener.name].port

        return [
            znodes.Endpoint(x.name, x.host or socket.getfqdn(), port_of(x), x.protocol)
            for x in self.config.advertised_listeners
        ]

    # --- while it runs ------------------------------------------------------------------------------

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._tick_timer = loop.call_later(TICK_S, self._tick)
        try:
            self.usage.sample(time.monotonic(), time.thread_time())
            self.parts.server.tick()
            self.parts.security.tick(is_controller=self.parts.controller.is_active)
            self.parts.replicas.tick(monotonic_clock_ms())
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
                self.parts.replicas.broker_epoch = await self._registration.register()
                unclean_restart.save_session(self.store, self._session_dirs)
                await self.parts.controller.start(self.broker_epoch)
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
            leaving = ControlledShutdown(self.config, self.parts.channel, self.parts.controller, self.store)
            await leaving.run(self.broker_epoch)
        try:
            await self._undo.aclose()
        except Exception:
            log.exception("broker %d did not stop cleanly", self.broker_id)
            return
        log.info("stopped broker.id=%d", self.broker_id)


def _zookeeper(config: BrokerConfig, access: ZooKeeperAccess | None) -> MetadataStore:
    from ottla.metadata.zookeeper import ZooKeeperStore  # a broker without ZooKeeper starts sooner for it

    return ZooKeeperStore(
        config.zookeeper_connect or "",
        config.get_int("zookeeper.session.timeout.ms"),
        config.get_optional_int("zookeeper.connection.timeout.ms"),
        access,
    )
