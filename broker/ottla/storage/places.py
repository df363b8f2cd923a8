"""Where a file of a log lies, at the price of its name.

A broker has tens of thousands of these files, and a Path costs some 300 bytes: so files that are seldom asked
for their paths keep the name and share the directory's.
"""

from __future__ import annotations

import sys
from pathlib import Path


class Placed:
    """A file with a path."""

    __slots__ = ("_directory", "_name")

    @property
    def path(self) -> Path:
        return Path(self._directory, self._name)

    @path.setter
    def path(self, path: Path) -> None:
        self._directory = sys.intern(str(path.parent))
        self._name = path.name
