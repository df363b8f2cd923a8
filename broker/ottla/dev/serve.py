"""Runs a broker for development from its start to a signal. Called by `ottla dev`.

The start may take half a second, most of which is the import of modules: the garbage collector is disabled
meanwhile, and modules for ZooKeeper and metrics are not imported.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ottla.dev.control import Control
from ottla.dev.faults import Faults
from ottla.dev.journal import journaled_tree
from ottla.metadata.config import BrokerConfig
from ottla.metadata.memory import MemoryStore, MemoryTree
from ottla.ports import Ports
from ottla.server.assembly.broker import Broker, new_event_loop

BROKER_ID: Final = 0
SETTINGS: Final = {
    "broker.id": str(BROKER_ID),
    "controlled.shutdown.enable": "false",  # there is no other broker
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
}
_PARENT_CHECK_S: Final = 0.5

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DevOptions:
    """The options of `ottla dev`."""

    data: Path
    """The existing folder for logs, and for metadata if `keep`."""
    keep: bool = False
    """Whether metadata is kept for the next run."""
    host: str = "127.0.0.1"
    port: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of server.properties; they override SETTINGS."""
    control: Path | None = None
    parent: int | None = None
    """The broker stops when this is no longer its parent process."""


def properties(host: str, port: int, data: Path, given: Mapping[str, str]) -> dict[str, str]:
    """The settings of the broker: Kafka's defaults with SETTINGS, listening on `host` and `port` (0: any),
    with logs under `data`. `given` overrides them."""
    return {**SETTINGS, "listeners": f"PLAINTEXT://{host}:{port}", "log.dirs": str(data / "logs"), **given}


def run(options: DevOptions, ready: Callable[[str], None]) -> int:
    """Serve until SIGTERM or Ctrl-C. `ready` is called with the bootstrap address. Returns the exit code;
    raises ConfigError, StartupError, DamagedJournal, OSError."""
    config = BrokerConfig.from_properties(
        properties(options.host, options.port, options.data, options.settings)
    )
    for warning in config.warnings:
        log.warning("%s", warning)
    ports = Ports()
    clock = ports.clock.wall_ms
    journal = options.data / "metadata.jsonl"
    with journaled_tree(journal, clock) if options.keep else nullcontext(MemoryTree(clock)) as tree:
        broker = Broker(config, store=MemoryStore(tree), ports=ports)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(_serve(broker, options, ready))


async def _serve(broker: Broker, options: DevOptions, ready: Callable[[str], None]) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    control: Control | None = None
    try:
        await broker.start()
        endpoint = broker.endpoints[0]
        bootstrap = f"{endpoint.host}:{endpoint.port}"
        if options.control is not None:
            faults = Faults(BROKER_ID)
            broker.requests.dispatcher.wrap(faults.wrap)
            control = Control(options.control, faults, bootstrap)
            await control.start()
        gc.freeze()  # imported modules are permanent
        gc.enable()
        ready(bootstrap)
        if options.parent is not None:
            _stop_with_parent(options.parent, loop, stopping)
        died = loop.create_task(broker.wait_failed())
        stop_wanted = loop.create_task(stopping.wait())
        done, waiting = await asyncio.wait({died, stop_wanted}, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        return 1 if died in done else 0
    finally:
        if control is not None:
            await control.stop()
        await broker.stop()


def _stop_with_parent(parent: int, loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    if os.getppid() != parent:
        stopping.set()
    else:
        loop.call_later(_PARENT_CHECK_S, _stop_with_parent, parent, loop, stopping)
