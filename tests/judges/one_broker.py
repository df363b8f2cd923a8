"""One broker over the in-memory store, in a child process: `with one_broker(directory) as broker`.

The process is `one_broker.py DATA_DIR READY_FILE [NAME=VALUE…]`, without ZooKeeper and Java. It writes its
port to READY_FILE once it serves, and stops in order on SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ottla.local.processes import ChildProcess, wait_until

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


class OneBroker(NamedTuple):
    """A running broker."""

    pid: int
    port: int
    """Of its first listener."""
    log: Path

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextmanager
def one_broker(directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[OneBroker]:
    """Runs the broker; at the end asserts that its log has no traceback and that it stops on SIGTERM."""
    ready, log = directory / "ready", directory / "broker.log"
    given = [f"{name}={text}" for name, text in (settings or {}).items()]
    command = [sys.executable, __file__, str(directory / "data"), str(ready), *given]
    broker = ChildProcess("broker", command, log=log)
    broker.start()
    try:
        assert wait_until(lambda: ready.exists() or not broker.running, timeout_s=120)
        assert ready.exists(), log.read_text()
        assert broker.pid is not None
        yield OneBroker(broker.pid, int(ready.read_text()), log)
        assert "Traceback" not in log.read_text(), log.read_text()
        assert broker.stop(timeout_s=60), "the broker must stop on SIGTERM"
        assert "stopped broker.id=0" in log.read_text()
    finally:
        broker.kill()


def main(data_dir: str, ready_file: Path, settings: Mapping[str, str]) -> None:
    """The child process: imports the broker here, since most importers of this module only start it."""
    from ottla import logs
    from ottla.metadata.config import BrokerConfig
    from ottla.metadata.memory import MemoryStore
    from ottla.server.assembly.broker import Broker, new_event_loop

    async def serve() -> None:
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

    logs.configure()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), dict(argument.split("=", 1) for argument in sys.argv[3:]))
