"""The metadata store: a port shaped like ZooKeeper, which is what the cluster's state lives in.

Registration, the metadata rooms and the controller read and write through this port only; its two
adapters (`zookeeper`, `memory`) pass one contract suite.

Invariants every adapter keeps:

- A path is absolute (`/brokers/ids`), relative to the adapter's chroot.
- Operations of one session take effect in the order they were issued, so they may be pipelined.
- `multi` takes effect whole or not at all.
- Watches are level-triggered: a callback says "look again", carries nothing, may come once for several
  changes, and comes also after a reconnection, when something may have been missed. A watch is armed
  by the time `watch_*` returns and stays armed: what the caller reads afterwards plus the callbacks
  that follow never miss a state.
- Callbacks run on the event loop that called `connect`.
- `StoreUnavailable` from a write means that its outcome is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

ANY_VERSION = -1

# How many requests a bulk read keeps in flight: enough to hide the round trip, few enough to bound memory.
PIPELINE_DEPTH_MAX = 512


@dataclass(frozen=True, slots=True)
class Stat:
    """What the store knows about a node, in ZooKeeper's terms.

    `version` counts the writes of its data, `czxid` and `mzxid` are the transactions that created and last
    changed it, `ephemeral_owner` is the session it belongs to (0: none), `ctime_ms` its creation time.
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
    """Base of what the store can answer; `path` names the node."""

    def __init__(self, path: str, detail: str = "") -> None:
        super().__init__(f"{path}: {detail}" if detail else path)
        self.path = path


class NoNode(StoreError):
    """The node, or the parent of a node to create, does not exist."""


class NodeExists(StoreError):
    """The node to create is there already."""


class BadVersion(StoreError):
    """The node's version is not the one the caller expected."""


class NotEmpty(StoreError):
    """A node with children cannot be deleted."""


class StoreUnavailable(StoreError):
    """No answer: connection lost, session expired, or time out. A write may or may not have happened."""


class StoreDenied(StoreUnavailable):
    """The store will not do it for us: the login or the node's ACL is against it. Asking again is no use."""


class StoreConflict(StoreError):
    """A `multi` was refused and nothing of it happened; `failed` is the culprit, `cause` its error."""

    def __init__(self, failed: Operation, index: int, cause: StoreError) -> None:
        super().__init__(failed.path, f"operation {index} ({type(failed).__name__}) of a multi: {cause!r}")
        self.failed = failed
        self.index = index
        self.cause = cause


class MetadataStore(Protocol):
    """The port. See the module's docstring for what an adapter promises."""

    async def connect(self) -> None:
        """Open the session, and create the chroot if there is one. Raises StoreUnavailable."""

    async def close(self) -> None:
        """End the session, which removes its ephemeral nodes."""

    @property
    def session_id(self) -> int:
        """The session's id, as `Stat.ephemeral_owner` shows it; 0 while there is none."""

    async def sync(self) -> None:
        """Wait until reads of this session see every write, of any session, that was complete before the
        call. Raises StoreUnavailable."""

    async def get(self, path: str) -> tuple[bytes, Stat] | None:
        """The node's data, or None if there is no such node."""

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        """The nodes' data, at the price of a few requests. Not all at one moment."""

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
        """Do all or nothing. The results are those of the single operations. Raises StoreConflict."""

    async def watch_children(self, path: str, callback: WatchCallback) -> Cancel:
        """Call back when children come or go (or the node itself does), until cancelled."""

    async def watch_data(self, path: str, callback: WatchCallback) -> Cancel:
        """Call back when the node is created, changed or deleted, until cancelled."""

    @property
    def session_token(self) -> str:
        """What another process needs to end this session; "" while there is none. A secret."""
        ...

    async def end_session(self, token: str) -> None:
        """End the session of a process that is known to be dead, and with it its ephemeral nodes, now.

        Nothing happens if that session has expired already. Raises StoreUnavailable, and ValueError for
        what is no token.
        """
        ...

    def on_session_expired(self, callback: Callable[[], None]) -> Cancel:
        """Call back once the session is known to be lost, with all its ephemeral nodes.

        The adapter opens a new session by itself; operations issued meanwhile wait for it.
        """


T = TypeVar("T")
R = TypeVar("R")


async def pipelined(issue: Callable[[T], asyncio.Future[R]], items: Iterable[T]) -> list[R]:
    """Issue one operation per item without waiting for the one before, and return the results in order.

    The operations reach the store in the items' order (the port's promise). The first failure is raised
    after the operations issued with it have ended.
    """
    results: list[R] = []
    pending: list[asyncio.Future[R]] = []
    for item in items:
        pending.append(issue(item))
        if len(pending) >= PIPELINE_DEPTH_MAX:
            await asyncio.wait(pending)
            results.extend(future.result() for future in pending)
            pending = []
    if pending:
        await asyncio.wait(pending)
        results.extend(future.result() for future in pending)
    return results


async def get_many(store: MetadataStore, paths: Iterable[str]) -> list[tuple[bytes, Stat] | None]:
    """Read many nodes at the price of a few round trips."""
    return await store.get_many(list(paths))


async def children_of_many(store: MetadataStore, paths: Iterable[str]) -> list[list[str]]:
    """List the children of many nodes at the price of a few round trips."""
    return await pipelined(lambda path: asyncio.ensure_future(store.children(path)), paths)


async def ensure_path(store: MetadataStore, path: str) -> None:
    """Create the persistent node and its missing parents, unless it is there."""
    if await store.exists(path) is not None:
        return
    try:
        await store.create(path, make_parents=True)
    except NodeExists:
        return


async def delete_recursively(store: MetadataStore, path: str) -> None:
    """Delete the node and all below it; what is gone already is no error. Not atomic."""
    for child in await store.children(path):
        await delete_recursively(store, f"{path}/{child}")
    try:
        await store.delete(path)
    except NoNode:
        return
