"""Where a file of a log lies, at the price of its name.

A broker has tens of thousands of these files, and a Path costs some 300 bytes: so files that are seldom asked
for their paths keep the name and share the directory's. Most names are shared as well, for most logs that
nobody uses begin at 0.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


class Placed:
    """A file with a path."""

    __slots__ = ("_directory", "_name")

    def place(self, path: str | Path) -> None:
        """It lies there, or has moved there."""
        directory, _, name = os.fspath(path).rpartition("/")
        self._directory = sys.intern(directory)
        self._name = sys.intern(name)

    @property
    def path(self) -> Path:
        return Path(self._directory, self._name)

    @property
    def location(self) -> str:
        """The path, for system calls."""
        return f"{self._directory}/{self._name}"
