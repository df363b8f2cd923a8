"""A ZooKeeper session: its life cycle, and requests with retries, over kazoo.

Used by `ZooKeeperStore`. Kazoo works in threads of its own; its results are moved to the event loop, many of
them with one wake-up.

Invariants: a read is repeated after a lost connection; a write is never repeated, because its outcome is
unknown then (`StoreUnavailable`); a denied request is never repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from ottla.metadata.kazoo_adapter import translate
from ottla.metadata.kazoo_connection import new_client, zookeeper_context
from ottla.metadata.store import Cancel, SessionEvents, StoreDenied, StoreUnavailable
from ottla.metadata.zookeeper_access import ZooKeeperAccess
from ottla.security.stores import StoreProblem

log = logging.getLogger(__name__)

# The least timeout of an operation, including the wait for a connection; then it raises StoreUnavailable.
_OPERATION_TIMEOUT_S_MIN = 15.0


class ZooKeeperSession:
    """A session with a ZooKeeper ensemble, which is replaced when it expires.

    `connect` is Kafka's `zookeeper.connect`: `host:port,host:port/chroot`. The session timeout is the
    requested one; the ensemble may grant another. `access` has TLS, login, and the ACLs of new nodes.
    """

    def __init__(
        self,
        connect: str,
        session_timeout_ms: int = 18_000,
        connection_timeout_ms: int | None = None,
        access: ZooKeeperAccess | None = None,
    ) -> None:
        self.connect_string = connect.rstrip("/")
        self.access = access or ZooKeeperAccess()
        self.connect_timeout_s = (connection_timeout_ms or session_timeout_ms) / 1000
        self._operation_timeout_s = max(_OPERATION_TIMEOUT_S_MIN, 2 * session_timeout_ms / 1000)
        self.session_timeout_s = session_timeout_ms / 1000
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._connected = asyncio.Event()
        self.events = SessionEvents()
        self._opening: asyncio.Future[None] | None = None
        self._failure = ""
        """The reason of the last failed connection."""
        self._closing = False
        self._expiry_callbacks: dict[object, Callable[[], None]] = {}
        self._completions: deque[Callable[[], None]] = deque()
        self._wake_scheduled = False

    @property
    def session_id(self) -> int:
        client_id = self._client.client_id if self._client is not None else None
        return int(client_id[0]) if client_id else 0

    @property
    def session_token(self) -> str:
        client_id = self._client.client_id if self._client is not None else None
        return f"{client_id[0]:x}:{client_id[1].hex()}" if client_id else ""

    async def end_session(self, token: str) -> None:
        session, _, password = token.partition(":")
        client_id = (int(session, 16), bytes.fromhex(password))

        def end() -> None:
            # Kazoo takes over the session; if it has expired, kazoo opens a new one, which is closed here.
            client = new_client(self.connect_string, self.session_timeout_s, self.access, client_id=client_id)
            try:
                client.start(self.connect_timeout_s)
            except KazooTimeoutError:
                raise StoreUnavailable("/", f"no response from ZooKeeper at {self.connect_string}") from None
            finally:
                client.stop()
                client.close()

        await asyncio.to_thread(end)

    async def connect(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self.access.tls is not None:
            try:
                zookeeper_context(self.access.tls)
            except StoreProblem as problem:
                raise StoreUnavailable("/", str(problem)) from None
        await self._open(self.connect_string)

    async def _open(self, hosts: str) -> None:
        assert self._loop is not None
        self._opening = self._loop.create_future()
        self._client = client = new_client(
            hosts,
            self.session_timeout_s,
            self.access,
            ready=lambda: self.run_on_loop(self._on_ready),
            failed=lambda reason, is_denied: self.run_on_loop(lambda: self._on_failure(reason, is_denied)),
            logger=logging.getLogger("ottla.kazoo"),
        )
        # Kazoo logs every failed connection as a warning with a stack trace; this class logs one line.
        client.logger.setLevel(logging.ERROR)
        client.add_listener(self._state_changed)
        client.start_async()
        try:
            await asyncio.wait_for(self._opening, self.connect_timeout_s)
        except (TimeoutError, StoreDenied) as error:
            await self.close()
            if isinstance(error, StoreDenied):
                raise
            raise StoreUnavailable("/", f"no response from ZooKeeper at {hosts}: {self._failure}") from None

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await self._stop(client)

    async def _stop(self, client: Any) -> None:
        assert self._loop is not None
        self._closing = True
        self._connected.clear()

        def stop() -> None:
            client.stop()
            client.close()

        await self._loop.run_in_executor(None, stop)

    def on_session_expired(self, callback: Callable[[], None]) -> Cancel:
        key = object()
        self._expiry_callbacks[key] = callback

        def cancel() -> None:
            del self._expiry_callbacks[key]

        return cancel

    # Transfer from kazoo's threads to the event loop.

    def run_on_loop(self, action: Callable[[], None]) -> None:
        """Run the action on the event loop, from any thread. Actions of one thread keep their order."""
        self._completions.append(action)
        if not self._wake_scheduled:
            self._wake_scheduled = True
            assert self._loop is not None
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop is closed
                self._completions.clear()

    def _drain(self) -> None:
        # Cleared first: an action that is appended from now on schedules another wake-up.
        self._wake_scheduled = False
        while self._completions:
            self._completions.popleft()()

    def _state_changed(self, state: str) -> None:
        self.run_on_loop(lambda: self._on_state(state))

    def _on_state(self, state: str) -> None:
        if self._closing:
            return
        if state == KazooState.LOST:
            self._connected.clear()
            self.events.expired()
            log.warning("ZooKeeper session expired")
            for callback in list(self._expiry_callbacks.values()):
                callback()
        elif state == KazooState.SUSPENDED and self._connected.is_set():
            self._connected.clear()
            self.events.disconnected()
            log.warning("Connection to ZooKeeper lost, reconnecting")

    def _on_ready(self) -> None:
        """The connection is authenticated; kazoo's own CONNECTED state precedes the login."""
        if self._closing:
            return
        log.info("Connected to ZooKeeper, session 0x%x", self.session_id)
        self._failure = ""
        self._connected.set()
        self.events.connected = True
        if self._opening is not None and not self._opening.done():
            self._opening.set_result(None)

    def _on_failure(self, reason: str, is_denied: bool) -> None:
        if self._closing:
            return
        if reason != self._failure:
            log.warning("Cannot connect to ZooKeeper: %s", reason)
        self._failure = reason
        if is_denied and self._opening is not None and not self._opening.done():
            self._opening.set_exception(StoreDenied("/", reason))

    def _await(self, path: str, issue: Callable[[], Any]) -> asyncio.Future[Any]:
        """Issue a kazoo call; returns a future of its result, with the store's errors."""
        assert self._loop is not None, "not connected"
        future: asyncio.Future[Any] = self._loop.create_future()

        def finish(result: Any) -> None:
            if future.done():
                return
            if result.exception is None:
                future.set_result(result.value)
            else:
                future.set_exception(translate(path, result.exception))

        timeout_s = self._operation_timeout_s

        def time_out() -> None:
            if not future.done():
                future.set_exception(
                    StoreUnavailable(path, f"no response within {self._operation_timeout_s:.0f} s")
                )

        timer = self._loop.call_later(timeout_s, time_out)
        future.add_done_callback(lambda _: timer.cancel())
        issue().rawlink(lambda result: self.run_on_loop(lambda: finish(result)))
        return future

    async def read(self, path: str, issue: Callable[[Any], Any]) -> Any:
        """Issue a read, and repeat it after a lost connection, until the operation times out."""
        assert self._loop is not None, "not connected"
        deadline = self._loop.time() + self._operation_timeout_s
        while True:
            client = self._require_client(path)
            try:
                return await self._await(path, partial(issue, client))
            except StoreDenied:
                raise
            except StoreUnavailable:
                if self._loop.time() >= deadline:
                    raise
                await self._until_connected(path, deadline)

    async def write(self, path: str, issue: Callable[[Any], Any]) -> Any:
        """Issue a write, once there is a connection. Raises StoreUnavailable if its outcome is unknown."""
        client = self._require_client(path)
        if not self._connected.is_set():
            # Nothing is in flight yet: waiting for the connection cannot make the outcome unknown.
            assert self._loop is not None
            await self._until_connected(path, self._loop.time() + self._operation_timeout_s)
        return await self._await(path, partial(issue, client))

    async def _until_connected(self, path: str, deadline: float) -> None:
        assert self._loop is not None
        try:
            await asyncio.wait_for(self._connected.wait(), max(0.0, deadline - self._loop.time()))
        except TimeoutError:
            reason = f": {self._failure}" if self._failure else ""
            raise StoreUnavailable(path, f"not connected to ZooKeeper{reason}") from None

    def _require_client(self, path: str) -> Any:
        if self._client is None:
            raise StoreUnavailable(path, "closed")
        return self._client
