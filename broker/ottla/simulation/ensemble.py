"""A simulated ZooKeeper: sessions with time-outs behind a network that delays, cuts and loses.

`Ensemble` is the service, on the simulated machine `HOST`; `EnsembleStore` is a process's client and
implements `ottla.metadata.store.MetadataStore` with the behaviour of `ottla.metadata.zookeeper`: reads are
repeated after a lost connection; a write whose connection breaks raises StoreUnavailable, and may have
happened; watches arrive in order with the responses, after their change, and all of them after a
reconnection; a session ends when the service has not heard of its client for the time-out, and the client
learns it when it reconnects.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, Final, TypeVar

from ottla.metadata.memory import MemoryTree, TreeStore
from ottla.metadata.store import (
    Cancel,
    Delete,
    SessionEvents,
    StoreError,
    StoreUnavailable,
    WatchCallback,
)
from ottla.simulation.loop import SimulatedLoop
from ottla.simulation.network import Direction, SimulatedNetwork

T = TypeVar("T")

HOST: Final = "zookeeper"
RECONNECT_S: Final = 0.1


class Session:
    """A session in the service."""

    def __init__(self, session_id: int, timeout_s: float) -> None:
        self.id = session_id
        self.timeout_s = timeout_s
        self.heard_at = 0.0
        self.alive = True
        self.connection: Connection | None = None


class Connection:
    """A client's connection to the service: two ordered directions."""

    def __init__(self, network: SimulatedNetwork, host: str, on_broken: Callable[[Connection], None]) -> None:
        self.host = host
        self.open = True
        self.on_broken = on_broken
        """Tells the client that the service has closed the connection."""
        self.request = Direction(network, network.link(host, HOST), _Receiver(HOST))
        self.response = Direction(network, network.link(HOST, host), _Receiver(host))


class _Receiver:
    """A direction's end, whose items are functions."""

    def __init__(self, host: str) -> None:
        self.host = host

    def receive(self, item: Any) -> None:
        raise AssertionError("items are functions")


class Ensemble:
    """The service."""

    def __init__(
        self,
        loop: SimulatedLoop,
        network: SimulatedNetwork,
        source: random.Random,
        wall_ms: Callable[[], int],
    ) -> None:
        self.loop = loop
        self.network = network
        self.random = source
        self.tree = MemoryTree(wall_ms)
        self.sessions: dict[int, Session] = {}
        self.available = True
        """False: the ensemble has no quorum. Sessions do not end meanwhile."""
        self.break_before_rate = 0.0
        """The share of writes whose connection breaks before they happen."""
        self.break_after_rate = 0.0
        """The share of writes whose connection breaks after they happened."""
        self.on_expired: Callable[[Session], None] = lambda session: None
        self._context = copy_context()

    # --- sessions ---

    def open_session(self, timeout_s: float) -> Session:
        session = Session(self.tree.new_session(), timeout_s)
        session.heard_at = self.loop.now
        self.sessions[session.id] = session
        self._check_later(session)
        return session

    def _check_later(self, session: Session) -> None:
        self.loop.call_at(session.heard_at + session.timeout_s, self._check, session, context=self._context)

    def _check(self, session: Session) -> None:
        if not session.alive:
            return
        if not self.available:
            session.heard_at = self.loop.now
        if session.heard_at + session.timeout_s <= self.loop.now:
            self.expire(session)
        else:
            self._check_later(session)

    def expire(self, session: Session) -> None:
        """End a session: its ephemeral nodes go."""
        if session.alive:
            session.alive = False
            del self.sessions[session.id]
            self.tree.end_session(session.id)
            if session.connection is not None:
                self.break_connection(session.connection)
            self.on_expired(session)

    def close_session(self, session: Session) -> None:
        """The client has ended its session."""
        if self.available:
            self.expire(session)

    def set_available(self, available: bool) -> None:
        """An outage, or its end: the new leader gives every session its whole time-out."""
        self.available = available
        for session in self.sessions.values():
            session.heard_at = self.loop.now
            if not available and session.connection is not None:
                self.break_connection(session.connection)

    def delete(self, path: str) -> None:
        """Delete a node, as an operator does with a shell."""
        if self.available and self.tree.find(path) is not None:
            self.tree.apply([Delete(path)], 0)

    def break_connection(self, connection: Connection) -> None:
        """Close a connection; the client learns it later."""
        if connection.open:
            connection.open = False
            connection.response.send(partial(connection.on_broken, connection))


class EnsembleStore(TreeStore):
    """A process's client of the ensemble. Belongs to the process that calls `connect`."""

    def __init__(self, ensemble: Ensemble, host: str, session_timeout_ms: int) -> None:
        self._ensemble = ensemble
        self._host = host
        self._timeout_s = session_timeout_ms / 1000
        self._operation_timeout_s = 2 * self._timeout_s
        self._loop = ensemble.loop
        self._session: Session | None = None
        self._connection: Connection | None = None
        self._connected = asyncio.Event()
        self._closed = False
        self._heard_at = 0.0
        self._pending: dict[asyncio.Future[Any], str] = {}
        self._expiry_callbacks: dict[object, Callable[[], None]] = {}
        self.events = SessionEvents()
        self._watches: dict[object, tuple[str, str, WatchCallback]] = {}
        self._armed: dict[object, Cancel] = {}
        self._pinger: asyncio.Task[None] | None = None

    # --- session ---

    @property
    def session_id(self) -> int:
        return 0 if self._session is None else self._session.id

    @property
    def session_token(self) -> str:
        return "" if self._session is None else f"{self._session.id}:secret"

    async def connect(self) -> None:
        self._pinger = self._loop.create_task(self._stay_connected(), name="zookeeper client")
        try:
            await asyncio.wait_for(self._connected.wait(), self._timeout_s)
        except TimeoutError:
            await self.close()
            raise StoreUnavailable("/", "no response from ZooKeeper") from None

    async def close(self) -> None:
        self._closed = True
        connection, session = self._connection, self._session
        if connection is not None and session is not None:
            connection.request.send(lambda: self._ensemble.close_session(session))
        self._session = None
        self._lose_connection()
        if self._pinger is not None:
            self._pinger.cancel()
        for cancel in self._armed.values():
            cancel()
        self._armed.clear()

    async def end_session(self, token: str) -> None:
        text, _, password = token.partition(":")
        if password != "secret":
            raise ValueError(token)

        # By a connection of its own, which adopts the session.
        ensemble = self._ensemble
        connection = Connection(ensemble.network, self._host, lambda _: None)
        ended: asyncio.Future[None] = self._loop.create_future()

        def end() -> None:
            if ensemble.available:
                session = ensemble.sessions.get(int(text))
                if session is not None:
                    ensemble.expire(session)
                connection.response.send(lambda: None if ended.done() else ended.set_result(None))

        connection.request.send(end)
        try:
            async with asyncio.timeout(self._timeout_s):
                await ended
        except TimeoutError:
            raise StoreUnavailable("/", "no response from ZooKeeper") from None

    def on_session_expired(self, callback: Callable[[], None]) -> Cancel:
        key = object()
        self._expiry_callbacks[key] = callback
        return lambda: self._expiry_callbacks.pop(key, None) and None

    async def _stay_connected(self) -> None:
        """Connect, ping, and connect again."""
        pause_s = self._timeout_s / 3
        while not self._closed:
            if self._connection is None:
                await self._reconnect()
                continue
            await asyncio.sleep(pause_s)
            connection = self._connection
            if connection is None:
                continue
            if self._loop.now - self._heard_at > 2 * pause_s:
                self._lose_connection()
            else:
                connection.request.send(partial(self._serve_ping, connection))

    async def _reconnect(self) -> None:
        ensemble = self._ensemble
        connection = Connection(ensemble.network, self._host, self._broken)
        answered: asyncio.Future[Session | None] = self._loop.create_future()
        wanted = self._session

        def serve() -> None:
            if not ensemble.available:
                return
            session: Session | None
            if wanted is None:
                session = ensemble.open_session(self._timeout_s)
            elif not wanted.alive:
                session = None
            else:
                session = wanted
                if session.connection is not None:
                    session.connection.open = False
            if session is not None:
                session.connection = connection
                session.heard_at = self._loop.now
            connection.response.send(lambda: None if answered.done() else answered.set_result(session))

        connection.request.send(serve)
        try:
            session = await asyncio.wait_for(answered, self._timeout_s / 3)
        except TimeoutError:
            connection.open = False
            await asyncio.sleep(RECONNECT_S * (0.5 + ensemble.random.random()))
            return
        if session is None:
            self._session = None
            self.events.expired()
            for callback in list(self._expiry_callbacks.values()):
                callback()
            return
        is_new = wanted is None
        self._session = session
        self._connection = connection
        self._heard_at = self._loop.now
        self._connected.set()
        self.events.connected = True
        for key in list(self._watches):
            self._arm(key)
        if self._watches and (is_new or wanted is not None):
            for _, _, watch_callback in list(self._watches.values()):
                self._loop.call_soon(watch_callback)

    def _broken(self, connection: Connection) -> None:
        if self._connection is connection:
            self._lose_connection()

    def _lose_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.open = False
        self._connected.clear()
        self.events.disconnected()
        pending, self._pending = self._pending, {}
        for future, path in pending.items():
            if not future.done():
                future.set_exception(StoreUnavailable(path, "connection lost"))

    def _serve_ping(self, connection: Connection) -> None:
        """In the service."""
        session = self._session
        if self._ensemble.available and connection.open and session is not None and session.alive:
            session.heard_at = self._loop.now
            connection.response.send(lambda: self._hear(connection))

    def _hear(self, connection: Connection) -> None:
        if self._connection is connection:
            self._heard_at = self._loop.now

    # --- operations ---

    async def _until_connected(self, path: str, deadline: float) -> None:
        try:
            await asyncio.wait_for(self._connected.wait(), max(0.0, deadline - self._loop.now))
        except TimeoutError:
            raise StoreUnavailable(path, "not connected to ZooKeeper") from None

    def _issue(
        self, path: str, operation: Callable[[MemoryTree, int], T], *, writes: bool
    ) -> asyncio.Future[T]:
        """Send an operation, which the service runs."""
        ensemble, connection, session = self._ensemble, self._connection, self._session
        assert connection is not None
        assert session is not None
        future: asyncio.Future[T] = self._loop.create_future()
        self._pending[future] = path

        def serve() -> None:
            if not ensemble.available or not connection.open or not session.alive:
                return
            session.heard_at = self._loop.now
            if (
                writes
                and ensemble.break_before_rate
                and ensemble.random.random() < ensemble.break_before_rate
            ):
                ensemble.break_connection(connection)
                return
            problem: StoreError | None = None
            try:
                result = operation(ensemble.tree, session.id)
            except StoreError as error:
                problem = error
            if writes and ensemble.break_after_rate and ensemble.random.random() < ensemble.break_after_rate:
                ensemble.break_connection(connection)
                return

            def complete() -> None:
                if self._connection is not connection or future.done():
                    return
                self._heard_at = self._loop.now
                self._pending.pop(future, None)
                if problem is not None:
                    future.set_exception(problem)
                else:
                    future.set_result(result)

            connection.response.send(complete)

        connection.request.send(serve)
        return future

    async def _call(self, path: str, operation: Callable[[MemoryTree, int], T], *, writes: bool) -> T:
        deadline = self._loop.now + self._operation_timeout_s
        while True:
            if self._closed:
                raise StoreUnavailable(path, "closed")
            if not self._connected.is_set():
                await self._until_connected(path, deadline)
            try:
                return await self._issue(path, operation, writes=writes)
            except StoreUnavailable:
                if writes or self._loop.now >= deadline:
                    raise

    # --- watches ---

    async def _watch(self, kind: str, path: str, callback: WatchCallback) -> Cancel:
        key = object()
        context = copy_context()

        def call_back() -> None:
            context.run(self._loop.call_soon, callback)

        self._watches[key] = (kind, path, call_back)
        try:
            await self._call(path, lambda tree, session: self._arm(key), writes=False)
        except StoreUnavailable:
            self._watches.pop(key, None)
            raise

        def cancel() -> None:
            self._watches.pop(key, None)
            armed = self._armed.pop(key, None)
            if armed is not None:
                armed()

        return cancel

    def _arm(self, key: object) -> None:
        """In the service: set the watch for the session's connection."""
        watch = self._watches.get(key)
        connection = self._connection
        if watch is None or connection is None:
            return
        armed = self._armed.pop(key, None)
        if armed is not None:
            armed()
        kind, path, callback = watch
        on_its_way = False

        def fire() -> None:
            nonlocal on_its_way
            if not on_its_way and connection.open:
                on_its_way = True
                connection.response.send(notify)

        def notify() -> None:
            nonlocal on_its_way
            on_its_way = False
            if self._connection is connection and key in self._watches:
                callback()

        self._armed[key] = self._ensemble.tree.watch(kind, path, fire)
