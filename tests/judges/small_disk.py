"""A small disk for one broker: a tmpfs that only the broker's mount namespace has.

The mount ends with the process that holds the namespace. Where mounts are not allowed (a plain container),
the size of each file that the broker writes is limited instead (RLIMIT_FSIZE): then "full" is EFBIG in place
of ENOSPC, and a disk cannot be made read-only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from ottla.local.processes import ChildProcess, wait_until

_LIMITED = (
    "import os, resource, sys; limit = int(sys.argv[1]); "
    "resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)); os.execv(sys.argv[2], sys.argv[2:])"
)
_ENVIRONMENT = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}


class SmallDisk:
    """A disk of `size_bytes` at `mount_point`, while the context manager is open."""

    def __init__(self, mount_point: Path, size_bytes: int) -> None:
        self.mount_point = mount_point
        self.size_bytes = size_bytes
        self._holder: ChildProcess | None = None

    def __enter__(self) -> Self:
        self.mount_point.mkdir(parents=True)
        ready = self.mount_point.with_name(self.mount_point.name + ".mounted")
        mount = f"mount -t tmpfs -o size={self.size_bytes} small '{self.mount_point}'"
        holder = ChildProcess(
            "small disk",
            ["unshare", "-m", "sh", "-c", f"{mount} && touch '{ready}' && exec sleep infinity"],
            log=self.mount_point.with_name(self.mount_point.name + ".log"),
        )
        try:
            holder.start()
            wait_until(lambda: ready.exists() or not holder.running, timeout_s=60, poll_s=0.05)
        except OSError:  # no such tool
            return self
        if ready.exists():
            self._holder = holder
        else:
            holder.kill()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._holder is not None:
            self._holder.kill()

    @property
    def is_mounted(self) -> bool:
        return self._holder is not None

    def prefix(self, *, limited: bool = True) -> tuple[str, ...]:
        """The command prefix that runs a command with this disk; without `limited`, with a large one."""
        if self._holder is not None:
            return ("nsenter", "-t", str(self._holder.pid), "-m", "--")
        return (sys.executable, "-c", _LIMITED, str(self.size_bytes)) if limited else ()

    def enlarge(self, size_bytes: int) -> None:
        self._remount(f"size={size_bytes}")

    def make_read_only(self, yes: bool) -> None:
        self._remount("ro" if yes else "rw")

    def _remount(self, option: str) -> None:
        if self._holder is not None:
            command = ["mount", "-o", f"remount,{option}", str(self.mount_point)]
            subprocess.run(
                [*self.prefix(), *command], check=True, capture_output=True, timeout=60, env=_ENVIRONMENT
            )
