"""A whole broker over the in-memory metadata store, in this process, with an admin client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from ottla.client.admin import AdminClient
from ottla.metadata.config import BrokerConfig
from ottla.metadata.memory import MemoryStore, MemoryTree
from ottla.server.assembly.broker import Broker, new_event_loop
from ottla.storage.log import Log

WAIT_S = 60.0
SETTINGS = {"broker.id": "0", "listeners": "PLAINTEXT://127.0.0.1:0"}


class RunningBroker:
    def __init__(self, broker: Broker, admin: AdminClient) -> None:
        self.broker = broker
        self.admin = admin

    def log(self, topic: str) -> Log:
        return self.broker.replication.replicas.partition(topic, 0).log

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():  # noqa: ASYNC110 (another task changes it)
                await asyncio.sleep(0.005)


Scenario = Callable[[RunningBroker], Coroutine[Any, Any, None]]


def run(
    path: Path, scenario: Scenario, tree: MemoryTree | None = None, settings: Mapping[str, str] | None = None
) -> None:
    """Run the scenario with a broker that has its logs in `path`, and stop the broker."""

    async def whole() -> None:
        config = BrokerConfig.from_properties({**SETTINGS, "log.dirs": str(path), **(settings or {})})
        broker = Broker(config, store=MemoryStore(tree or MemoryTree()))
        await broker.start()
        admin = AdminClient(bootstrap_servers=[("127.0.0.1", broker.endpoints[0].port)])
        try:
            await scenario(RunningBroker(broker, admin))
        finally:
            await admin.close()
            await broker.stop()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(whole())
