"""Watches on the topics' nodes (PartitionModificationsHandler), where old tools add partitions.

Used by `ActiveController`. A watch costs a request to the store, half a millisecond of CPU time and 3 KiB, so
they are set in the background after the election, each once. Every topic counts as changed when its watch is
set, so no earlier change is missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from ottla.metadata import znodes
from ottla.metadata.store import Cancel, MetadataStore, StoreUnavailable

log = logging.getLogger(__name__)

_SET_AT_ONCE_MAX: Final = 100
_RETRY_DELAY_S: Final = 1.0


class TopicWatches:
    """One data watch per topic; `changed` is called with a topic whose node may have changed."""

    def __init__(self, store: MetadataStore, changed: Callable[[str], None]) -> None:
        self._store = store
        self._changed = changed
        self._cancels: dict[str, Cancel] = {}
        self._waiting: dict[str, None] = {}
        """Topics without a watch yet."""
        self._task: asyncio.Task[None] | None = None

    def watch(self, topics: Iterable[str]) -> None:
        """Watch these topics' nodes, and no others. Returns at once."""
        wanted = set(topics)
        for gone in sorted(self._cancels.keys() - wanted):
            self._cancels.pop(gone)()
        self._waiting = dict.fromkeys(sorted(wanted - self._cancels.keys()))
        if self._waiting and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._set(), name="watch topics")

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self.watch(())

    async def _set(self) -> None:
        while self._waiting:
            names = list(self._waiting)[:_SET_AT_ONCE_MAX]
            results = await asyncio.gather(*map(self._set_one, names), return_exceptions=True)
            for failure in results:
                if isinstance(failure, StoreUnavailable):
                    log.warning("Setting watches on topics failed, retrying: %s", failure)
                    await asyncio.sleep(_RETRY_DELAY_S)
                    break
                if failure is not None:
                    raise failure

    async def _set_one(self, name: str) -> None:
        cancel = await self._store.watch_data(znodes.topic_path(name), partial(self._changed, name))
        if name not in self._waiting:
            cancel()  # removed meanwhile
            return
        del self._waiting[name]
        self._cancels[name] = cancel
        self._changed(name)
