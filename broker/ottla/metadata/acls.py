"""ACLs in the metadata store: loaded into the authorizer, kept up to date, and changed.

Called by the broker (start, stop) and by the handlers of the ACL APIs. As in Kafka's AclAuthorizer, a change
is a conditional write of the pattern's node, retried after a concurrent write, and then a notification with
the pattern, which every broker reads again. Late and repeated notifications are harmless.

Invariants: after `start`, and after every notification, the authorizer has each pattern's entries of that
time or later; this broker's own changes are in the authorizer when the call returns. An invalid node prevents
the start of a broker; later the authorizer keeps the previous entries.
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

ATTEMPTS_MAX: Final = 11
BACKOFF_S: Final = 0.1


class TooManyConflicts(Exception):
    """Concurrent changes of the same ACLs failed all attempts."""


class Deleted(NamedTuple):
    """An ACL that a filter of a deletion matched, and the error of its deletion."""

    binding: AclBinding
    error: Exception | None


class _State(NamedTuple):
    """A pattern's entries and the version of its node; None without a node."""

    entries: frozenset[Entry] = frozenset()
    version: int | None = None


class StoredAcls:
    """Loads, follows and changes the ACLs in the store. `clock` returns wall time in ms."""

    def __init__(self, store: MetadataStore, authorizer: AclAuthorizer, clock: Callable[[], int]) -> None:
        self._store = store
        self.authorizer = authorizer
        self._versions: dict[ResourcePattern, int] = {}
        self._lock = asyncio.Lock()
        """Held from the read or write of entries to the authorizer's update, so that no older state wins."""
        self._notifications = [
            Notifications(store, root, f"{kind.name.lower()} ACLs", partial(self._on_changes, kind), clock)
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
        for notifications in self._notifications:
            await notifications.watch()
        names = await children_of_many(store, type_paths)
        await self._load(
            ResourcePattern(resource_type, name, kind)
            for (kind, resource_type), found in zip(type_paths.values(), names, strict=True)
            for name in found
        )
        for notifications in self._notifications:
            notifications.follow()

    async def stop(self) -> None:
        for notifications in self._notifications:
            await notifications.stop()

    async def _load(self, patterns: Iterable[ResourcePattern]) -> None:
        wanted = list(patterns)
        async with self._lock:
            found = await self._store.get_many(map(acl_nodes.path, wanted))
            for pattern, node in zip(wanted, found, strict=True):
                self._set_entries(pattern, _entries(pattern, node))

    def _set_entries(self, pattern: ResourcePattern, state: _State) -> None:
        """Set the pattern's state."""
        self.authorizer.update(pattern, state.entries)
        if state.version is None:
            self._versions.pop(pattern, None)
        else:
            self._versions[pattern] = state.version

    async def _on_changes(self, kind: PatternType, changes: list[bytes]) -> None:
        patterns: dict[ResourcePattern, None] = {}
        for data in changes:
            try:
                patterns[acl_nodes.decode_change(kind, data)] = None
            except InvalidNode as error:
                log.error("Ignoring an ACL change notification: %s", error)
        for pattern in patterns:
            try:
                await self._load([pattern])
            except InvalidNode as error:
                log.error("Keeping the previous ACLs of %s: %s", acl_nodes.path(pattern), error)

    # --- changing -----------------------------------------------------------------------------------

    async def create(self, bindings: Sequence[AclBinding]) -> list[Exception | None]:
        """Add entries; returns the error of each, or None. An invalid principal or name is an error, too."""
        outcomes: dict[AclBinding, Exception | None] = {}
        by_pattern: dict[ResourcePattern, dict[Entry, None]] = {}
        for pattern, entry in bindings:
            by_pattern.setdefault(pattern, {})[entry] = None
        for pattern, added in by_pattern.items():
            error = None
            try:
                for entry in sorted(added):
                    Principal.parse(entry.principal)
                await self._update(pattern, frozenset(added).union)
            except Exception as problem:
                log.warning("Failed to change the ACLs of %s: %s", pattern, problem)
                error = problem
            outcomes.update((AclBinding(pattern, entry), error) for entry in added)
        return [outcomes[each] for each in bindings]

    async def delete(self, filters: Sequence[AclFilter]) -> list[list[Deleted]]:
        """Delete the entries that the filters match. Returns them by filter, each with its first filter."""
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
                log.warning("Failed to change the ACLs of %s: %s", pattern, problem)
                error = problem
            for entry, index in sorted(taken.items()):
                deleted[index].append(Deleted(AclBinding(pattern, entry), error))
        return deleted

    async def _update(
        self, pattern: ResourcePattern, change: Callable[[frozenset[Entry]], Iterable[Entry]]
    ) -> None:
        """Change a pattern's entries, and notify all brokers if they differ. Raises StoreError, InvalidNode,
        TooManyConflicts, and ValueError for a name that cannot be a node's."""
        if not acl_nodes.is_node_name(pattern.name):
            raise ValueError(f"{pattern.name!r} cannot be the name of a node")
        path = acl_nodes.path(pattern)
        async with self._lock:
            state = _State(self.authorizer.entries(pattern), self._versions.get(pattern))
            if state.version is None:
                state = _entries(pattern, await self._store.get(path))
            for _ in range(ATTEMPTS_MAX):
                new = frozenset(change(state.entries))
                try:
                    written = await self._write(path, new, state.version)
                except (NoNode, BadVersion, NodeExists):
                    await asyncio.sleep(BACKOFF_S)
                    state = _entries(pattern, await self._store.get(path))
                    continue
                self._set_entries(pattern, _State(new, written))
                if new != state.entries:
                    log.info("Changed the ACLs of %s", path)
                    await self._announce(pattern)
                return
        raise TooManyConflicts(f"Failed to update ACLs of {path} after {ATTEMPTS_MAX} attempts")

    async def _write(self, path: str, entries: frozenset[Entry], version: int | None) -> int | None:
        """Write the entries over that version; returns the new one. Raises BadVersion, NodeExists, NoNode."""
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
    """The entries that no filter matches. `taken` gets the others with the index of their first filter.
    Called again after a concurrent write."""
    for entry in sorted(current):
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
    """The started ACLs of a broker with these settings; None without an AclAuthorizer. Raises StoreError."""
    authorizer = make_authorizer(given)
    if authorizer is None:
        return None
    acls = StoredAcls(store, authorizer, clock)
    try:
        await acls.start()
    except InvalidNode as error:
        await acls.stop()
        raise StoreError("cannot read the ACLs", str(error)) from error
    return acls
