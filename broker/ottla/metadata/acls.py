"""The ACLs as the cluster's brokers share them: loaded into the authorizer, followed, and changed.

Called by the broker (start, stop) and by the handlers of the ACL APIs. As Kafka's AclAuthorizer: every change
is a conditional write of the pattern's node, tried again on what another broker wrote meanwhile, then a
notification, which names the pattern for everybody to read again. Hearing twice, or late, does no harm.

Invariants: after `start`, and after every notification, the authorizer has each pattern's entries as they
were at that time or later; what this broker has changed, it knows when the call returns. A node that cannot
be read keeps a broker from starting, and later keeps the entries known before: nobody gains by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from ottla.metadata import acl_nodes
from ottla.metadata.notifications import Notifications
from ottla.metadata.store import (
    BadVersion,
    MetadataStore,
    NodeExists,
    NoNode,
    Stat,
    StoreError,
    children_of_many,
    ensure_path,
    get_many,
)
from ottla.metadata.znodes import InvalidNode
from ottla.security.acls import (
    AclBinding,
    AclFilter,
    Entry,
    EntryFilter,
    PatternType,
    ResourcePattern,
)
from ottla.security.authorizer import AclAuthorizer, make_authorizer
from ottla.security.principals import Principal

log = logging.getLogger("ottla.acls")

TRIES_MAX: Final = 11
BACKOFF_S: Final = 0.1


class TooManyTries(Exception):
    """Others changed the same ACLs each time."""


class Deleted(NamedTuple):
    """What one filter of a deletion has removed: each with what went wrong, if anything."""

    binding: AclBinding
    error: Exception | None


class _State(NamedTuple):
    """A pattern's entries at a version of its node; None: there is no node."""

    entries: frozenset[Entry] = frozenset()
    version: int | None = None


class StoredAcls:
    """See the module. `clock` gives wall time in ms."""

    def __init__(self, store: MetadataStore, authorizer: AclAuthorizer, clock: Callable[[], int]) -> None:
        self._store = store
        self.authorizer = authorizer
        self._versions: dict[ResourcePattern, int] = {}
        self._alone = asyncio.Lock()
        """Held while entries are read or written and taken over, so that an older state never wins."""
        self._news = [
            Notifications(store, root, f"{kind.name.lower()} ACLs", partial(self._hear, kind), clock)
            for kind, root in acl_nodes.CHANGES.items()
        ]

    # --- following ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load everything, then follow the changes. Raises StoreError, InvalidNode."""
        store = self._store
        type_paths = {
            acl_nodes.type_path(kind, each): (kind, each)
            for kind in acl_nodes.ROOTS
            for each in acl_nodes.TYPES
        }
        for each_path in (*type_paths, *acl_nodes.CHANGES.values()):
            await ensure_path(store, each_path)
        for news in self._news:
            await news.watch()
        names = await children_of_many(store, type_paths)
        await self._load(
            ResourcePattern(resource_type, name, kind)
            for (kind, resource_type), found in zip(type_paths.values(), names, strict=True)
            for name in found
        )
        for news in self._news:
            news.follow()

    async def stop(self) -> None:
        for news in self._news:
            await news.stop()

    async def _load(self, patterns: Iterable[ResourcePattern]) -> None:
        wanted = list(patterns)
        async with self._alone:
            found = await get_many(self._store, map(acl_nodes.path, wanted))
            for pattern, node in zip(wanted, found, strict=True):
                self._take(pattern, _entries(pattern, node))

    def _take(self, pattern: ResourcePattern, state: _State) -> None:
        """That is the pattern's state now."""
        self.authorizer.update(pattern, state.entries)
        if state.version is None:
            self._versions.pop(pattern, None)
        else:
            self._versions[pattern] = state.version

    async def _hear(self, kind: PatternType, changes: list[bytes]) -> None:
        patterns: dict[ResourcePattern, None] = {}
        for data in changes:
            try:
                patterns[acl_nodes.decode_change(kind, data)] = None
            except InvalidNode as error:
                log.error("ignoring a change of ACLs: %s", error)
        for pattern in patterns:
            try:
                await self._load([pattern])
            except InvalidNode as error:
                log.error("keeping the ACLs of %s as they were: %s", acl_nodes.path(pattern), error)

    # --- changing -----------------------------------------------------------------------------------

    async def create(self, bindings: Sequence[AclBinding]) -> list[Exception | None]:
        """Add entries; what went wrong with each. What makes no principal, or no node, is such an error."""
        outcomes: dict[AclBinding, Exception | None] = {}
        by_pattern: dict[ResourcePattern, set[Entry]] = {}
        for pattern, entry in bindings:
            by_pattern.setdefault(pattern, set()).add(entry)
        for pattern, added in by_pattern.items():
            error = None
            try:
                for entry in added:
                    Principal.parse(entry.principal)
                await self._update(pattern, added.union)
            except Exception as problem:
                log.warning("the ACLs of %s are not changed: %s", pattern, problem)
                error = problem
            outcomes.update((AclBinding(pattern, entry), error) for entry in added)
        return [outcomes[each] for each in bindings]

    async def delete(self, filters: Sequence[AclFilter]) -> list[list[Deleted]]:
        """Remove what the filters match, by filter; an entry goes to the first one that matches it."""
        deleted: list[list[Deleted]] = [[] for _ in filters]
        patterns = dict.fromkeys(self.authorizer.patterns())
        for each in filters:
            patterns.update(dict.fromkeys(each.pattern.exact()))
        for pattern in patterns:
            matching = [(i, each.entry) for i, each in enumerate(filters) if each.pattern.matches(pattern)]
            if not matching or not acl_nodes.is_node_name(pattern.name):
                continue
            taken: dict[Entry, int] = {}
            error: Exception | None = None
            try:
                await self._update(pattern, partial(_remaining, matching, taken))
            except Exception as problem:
                log.warning("the ACLs of %s are not changed: %s", pattern, problem)
                error = problem
            for entry, index in sorted(taken.items()):
                deleted[index].append(Deleted(AclBinding(pattern, entry), error))
        return deleted

    async def _update(
        self, pattern: ResourcePattern, change: Callable[[frozenset[Entry]], Iterable[Entry]]
    ) -> None:
        """Change a pattern's entries, and tell everybody if that made a difference. Raises StoreError,
        InvalidNode, TooManyTries, and ValueError for a name that no node can have."""
        if not acl_nodes.is_node_name(pattern.name):
            raise ValueError(f"{pattern.name!r} cannot be the name of a node")
        path = acl_nodes.path(pattern)
        async with self._alone:
            state = _State(self.authorizer.entries(pattern), self._versions.get(pattern))
            if state.version is None:
                state = _entries(pattern, await self._store.get(path))
            for _ in range(TRIES_MAX):
                new = frozenset(change(state.entries))
                try:
                    written = await self._write(path, new, state.version)
                except (NoNode, BadVersion, NodeExists):
                    await asyncio.sleep(BACKOFF_S)
                    state = _entries(pattern, await self._store.get(path))
                    continue
                self._take(pattern, _State(new, written))
                if new != state.entries:
                    log.info("the ACLs of %s are changed", path)
                    await self._announce(pattern)
                return
        raise TooManyTries(f"others kept changing {path}")

    async def _write(self, path: str, entries: frozenset[Entry], version: int | None) -> int | None:
        """Write what follows on that version; the new version. Raises BadVersion, NodeExists, NoNode."""
        if not entries:
            if version is not None:
                with contextlib.suppress(NoNode):
                    await self._store.delete(path, version=version)
            return None
        data = acl_nodes.encode(entries)
        if version is None:
            await self._store.create(path, data, make_parents=True)
            return 0
        return (await self._store.set(path, data, version=version)).version

    async def _announce(self, pattern: ResourcePattern) -> None:
        prefix, data = acl_nodes.change_prefix(pattern), acl_nodes.encode_change(pattern)
        await self._store.create(prefix, data, sequential=True, make_parents=True)


def _remaining(
    matching: Sequence[tuple[int, EntryFilter]], taken: dict[Entry, int], current: frozenset[Entry]
) -> frozenset[Entry]:
    """What the filters leave; `taken` gets what they do not, with the place of the first that matches. It may
    be called again on what somebody else has written meanwhile."""
    for entry in current:
        index = next((index for index, wanted in matching if wanted.matches(entry)), None)
        if index is not None:
            taken.setdefault(entry, index)
    return current - taken.keys()


def _entries(pattern: ResourcePattern, node: tuple[bytes, Stat] | None) -> _State:
    """Raises InvalidNode."""
    if node is None:
        return _State()
    return _State(acl_nodes.decode(acl_nodes.path(pattern), node[0]), node[1].version)


async def start_acls(
    given: Mapping[str, str], store: MetadataStore, clock: Callable[[], int]
) -> StoredAcls | None:
    """What a broker with these settings follows; None without an authorizer. Raises StoreError."""
    authorizer = make_authorizer(given)
    if authorizer is None:
        return None
    acls = StoredAcls(store, authorizer, clock)
    try:
        await acls.start()
    except InvalidNode as error:
        await acls.stop()
        raise StoreError("the ACLs cannot be read", str(error)) from error
    return acls
