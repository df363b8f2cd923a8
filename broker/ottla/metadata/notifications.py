"""Change notifications by sequential nodes (ZkNodeChangeNotificationListener).

Used by `dynamic_configs`, `acls` and `delegation_tokens`. A notification has the name of the entity that
changed, which is read again, so late and repeated notifications are harmless.

Invariants: notifications between `watch` and `follow` are processed after `follow`; a notification that
failed to be processed is processed again; the following task never ends by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from ottla.metadata.store import Cancel, MetadataStore, StoreError, StoreUnavailable

log = logging.getLogger(__name__)

EXPIRATION_MS: Final = 15 * 60 * 1000
"""The time for which notifications are kept, as in Kafka, for brokers that were disconnected."""
_RETRY_DELAY_S: Final = 1.0


class Notifications:
    """Follows the notifications below `root`. `process` gets the data of new ones in order; `what` describes
    them in the log. `clock` returns wall time in ms; with it, old notifications are deleted."""

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        what: str,
        process: Callable[[list[bytes]], Awaitable[None]],
        clock: Callable[[], int] | None,
    ) -> None:
        self._store = store
        self._root = root
        self._what = what
        self._callback = process
        self._clock = clock
        self._changed = asyncio.Event()
        self._seen = -1
        self._cancel: Cancel | None = None
        self._task: asyncio.Task[None] | None = None

    async def watch(self) -> None:
        """Read the last sequence number. Load the entities after that, then `follow`. Raises StoreError."""
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
                log.warning("Cannot read the change notifications of %s, retrying: %s", self._what, error)
                self._changed.set()
                await asyncio.sleep(_RETRY_DELAY_S)
            except Exception:
                # Without a retry this broker would miss all later changes.
                log.exception("Processing the change notifications of %s failed, retrying", self._what)
                self._changed.set()
                await asyncio.sleep(_RETRY_DELAY_S)

    async def _process(self) -> None:
        names = sorted(await self._store.children(self._root), key=_sequence)
        new = [name for name in names if _sequence(name) > self._seen]
        found = await self._store.get_many([f"{self._root}/{name}" for name in new])
        await self._callback([node[0] for node in found if node is not None])
        if new:
            self._seen = _sequence(new[-1])
        await self._purge(names)

    async def _purge(self, names: Iterable[str]) -> None:
        """Delete old notifications; every broker does."""
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
                log.debug("A change notification of %s is not deleted: %s", self._what, error)


def _sequence(name: str) -> int:
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else -1
