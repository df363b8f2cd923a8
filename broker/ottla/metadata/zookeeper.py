"""The ZooKeeper adapter of the metadata store, over kazoo.

Kazoo works in threads of its own; everything it reports is moved to the event loop, many completions by one
wake-up, so that no code outside this module ever runs in a foreign thread. Requests are issued with kazoo's
asynchronous calls and are therefore pipelined on the one connection.

Invariants: a read is repeated after a lost connection, a write never is (its outcome is unknown then, and
`StoreUnavailable` says so); ZooKeeper's one-shot watches are re-armed before their callback runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import (
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from ottla.metadata import bulk_reads
from ottla.metadata.kazoo_words import Unimplemented, add_to, result_of, stat_of, translate
from ottla.metadata.store import (
    ANY_VERSION,
    Cancel,
    NoNode,
    Operation,
    OperationResult,
    Stat,
    StoreConflict,
    StoreUnavailable,
    WatchCallback,
    pipelined,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

# How long an operation may wait for a connection and an answer before it is given up as StoreUnavailable.
_OPERATION_TIMEOUT_S_MIN = 15.0
_RECONNECT_DELAY_S_MAX = 1.0

_READ_AT_ONCE = 200
"""Nodes in one request. The answer is as long as they are: a topic of 1,000 partitions has 20 KiB."""


class ZooKeeperStore:
    """A session with a ZooKeeper ensemble. Implements `ottla.metadata.store.MetadataStore`.

    `connect` is Kafka's `zookeeper.connect`: `host:port,host:port/chroot`. The session timeout is what is
    asked for; the ensemble may grant another.
    """

    def __init__(
        self, connect: str, session_timeout_ms: int = 18_000, connection_timeout_ms: int | None = None
    ) -> None:
        self._connect_string = connect
        self._connect_timeout_s = (connection_timeout_ms or session_timeout_ms) / 1000
        self._operation_timeout_s = max(_OPERATION_TIMEOUT_S_MIN, 2 * session_timeout_ms / 1000)
        self._session_timeout_s = session_timeout_ms / 1000
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._connected = asyncio.Event()
        self._closing = False
        self._reads_many = True
        self._expiry_callbacks: list[Callable[[], None]] = []
        self._completions: deque[Callable[[], None]] = deque()
        self._wake_scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()

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
            # Kazoo takes the session over; one that has expired is replaced by a new one, which ends instead.
            client = KazooClient(
                hosts=self._connect_string, timeout=self._session_timeout_s, client_id=client_id
            )
            try:
                client.start(self._connect_timeout_s)
            except KazooTimeoutError:
                raise StoreUnavailable("/", f"no ZooKeeper answers at {self._connect_string}") from None
            finally:
                client.stop()
                client.close()

        await asyncio.to_thread(end)

    async def connect(self) -> None:
        self._loop = asyncio.get_running_loop()
        hosts, slash, chroot = self._connect_string.partition("/")
        if slash and chroot.strip("/"):
            await self._create_chroot(hosts, "/" + chroot.strip("/"))
        self._client = await self._open(self._connect_string if chroot.strip("/") else hosts)

    async def _open(self, hosts: str) -> Any:
        client = KazooClient(
            hosts=hosts,
            timeout=self._session_timeout_s,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=_RECONNECT_DELAY_S_MAX),
            logger=logging.getLogger("ottla.kazoo"),
        )
        # Kazoo reports every reconnection attempt as a warning with a stack; its states are logged here.
        client.logger.setLevel(logging.ERROR)
        client.add_listener(self._state_changed)
        self._client = client
        client.start_async()
        try:
            await asyncio.wait_for(self._connected.wait(), self._connect_timeout_s)
        except TimeoutError:
            await self._stop(client)
            raise StoreUnavailable("/", f"no ZooKeeper answers at {hosts}") from None
        return client

    async def _create_chroot(self, hosts: str, chroot: str) -> None:
        client = await self._open(hosts)
        try:
            await self._await(chroot, lambda: client.ensure_path_async(chroot))
        finally:
            await self._stop(client)
            self._closing = False

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
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
        self._expiry_callbacks.append(callback)
        return lambda: self._expiry_callbacks.remove(callback)

    # From kazoo's threads to the event loop.

    def _to_loop(self, action: Callable[[], None]) -> None:
        """Run the action on the loop; callable from any thread. Actions of one thread keep their order."""
        self._completions.append(action)
        if not self._wake_scheduled:
            self._wake_scheduled = True
            assert self._loop is not None
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop is closed: nobody is left to care
                self._completions.clear()

    def _drain(self) -> None:
        # Cleared first: an action appended from here on schedules a wake-up of its own.
        self._wake_scheduled = False
        while self._completions:
            self._completions.popleft()()

    def _state_changed(self, state: str) -> None:
        self._to_loop(lambda: self._on_state(state))

    def _on_state(self, state: str) -> None:
        if self._closing:
            return
        if state == KazooState.CONNECTED:
            log.info("connected to ZooKeeper, session 0x%x", self.session_id)
            self._connected.set()
            return
        self._connected.clear()
        if state == KazooState.LOST:
            log.warning("the ZooKeeper session has expired")
            for callback in list(self._expiry_callbacks):
                callback()
        else:
            log.warning("the connection to ZooKeeper is lost; reconnecting")

    def _await(self, path: str, issue: Callable[[], Any]) -> asyncio.Future[Any]:
        """Issue a kazoo call now and return a future of its outcome, in this port's errors."""
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
                    StoreUnavailable(path, f"no answer in {self._operation_timeout_s:.0f} s")
                )

        timer = self._loop.call_later(timeout_s, time_out)
        future.add_done_callback(lambda _: timer.cancel())
        issue().rawlink(lambda result: self._to_loop(lambda: finish(result)))
        return future

    async def _read(self, path: str, issue: Callable[[Any], Any]) -> Any:
        """Issue a read, again after every lost connection, until the time is up."""
        assert self._loop is not None, "not connected"
        deadline = self._loop.time() + self._operation_timeout_s
        while True:
            client = self._require_client(path)
            try:
                return await self._await(path, partial(issue, client))
            except StoreUnavailable:
                if self._loop.time() >= deadline:
                    raise
                await self._until_connected(path, deadline)

    async def _write(self, path: str, issue: Callable[[Any], Any]) -> Any:
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
            raise StoreUnavailable(path, "not connected to ZooKeeper") from None

    def _require_client(self, path: str) -> Any:
        if self._client is None:
            raise StoreUnavailable(path, "closed")
        return self._client

    # The port.

    async def get(self, path: str) -> tuple[bytes, Stat] | None:
        try:
            data, stat = await self._read(path, lambda client: client.get_async(path))
        except NoNode:
            return None
        # Kafka's Java code creates its folders with null data.
        return data or b"", stat_of(stat)

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        batches = [paths[at : at + _READ_AT_ONCE] for at in range(0, len(paths), _READ_AT_ONCE)]
        if len(paths) > 1 and self._reads_many:
            try:
                found = await pipelined(lambda batch: asyncio.ensure_future(self._get_batch(batch)), batches)
                return [node for batch in found for node in batch]
            except Unimplemented:
                log.info("this ZooKeeper reads nodes one by one only (it is older than 3.6)")
                self._reads_many = False
        return await pipelined(lambda path: asyncio.ensure_future(self.get(path)), paths)

    async def _get_batch(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        batch = await self._read(paths[0], lambda client: bulk_reads.read_many(client, paths))
        nodes: list[tuple[bytes, Stat] | None] = []
        for path, found in zip(paths, batch, strict=True):
            if isinstance(found, NoNodeError):
                nodes.append(None)
            elif isinstance(found, Exception):
                raise translate(path, found)
            else:
                nodes.append((found[0] or b"", stat_of(found[1])))
        return nodes

    async def exists(self, path: str) -> Stat | None:
        stat = await self._read(path, lambda client: client.exists_async(path))
        return stat_of(stat) if stat is not None else None

    async def children(self, path: str) -> list[str]:
        try:
            names: list[str] = await self._read(path, lambda client: client.get_children_async(path))
        except NoNode:
            return []
        return sorted(names)

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> str:
        created = await self._write(
            path,
            # Kafka's folders have null data, and its code takes empty data of some for a value.
            lambda client: client.create_async(
                path, data or None, ephemeral=ephemeral, sequence=sequential, makepath=make_parents
            ),
        )
        return str(created)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        return stat_of(await self._write(path, lambda client: client.set_async(path, data, version)))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._write(path, lambda client: client.delete_async(path, version))

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        path = operations[0].path if operations else "/"

        def commit(client: Any) -> Any:
            transaction = client.transaction()
            for operation in operations:
                add_to(transaction, operation)
            return transaction.commit_async()

        results = await self._write(path, commit)
        for index, (operation, result) in enumerate(zip(operations, results, strict=True)):
            # ZooKeeper names the culprit; the other operations are "rolled back" or "not tried".
            if isinstance(result, Exception) and not isinstance(
                result, RolledBackError | RuntimeInconsistency
            ):
                raise StoreConflict(operation, index, translate(operation.path, result))
        return [result_of(operation, result) for operation, result in zip(operations, results, strict=True)]

    async def watch_children(self, path: str, callback: WatchCallback) -> Cancel:
        async def arm(fire: Callable[[Any], None]) -> None:
            try:
                await self._read(path, lambda client: client.get_children_async(path, watch=fire))
            except NoNode:
                # Children of a node that is not there: wait for the node, then watch its children.
                if await self._read(path, lambda client: client.exists_async(path, watch=fire)) is not None:
                    await arm(fire)

        return await self._watch(arm, callback)

    async def watch_data(self, path: str, callback: WatchCallback) -> Cancel:
        async def arm(fire: Callable[[Any], None]) -> None:
            await self._read(path, lambda client: client.exists_async(path, watch=fire))

        return await self._watch(arm, callback)

    async def _watch(self, arm: Callable[[Callable[[Any], None]], Any], callback: WatchCallback) -> Cancel:
        fired = asyncio.Event()

        def fire(_event: Any) -> None:  # in a thread of kazoo's
            self._to_loop(fired.set)

        async def keep_armed() -> None:
            while True:
                await fired.wait()
                fired.clear()
                try:
                    await arm(fire)
                except StoreUnavailable:
                    # Expired or unreachable for long: the watch is gone, so go on until it is armed.
                    fired.set()
                    await asyncio.sleep(_RECONNECT_DELAY_S_MAX)
                    continue
                try:
                    callback()
                except Exception:
                    log.exception("a watch callback failed")

        await arm(fire)
        # Kazoo drops the watches of an expired session without a word when it never got to arm them.
        unsubscribe = self.on_session_expired(fired.set)
        task = asyncio.ensure_future(keep_armed())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def cancel() -> None:
            unsubscribe()
            task.cancel()

        return cancel
