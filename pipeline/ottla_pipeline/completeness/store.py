"""The ledger on disk: whole, after every batch, in a file of its own beside Spark's checkpoints.

Called by `watching`. Files are numbered; the last one counts, and it is there whole or not at all: it is
written under another name and renamed.
"""

from __future__ import annotations

from typing import Final

from ottla_pipeline.lake.files import Files

LEDGER: Final = "ledger"


class Store:
    def __init__(self, files: Files, checkpoint: str) -> None:
        self._files = files
        self._folder = f"{checkpoint}/{LEDGER}"
        self._files.make_directories(self._folder)
        self._last = max((int(name.removesuffix(".json")) for name in self._names()), default=-1)

    def _names(self) -> list[str]:
        return [name for name in self._files.names(self._folder) if name.endswith(".json")]

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:012d}.json"

    def load(self) -> str | None:
        return self._files.read(self._path(self._last)) if self._last >= 0 else None

    def save(self, text: str) -> None:
        part = f"{self._folder}/.part"
        self._files.write(part, text)
        self._files.rename(part, self._path(self._last + 1))
        self._last += 1
        if self._last > 0:
            self._files.remove(self._path(self._last - 1))
