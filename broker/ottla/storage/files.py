"""File operations of storage: paths that cost little memory, atomic replacement, fsync.

Used by the logs' files, the checkpoints, meta.properties and partition.metadata. `write_atomically` and the
`sync_*` functions block.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path


class InternedPath:
    """The path of a file, stored as an interned directory and an interned name.

    A broker has tens of thousands of log files, and a Path costs some 300 bytes. Files of one log share the
    directory; files of unused logs share the name, as most of these logs begin at offset 0. Paths are
    computed on demand.
    """

    __slots__ = ("_directory", "_name")

    def set_path(self, path: str | Path) -> None:
        """Set the path, initially or after a rename."""
        directory, _, name = os.fspath(path).rpartition("/")
        self._directory = sys.intern(directory)
        self._name = sys.intern(name)

    @property
    def path(self) -> Path:
        return Path(self._directory, self._name)

    @property
    def path_str(self) -> str:
        """The path for system calls."""
        return f"{self._directory}/{self._name}"


def write_atomically(path: Path, text: str, *, sync: bool = True) -> None:
    """Replace the content of `path`: write a temporary file, fsync it, rename it, fsync the directory.

    Readers see the old or the new content. Without `sync`, a crash may leave the old content or, on some file
    systems, an empty file.
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


def sync_file_if_exists(path: Path) -> None:
    """fsync a file, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        sync_file(path)


def sync_file(path: str | Path) -> None:
    """fsync a file's content."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_directory(directory: Path) -> None:
    """fsync a directory: its created, renamed and removed entries."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
