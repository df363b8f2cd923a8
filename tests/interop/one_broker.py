"""A broker over the in-memory store for a whole test module: `with one_broker(directory) as broker`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ottla.local.ports import wait_until
from ottla.local.processes import ChildProcess


class OneBroker(NamedTuple):
    pid: int
    port: int
    """Of its first listener."""
    log: Path

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextmanager
def one_broker(directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[OneBroker]:
    """At the end, nothing may have gone wrong in it, and it must go by itself."""
    ready, log = directory / "ready", directory / "broker.log"
    script = Path(__file__).with_name("single_broker.py")
    given = [f"{name}={text}" for name, text in (settings or {}).items()]
    command = [sys.executable, str(script), str(directory / "data"), str(ready), *given]
    broker = ChildProcess("broker", command, log=log)
    broker.start()
    try:
        assert wait_until(lambda: ready.exists() or not broker.running, timeout_s=120)
        assert ready.exists(), log.read_text()
        assert broker.pid is not None
        yield OneBroker(broker.pid, int(ready.read_text()), log)
        assert "Traceback" not in log.read_text(), log.read_text()
        assert broker.stop(timeout_s=60), "it must go on SIGTERM by itself"
        assert "stopped broker.id=0" in log.read_text()
    finally:
        broker.kill()
