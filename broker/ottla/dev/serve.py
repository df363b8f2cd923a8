"""A broker for development, from its start to a signal. Called by `ottla dev`.

Half a second is what it may take until it serves, and nearly all of that is Python loading modules: the
garbage collector rests meanwhile, and what only ZooKeeper or metrics need is not loaded.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ottla.dev.control import Control
from ottla.dev.faults import Faults
from ottla.dev.journal import JournaledTree
from ottla.dev.settings import BROKER_ID, properties
from ottla.metadata.config import BrokerConfig
from ottla.metadata.memory import MemoryStore, MemoryTree
from ottla.server.assembly.broker import Broker, new_event_loop

_PARENT_CHECK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class DevOptions:
    data: Path
    """Logs, and metadata if it is kept; it exists."""
    keep: bool = False
    """Whether another broker may go on with `data`: without it, topics end with the process."""
    host: str = "127.0.0.1"
    port: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of server.properties; they win over ottla.dev.settings."""
    control: Path | None = None
    parent: int | None = None
    """A process with which this one ends."""


def run(options: DevOptions, ready: Callable[[str], None]) -> int:
    """Serve until SIGTERM or Ctrl-C; `ready` hears the bootstrap address. The exit code; raises ConfigError,
    StartupError, DamagedJournal, OSError."""
    config = BrokerConfig.from_properties(
        properties(options.host, options.port, options.data, options.settings)
    )
    tree = JournaledTree(options.data / "metadata.jsonl", _now_ms) if options.keep else MemoryTree(_now_ms)
    broker = Broker(config, store=MemoryStore(tree), clock=_now_ms)
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
            broker.requests.dispatcher.wrap(faults.around)
            control = Control(options.control, faults, bootstrap)
            await control.start()
        gc.freeze()  # what was loaded stays; nobody walks it again
        gc.enable()
        ready(bootstrap)
        if options.parent is not None:
            _end_with(options.parent, loop, stopping)
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


def _end_with(parent: int, loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    if os.getppid() != parent:
        stopping.set()
    else:
        loop.call_later(_PARENT_CHECK_S, _end_with, parent, loop, stopping)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
