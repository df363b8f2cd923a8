"""Handles failed log directories (KIP-112): the broker continues with the others.

Made by the broker once the logs are loaded. Any thread may report an I/O error; the rest runs on the event
loop. The replicas in the directory go offline, and the controller is notified through the store, as by
Kafka's brokers in ZooKeeper mode: with a node that has the broker's id. The controller then sends
LeaderAndIsr for all replicas of this broker, learns from the response which of them are offline, and moves
their leaders.

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
from ottla.storage.log_manager import LogManager

log = logging.getLogger(__name__)

_RETRY_S: Final = 1.0


class LogDirFailureHandler:
    """See the module. `on_no_online_dir` is called when no directory is online any more."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        logs: LogManager,
        replicas: ReplicaManager,
        store: MetadataStore,
        broker_id: int,
        on_no_online_dir: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._logs = logs
        self._replicas = replicas
        self._store = store
        self._broker_id = broker_id
        self._on_no_online_dir = on_no_online_dir
        self._notifying: asyncio.Task[None] | None = None
        self._pending = False
        logs.registry.on_dir_failed = self._failed

    def _failed(self, path: Path) -> None:
        """In the thread that got the error."""
        self._loop.call_soon_threadsafe(self._take_offline)

    def _take_offline(self) -> None:
        self._replicas.drop_failed_directories()
        if not self._logs.online_dirs():
            log.error("Shutdown broker because all log dirs have failed")
            self._on_no_online_dir()
            return
        self.notify_controller()

    def notify_controller(self) -> None:
        """Make the controller send LeaderAndIsr for all replicas of this broker."""
        self._pending = True
        if self._notifying is None or self._notifying.done():
            self._notifying = self._loop.create_task(self._notify())

    async def _notify(self) -> None:
        event = znodes.encode_log_dir_event(self._broker_id)
        while self._pending:
            self._pending = False
            try:
                await self._store.create(znodes.LOG_DIR_EVENT_PREFIX, event, sequential=True)
            except StoreUnavailable as error:
                log.warning("Cannot notify the controller of a failed log directory yet: %s", error)
                self._pending = True
                await asyncio.sleep(_RETRY_S)
            except StoreError:
                log.exception("Cannot notify the controller of a failed log directory")

    async def stop(self) -> None:
        self._logs.registry.on_dir_failed = lambda path: None
        if self._notifying is not None:
            self._notifying.cancel()
            await asyncio.gather(self._notifying, return_exceptions=True)
