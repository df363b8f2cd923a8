"""One broker over the in-memory store, in a process: `single_broker.py DATA_DIR READY_FILE [NAME=VALUE…]`.

No ZooKeeper, no Java. Writes its port to READY_FILE once it serves; stops in order on SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from ottla import logs
from ottla.metadata.config import BrokerConfig
from ottla.metadata.memory import MemoryStore
from ottla.server.assembly.broker import Broker, new_event_loop

SETTINGS = {
    "broker.id": "0",
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "num.partitions": "2",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "86400000",  # some tests write records of long ago
}


async def serve(data_dir: str, ready_file: Path, settings: dict[str, str]) -> None:
    properties = {**SETTINGS, "log.dirs": data_dir, **settings}
    broker = Broker(BrokerConfig.from_properties(properties), store=MemoryStore())
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    await broker.start()
    partial = ready_file.with_suffix(".partial")
    partial.write_text(str(broker.endpoints[0].port))
    partial.rename(ready_file)
    await stopping.wait()
    await broker.stop()


if __name__ == "__main__":
    logs.configure()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        given = dict(argument.split("=", 1) for argument in sys.argv[3:])
        runner.run(serve(sys.argv[1], Path(sys.argv[2]), given))
