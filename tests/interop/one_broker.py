"""A broker over the in-memory store for a whole test module: `with one_broker(directory) as bootstrap`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ottla.local.ports import wait_until
from ottla.local.processes import ChildProcess


@contextmanager
def one_broker(directory: Path, *settings: str) -> Iterator[str]:
    """Its address; `settings` are NAME=VALUE. At the end, nothing may have gone wrong in it, and it must go
    by itself."""
    ready = directory / "ready"
    script = Path(__file__).with_name("single_broker.py")
    log = directory / "broker.log"
    broker = ChildProcess(
        "broker", [sys.executable, str(script), str(directory / "data"), str(ready), *settings], log=log
    )
    broker.start()
    try:
        assert wait_until(lambda: ready.exists() or not broker.running, timeout_s=120)
        assert ready.exists(), log.read_text()
        yield f"127.0.0.1:{ready.read_text()}"
        assert "Traceback" not in log.read_text(), log.read_text()
        assert broker.stop(timeout_s=60), "it must go on SIGTERM by itself"
        assert "stopped broker.id=0" in log.read_text()
    finally:
        broker.kill()
