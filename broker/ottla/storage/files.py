"""Small files that must be whole after a crash: written aside, synced, renamed, directory synced.

Called by the checkpoints, meta.properties and partition.metadata. Blocking: fsyncs.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_atomically(path: Path, text: str, *, sync: bool = True) -> None:
    """Replace `path` with `text`; readers see the old or the new file, never a mix.

    Without `sync` a crash may leave the old content (or, on some file systems, an empty file).
    """
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
    if sync:
        sync_directory(path.parent)


def sync_file_if_any(path: Path) -> None:
    """Make a file's content durable, unless it is gone."""
    with contextlib.suppress(FileNotFoundError):
        sync_file(path)


def sync_file(path: str | Path) -> None:
    """Make a file's content durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_directory(directory: Path) -> None:
    """Make creations, renames and removals in `directory` durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
