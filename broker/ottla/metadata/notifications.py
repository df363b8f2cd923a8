"""News by sequential nodes: one folder of them, followed.

Called by what brokers share through ZooKeeper and tell each other of in Kafka's way: settings, ACLs and
delegation tokens. A notification says only *what* to read again, so hearing twice, or late, does no harm.

Invariants: what is announced between `watch` and `follow` is heard after `follow`; news that could not be
taken over is heard again; following never ends by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from ottla.metadata.store import Cancel, MetadataStore, StoreError, StoreUnavailable, get_many

log = logging.getLogger(__name__)

EXPIRATION_MS: Final = 15 * 60 * 1000
"""Kafka keeps notifications this long, for brokers that were away to find."""
_RETRY_DELAY_S: Final = 1.0


class Notifications:
    """`what` they are about, for the log. `take` gets the data of those that are new, in order. `clock` gives
    wall time in ms; with one, old notifications are purged."""

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        what: str,
        take: Callable[[list[bytes]], Awaitable[None]],
        clock: Callable[[], int] | None,
    ) -> None:
        self._store = store
        self._root = root
        self._what = what
        self._take = take
        self._clock = clock
        self._changed = asyncio.Event()
        self._seen = -1
        self._cancel: Cancel | None = None
        self._task: asyncio.Task[None] | None = None

    async def watch(self) -> None:
        """Note where they stand. Load what they are about after that, then `follow`. Raises StoreError."""
        self._cancel = await self._store.watch_children(self._root, self._changed.set)
        self._seen = max(map(_sequence, await self._store.children(self._root)), default=-1)

    def follow(self) -> None:
        self._task = asyncio.ensure_future(self._follow())

    async def stop(self) -> None:
        if self._cancel is not None:
            self._cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._process()
            except StoreUnavailable as error:
                log.warning("cannot read the changes of %s, trying again: %s", self._what, error)
                self._changed.set()
                await asyncio.sleep(_RETRY_DELAY_S)
            except Exception:
                # Whoever follows no more would live with what was so today for ever, and say nothing of it.
                log.exception("following the changes of %s failed, trying again", self._what)
                self._changed.set()
                await asyncio.sleep(_RETRY_DELAY_S)

    async def _process(self) -> None:
        names = sorted(await self._store.children(self._root), key=_sequence)
        new = [name for name in names if _sequence(name) > self._seen]
        found = await get_many(self._store, [f"{self._root}/{name}" for name in new])
        await self._take([node[0] for node in found if node is not None])
        if new:
            self._seen = _sequence(new[-1])
        await self._purge(names)

    async def _purge(self, names: Iterable[str]) -> None:
        """Remove old notifications; any broker may, and all do."""
        if self._clock is None:
            return
        oldest_ms = self._clock() - EXPIRATION_MS
        for name in names:
            path = f"{self._root}/{name}"
            stat = await self._store.exists(path)
            if stat is not None and stat.ctime_ms >= oldest_ms:
                return
            try:
                await self._store.delete(path)
            except StoreError as error:
                log.debug("a change of %s is not purged: %s", self._what, error)


def _sequence(name: str) -> int:
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else -1
