"""The in-memory metadata store, for tests, simulation, and a single broker without ZooKeeper.

One `MemoryTree` is the ensemble; each `MemoryStore` is a client's session with it. Tests expire a session
with `expire()`, and make the store unavailable with `tree.available = False`.

Invariants: the tree changes only inside `MemoryTree.apply`, which is atomic (there is one thread);
watch callbacks are queued to the loop, never run inside the operation that triggers them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from ottla.metadata.store import (
    ANY_VERSION,
    BadVersion,
    Cancel,
    Create,
    Delete,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    OperationResult,
    SessionEvents,
    SetData,
    Stat,
    StoreConflict,
    StoreError,
    StoreUnavailable,
    WatchCallback,
    pipelined,
)

T = TypeVar("T")


@dataclass(slots=True)
class _Node:
    data: bytes
    czxid: int
    mzxid: int
    ephemeral_owner: int
    ctime_ms: int
    version: int = 0
    children: dict[str, _Node] = field(default_factory=dict)
    # Counts the children ever created, as ZooKeeper's cversion does for sequential names.
    sequence: int = 0

    def stat(self) -> Stat:
        return Stat(self.version, self.czxid, self.mzxid, self.ephemeral_owner, self.ctime_ms)


def _split(path: str) -> tuple[str, str]:
    assert path.startswith("/"), f"not an absolute path: {path}"
    assert path == "/" or not path.endswith("/"), f"trailing slash: {path}"
    parent, _, name = path.rpartition("/")
    return parent or "/", name


class AppliedChange(NamedTuple):
    """A change of the tree, with what is needed to repeat it."""

    zxid: int
    session: int
    operations: Sequence[Operation]
    results: Sequence[OperationResult]


class MemoryTree:
    """The tree of nodes, shared by the sessions."""

    def __init__(self, clock: Callable[[], int] = lambda: 0) -> None:
        self.available = True
        self._clock = clock
        self._zxid = 0
        self._sessions = itertools.count(1)
        self._root = _Node(b"", 0, 0, 0, 0)
        self._watches: dict[tuple[str, str], dict[int, Callable[[], None]]] = {}
        self._watch_ids = itertools.count()
        self.writes = 0
        self.on_applied: Callable[[AppliedChange], None] | None = None
        """Called after each change, before its caller gets the results."""

    def new_session(self) -> int:
        return next(self._sessions)

    def find(self, path: str) -> _Node | None:
        node = self._root
        for name in path.strip("/").split("/"):
            if not name:
                continue
            child = node.children.get(name)
            if child is None:
                return None
            node = child
        return node

    def apply(self, operations: Sequence[Operation], session: int) -> list[OperationResult]:
        """Apply all operations or none; raises StoreConflict for the first that fails."""
        undo: list[Callable[[], None]] = []
        results: list[OperationResult] = []
        touched: list[tuple[str, str]] = []
        self._zxid += 1
        for index, operation in enumerate(operations):
            try:
                results.append(self._apply_one(operation, session, undo, touched))
            except StoreError as error:
                for step in reversed(undo):
                    step()
                raise StoreConflict(operation, index, error) from error
        self.writes += 1
        for key in dict.fromkeys(touched):
            for callback in list(self._watches.get(key, {}).values()):
                callback()
        if self.on_applied is not None:
            self.on_applied(AppliedChange(self._zxid, session, operations, results))
        return results

    def replay(self, zxid: int, session: int, now_ms: int, operations: Sequence[Operation]) -> None:
        """Repeat a change with its transaction id and time. Raises as `apply`."""
        clock, self._clock = self._clock, lambda: now_ms
        self._zxid = zxid - 1  # failed changes have a transaction id, too
        try:
            self.apply(operations, session)
        finally:
            self._clock = clock

    def skip_sessions(self, last: int) -> None:
        """Number new sessions from the one after `last`."""
        self._sessions = itertools.count(last + 1)

    def _apply_one(
        self,
        operation: Operation,
        session: int,
        undo: list[Callable[[], None]],
        touched: list[tuple[str, str]],
    ) -> OperationResult:
        if isinstance(operation, Create):
            return self._create(operation, session, undo, touched)
        node = self.find(operation.path)
        if node is None:
            raise NoNode(operation.path)
        if operation.version not in (ANY_VERSION, node.version):
            raise BadVersion(operation.path, f"version is {node.version}, expected {operation.version}")
        if isinstance(operation, SetData):
            before = (node.data, node.version, node.mzxid)

            def restore(node: _Node = node, before: tuple[bytes, int, int] = before) -> None:
                node.data, node.version, node.mzxid = before

            undo.append(restore)
            node.data, node.version, node.mzxid = operation.data, node.version + 1, self._zxid
            touched.append(("data", operation.path))
            return node.stat()
        if isinstance(operation, Delete):
            if node.children:
                raise NotEmpty(operation.path)
            parent_path, name = _split(operation.path)
            parent = self.find(parent_path)
            assert parent is not None
            del parent.children[name]
            undo.append(lambda: parent.children.__setitem__(name, node))
            touched += [("data", operation.path), ("children", operation.path), ("children", parent_path)]
        return None

    def _create(
        self,
        operation: Create,
        session: int,
        undo: list[Callable[[], None]],
        touched: list[tuple[str, str]],
    ) -> str:
        parent_path, name = _split(operation.path)
        parent = self.find(parent_path)
        if parent is None:
            raise NoNode(parent_path, f"parent of {operation.path}")
        if operation.sequential:
            name = f"{name}{parent.sequence:010d}"
        path = f"{parent_path.rstrip('/')}/{name}"
        if name in parent.children:
            raise NodeExists(path)
        owner = session if operation.ephemeral else 0
        parent.children[name] = _Node(operation.data, self._zxid, self._zxid, owner, self._clock())
        parent.sequence += 1

        def remove() -> None:
            del parent.children[name]
            parent.sequence -= 1

        undo.append(remove)
        touched += [("data", path), ("children", path), ("children", parent_path)]
        return path

    def end_session(self, session: int) -> None:
        """Delete the session's ephemeral nodes."""

        def owned(path: str, node: _Node) -> list[str]:
            found = [path] if node.ephemeral_owner == session else []
            for name, child in node.children.items():
                found += owned(f"{path.rstrip('/')}/{name}", child)
            return found

        for path in owned("/", self._root):
            self.apply([Delete(path)], session)

    def dump(self) -> dict[str, Any]:
        """The whole tree without the watches, as JSON types."""

        def nodes(path: str, node: _Node) -> Iterator[list[Any]]:
            data = base64.b64encode(node.data).decode()
            stat = [node.czxid, node.mzxid, node.ephemeral_owner, node.ctime_ms, node.version, node.sequence]
            yield [path, data, *stat]
            for name, child in node.children.items():
                yield from nodes(f"{path.rstrip('/')}/{name}", child)

        return {"zxid": self._zxid, "nodes": list(nodes("/", self._root))}

    def load(self, dumped: dict[str, Any]) -> None:
        """Replace the tree by a dump."""
        self._zxid = dumped["zxid"]
        for path, data, czxid, mzxid, owner, ctime_ms, version, sequence in dumped["nodes"]:
            node = _Node(base64.b64decode(data), czxid, mzxid, owner, ctime_ms, version, sequence=sequence)
            if path == "/":
                self._root = node
                continue
            parent_path, name = _split(path)
            parent = self.find(parent_path)
            assert parent is not None, f"{path} precedes its parent"
            parent.children[name] = node

    def watch(self, kind: str, path: str, callback: Callable[[], None]) -> Cancel:
        key = (kind, path)
        watch_id = next(self._watch_ids)
        self._watches.setdefault(key, {})[watch_id] = callback

        def cancel() -> None:
            self._watches.get(key, {}).pop(watch_id, None)

        return cancel


class TreeStore(ABC):
    """The operations of a metadata store on a `MemoryTree`. Subclasses hold the session, and bring the
    operations to the tree."""

    @abstractmethod
    async def _call(self, path: str, operation: Callable[[MemoryTree, int], T], *, writes: bool) -> T:
        """Run `operation` with the tree and the session's id. Raises StoreUnavailable."""

    @abstractmethod
    async def _watch(self, kind: str, path: str, callback: WatchCallback) -> Cancel:
        """Set a watch (`MemoryTree.watch`)."""

    async def _write_one(self, operation: Operation) -> OperationResult:
        def apply(tree: MemoryTree, session: int) -> OperationResult:
            try:
                return tree.apply([operation], session)[0]
            except StoreConflict as conflict:
                raise conflict.cause from None

        return await self._call(operation.path, apply, writes=True)

    async def sync(self) -> None:
        await self._call("/", lambda tree, session: None, writes=False)

    async def get(self, path: str) -> tuple[bytes, Stat] | None:
        def read(tree: MemoryTree, session: int) -> tuple[bytes, Stat] | None:
            node = tree.find(path)
            return (node.data, node.stat()) if node else None

        return await self._call(path, read, writes=False)

    async def get_many(self, paths: Iterable[str]) -> list[tuple[bytes, Stat] | None]:
        return await pipelined(lambda path: asyncio.ensure_future(self.get(path)), paths)

    async def exists(self, path: str) -> Stat | None:
        found = await self.get(path)
        return None if found is None else found[1]

    async def children(self, path: str) -> list[str]:
        def read(tree: MemoryTree, session: int) -> list[str]:
            node = tree.find(path)
            return sorted(node.children) if node else []

        return await self._call(path, read, writes=False)

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> str:
        if make_parents:
            ancestors = path.strip("/").split("/")[:-1]
            for depth in range(1, len(ancestors) + 1):
                with contextlib.suppress(NodeExists):
                    await self._write_one(Create("/" + "/".join(ancestors[:depth])))
        created = await self._write_one(Create(path, data, ephemeral, sequential))
        assert isinstance(created, str)
        return created

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        stat = await self._write_one(SetData(path, data, version))
        assert isinstance(stat, Stat)
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._write_one(Delete(path, version))

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        path = operations[0].path if operations else "/"
        return await self._call(path, lambda tree, session: tree.apply(operations, session), writes=True)

    async def watch_children(self, path: str, callback: WatchCallback) -> Cancel:
        return await self._watch("children", path, callback)

    async def watch_data(self, path: str, callback: WatchCallback) -> Cancel:
        return await self._watch("data", path, callback)


class MemoryStore(TreeStore):
    """One session with a `MemoryTree`. Implements `ottla.metadata.store.MetadataStore`."""

    def __init__(self, tree: MemoryTree | None = None) -> None:
        self.tree = tree if tree is not None else MemoryTree()
        self._session = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._expiry_callbacks: list[Callable[[], None]] = []
        self.events = SessionEvents()
        self._cancels: list[Cancel] = []
        self._callbacks: dict[WatchCallback, None] = {}

    @property
    def session_id(self) -> int:
        return self._session

    async def connect(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._session = self.tree.new_session()
        self.events.connected = True

    async def close(self) -> None:
        for cancel in self._cancels:
            cancel()
        self._cancels.clear()
        session, self._session = self._session, 0
        if session:
            self.tree.end_session(session)

    def expire(self) -> None:
        """Expire the session as ZooKeeper does; a new one is opened at once."""
        assert self._loop is not None, "not connected"
        self.tree.end_session(self._session)
        self.events.expired()
        self._session = self.tree.new_session()
        self.events.connected = True
        for callback in [*self._expiry_callbacks, *self._callbacks]:
            self._loop.call_soon(callback)

    @property
    def session_token(self) -> str:
        return str(self._session) if self._session else ""

    async def end_session(self, token: str) -> None:
        self.tree.end_session(int(token))

    def on_session_expired(self, callback: Callable[[], None]) -> Cancel:
        self._expiry_callbacks.append(callback)
        return lambda: self._expiry_callbacks.remove(callback)

    async def _call(self, path: str, operation: Callable[[MemoryTree, int], T], *, writes: bool) -> T:
        # As with a real store, the response never comes in the same iteration of the event loop.
        await asyncio.sleep(0)
        if not self.tree.available or not self._session:
            raise StoreUnavailable(path, "the store is not available" if self._session else "not connected")
        return operation(self.tree, self._session)

    async def _watch(self, kind: str, path: str, callback: WatchCallback) -> Cancel:
        loop = self._loop
        assert loop is not None, "not connected"
        active = True

        def notify() -> None:
            if active:
                callback()

        def cancel() -> None:
            nonlocal active
            active = False
            untree()
            self._callbacks.pop(notify, None)

        def queue() -> None:
            loop.call_soon(notify)

        untree = self.tree.watch(kind, path, queue)
        self._callbacks[notify] = None
        self._cancels.append(untree)
        return cancel
