"""The interface of the metadata store, which has ZooKeeper's operations.

All reads and writes of the cluster's metadata use this interface; its two implementations (`zookeeper`,
`memory`) pass the same contract tests.

Invariants of every implementation:

- A path is absolute (`/brokers/ids`), relative to the chroot.
- Operations of one session take effect in the order of their calls, so they can be pipelined.
- `multi` is atomic.
- Watches are level-triggered: a callback has no arguments, may be called once for several changes, and is
  also called after a reconnection, because changes may have been missed. A watch is set when `watch_*`
  returns, and stays set: a read after that, and the later callbacks, never miss a state.
- Callbacks run on the event loop that called `connect`.
- `StoreUnavailable` from a write means that its outcome is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

ANY_VERSION = -1

# How many requests a bulk read keeps in flight: enough to hide the round trip, few enough to bound memory.
PIPELINE_DEPTH_MAX = 512


@dataclass(frozen=True, slots=True)
class Stat:
    """The metadata of a node (ZooKeeper's Stat).

    `version` counts the writes of its data, `czxid` and `mzxid` are the transactions that created and last
    changed it, `ephemeral_owner` is the session of an ephemeral node (else 0), `ctime_ms` its creation time.
    """

    version: int
    czxid: int
    mzxid: int
    ephemeral_owner: int = 0
    ctime_ms: int = 0


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    path: str
    version: int


Operation: TypeAlias = Create | SetData | Delete | Check
OperationResult: TypeAlias = str | Stat | None
WatchCallback: TypeAlias = Callable[[], None]
Cancel: TypeAlias = Callable[[], None]


class StoreError(Exception):
    """Base class of the store's errors; `path` is the node's."""

    def __init__(self, path: str, detail: str = "") -> None:
        super().__init__(f"{path}: {detail}" if detail else path)
        self.path = path


class NoNode(StoreError):
    """The node, or the parent of a node to create, does not exist."""


class NodeExists(StoreError):
    """The node to create exists already."""


class BadVersion(StoreError):
    """The node's version is not the expected one."""


class NotEmpty(StoreError):
    """A node with children cannot be deleted."""


class StoreUnavailable(StoreError):
    """No response: connection lost, session expired, or timeout. A write may or may not have happened."""


class StoreDenied(StoreUnavailable):
    """The store denied access, by the login or by the node's ACL. A retry does not help."""


class StoreConflict(StoreError):
    """A `multi` failed without any effect; `failed` is the operation that failed, `cause` its error."""

    def __init__(self, failed: Operation, index: int, cause: StoreError) -> None:
        super().__init__(failed.path, f"operation {index} ({type(failed).__name__}) of a multi: {cause!r}")
        self.failed = failed
        self.index = index
        self.cause = cause


class SessionEvents:
    """What has happened to a store's session, for metrics."""

    __slots__ = ("connected", "disconnects", "expirations")

    def __init__(self) -> None:
        self.connected = False
        self.disconnects = self.expirations = 0

    def disconnected(self) -> None:
        """Count a lost connection, unless it is lost already."""
        self.disconnects += self.connected
        self.connected = False

    def expired(self) -> None:
        self.connected = False
        self.expirations += 1


class MetadataStore(Protocol):
    """The interface. See the module's docstring for the invariants."""

    @property
    def events(self) -> SessionEvents: ...

    async def connect(self) -> None:
        """Open the session, and create the chroot if there is one. Raises StoreUnavailable."""

    async def close(self) -> None:
        """End the session, which removes its ephemeral nodes."""

    @property
    def session_id(self) -> int:
        """The session's id, as in `Stat.ephemeral_owner`; 0 without a session."""

    async def sync(self) -> None:
        """Wait until reads of this session see every write, of any session, that was complete before the
        call. Raises StoreUnavailable."""

    async def get(self, path: str) -> tuple[bytes, Stat] | None:
        """The node's data and stat, or None if it does not exist."""

    async def get_many(self, paths: Iterable[str]) -> list[tuple[bytes, Stat] | None]:
        """The nodes' data and stats, with few requests. Not an atomic snapshot."""

    async def exists(self, path: str) -> Stat | None: ...

    async def children(self, path: str) -> list[str]:
        """Names of the children, sorted; empty if the node does not exist."""

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> str:
        """Create a node and return its path (with the number, if sequential). Raises NodeExists, NoNode."""

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        """Replace the data if `version` is the node's. Raises NoNode, BadVersion."""

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Raises NoNode, BadVersion, NotEmpty."""

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """Apply all operations or none. Returns the result of each operation. Raises StoreConflict."""

    async def watch_children(self, path: str, callback: WatchCallback) -> Cancel:
        """Call back when children, or the node itself, are created or deleted, until cancelled."""

    async def watch_data(self, path: str, callback: WatchCallback) -> Cancel:
        """Call back when the node is created, changed or deleted, until cancelled."""

    @property
    def session_token(self) -> str:
        """The token with which another process can end this session; "" without a session. A secret."""
        ...

    async def end_session(self, token: str) -> None:
        """End the session of a dead process, and delete its ephemeral nodes.

        Does nothing if that session has expired. Raises StoreUnavailable, and ValueError for an invalid
        token.
        """
        ...

    def on_session_expired(self, callback: Callable[[], None]) -> Cancel:
        """Call back when the session has expired, and its ephemeral nodes are deleted.

        The store opens a new session by itself; operations wait for it.
        """


T = TypeVar("T")
R = TypeVar("R")


async def pipelined(issue: Callable[[T], asyncio.Future[R]], items: Iterable[T]) -> list[R]:
    """Issue one operation per item without waiting for the previous one; returns the results in order.

    The operations reach the store in the items' order. The first failure is raised after the operations
    issued with it are complete.
    """
    results: list[R] = []
    pending: list[asyncio.Future[R]] = []
    for item in items:
        operation = issue(item)
        operation.add_done_callback(_retrieve)
        pending.append(operation)
        if len(pending) >= PIPELINE_DEPTH_MAX:
            results += await _results(pending)
            pending = []
    if pending:
        results += await _results(pending)
    return results


async def _results(pending: Sequence[asyncio.Future[R]]) -> list[R]:
    await asyncio.wait(pending)
    return [future.result() for future in pending]


def _retrieve(operation: asyncio.Future[Any]) -> None:
    """Only the first failure is raised, and none if the caller is cancelled; asyncio reports what is never
    retrieved."""
    if not operation.cancelled():
        operation.exception()


async def children_of_many(store: MetadataStore, paths: Iterable[str]) -> list[list[str]]:
    """List the children of many nodes with few round trips."""
    return await pipelined(lambda path: asyncio.ensure_future(store.children(path)), paths)


async def ensure_path(store: MetadataStore, path: str) -> None:
    """Create the persistent node and its missing parents, unless it exists."""
    if await store.exists(path) is not None:
        return
    try:
        await store.create(path, make_parents=True)
    except NodeExists:
        return


async def delete_recursively(store: MetadataStore, path: str) -> None:
    """Delete the node and its descendants, ignoring missing ones. Not atomic."""
    for child in await store.children(path):
        await delete_recursively(store, f"{path}/{child}")
    try:
        await store.delete(path)
    except NoNode:
        return
