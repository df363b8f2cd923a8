"""What the broker does when one of its log directories fails (KIP-112): go on with the others.

Made by the broker once the logs are loaded. An error may be met in any thread; from here on all is on the
event loop. The replicas in the directory go offline, and the controller is told through the store, as by
Kafka's brokers in ZooKeeper mode: a node that says whose directory it was. The controller then asks this
broker for all its replicas (LeaderAndIsr), hears which of them cannot serve, and moves their leaders.

A broker whose last directory has failed stops. `lost_logs` notifies the controller in the same way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ottla.metadata import znodes
from ottla.metadata.store import MetadataStore, StoreError, StoreUnavailable
from ottla.replication.manager import ReplicaManager
from ottla.storage.manager import LogManager

log = logging.getLogger(__name__)

_RETRY_S: Final = 1.0


class LogDirFailureHandler:
    """See the module. `none_left` is called when no directory can be used any more."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        logs: LogManager,
        replicas: ReplicaManager,
        store: MetadataStore,
        broker_id: int,
        none_left: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._logs = logs
        self._replicas = replicas
        self._store = store
        self._broker_id = broker_id
        self._none_left = none_left
        self._telling: asyncio.Task[None] | None = None
        self._news = False
        logs.on_dir_failed = self._failed

    def _failed(self, path: Path) -> None:
        """In whatever thread met the error."""
        self._loop.call_soon_threadsafe(self._take_offline)

    def _take_offline(self) -> None:
        self._replicas.drop_failed_directories()
        if not self._logs.online_dirs():
            log.error("no log directory is left that can be used: stopping")
            self._none_left()
            return
        self.notify_controller()

    def notify_controller(self) -> None:
        """Have the controller send all of this broker's replicas again, and hear which it cannot serve."""
        self._news = True
        if self._telling is None or self._telling.done():
            self._telling = self._loop.create_task(self._tell_controller())

    async def _tell_controller(self) -> None:
        event = znodes.encode_log_dir_event(self._broker_id)
        while self._news:
            self._news = False
            try:
                await self._store.create(znodes.LOG_DIR_EVENT_PREFIX, event, sequential=True)
            except StoreUnavailable as error:
                log.warning("cannot tell the controller of a failed directory yet: %s", error)
                self._news = True
                await asyncio.sleep(_RETRY_S)
            except StoreError:
                log.exception("cannot tell the controller of a failed directory")

    async def stop(self) -> None:
        self._logs.on_dir_failed = lambda path: None
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)
