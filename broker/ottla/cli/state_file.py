"""A file that says how far a broker is, for probes that must cost nothing.

Called by `ottla broker --state-file`. One line: starting, recovering, ready or stopping. Written anew every
second by the broker's own event loop, so that a file that is old tells of a loop that hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

_INTERVAL_S = 1.0


@contextlib.asynccontextmanager
async def state_file(path: Path | None, phase: Callable[[], str]) -> AsyncIterator[None]:
    """Keep the file for as long as the context lasts, then remove it. None: no file."""
    if path is None:
        yield
        return
    writer = asyncio.get_running_loop().create_task(_keep(path, phase))
    try:
        yield
    finally:
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
        _remove(path)


async def _keep(path: Path, phase: Callable[[], str]) -> None:
    while True:
        _write(path, phase())
        await asyncio.sleep(_INTERVAL_S)


def _write(path: Path, phase: str) -> None:
    """Replace the file: a reader sees the line before or this one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.tmp")
    partial.write_text(f"{phase}\n")
    partial.replace(path)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
