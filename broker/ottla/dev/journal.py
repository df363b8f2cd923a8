"""A journal of the in-memory metadata of a broker with a data folder: topics and all settings.

Used by ottla.dev.serve. Each change is a line of JSON, written before the response, so that it survives a
SIGKILL of the process (not a crash of the machine: nothing is synced). The file begins with the tree at the
broker's start, and each start writes a new file.

Invariants: nodes keep their versions and transaction ids, and later ones get higher ones (a broker's epoch is
one); ephemeral nodes end with the process; session ids are not reused.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from ottla.metadata.memory import MemoryTree
from ottla.metadata.store import Create, Delete, Operation, OperationResult, SetData, StoreError

FORMAT: Final = 1


class DamagedJournal(Exception):
    """The journal is corrupt; the message has the line."""


class JournaledTree(MemoryTree):
    """A MemoryTree that is restored from a journal, and writes its changes to it."""

    def __init__(self, path: Path, clock: Callable[[], int]) -> None:
        """Raises DamagedJournal, OSError."""
        self._now_ms: int | None = None
        """The time of the change that is being replayed."""
        super().__init__(lambda: clock() if self._now_ms is None else self._now_ms)
        self._last_session = 0
        self._write: Callable[[str], object] | None = None
        if path.exists():
            self._read(path)
        for session in range(1, self._last_session + 1):
            self.end_session(session)
        self._sessions = itertools.count(self._last_session + 1)
        fresh = path.with_suffix(".new")
        with fresh.open("w") as file:
            head = {"format": FORMAT, "last_session": self._last_session, **self.dump()}
            file.write(json.dumps(head) + "\n")
        fresh.replace(path)
        self._write = path.open("a", buffering=1).write

    def apply(self, operations: Sequence[Operation], session: int) -> list[OperationResult]:
        results = super().apply(operations, session)
        if self._write is not None:
            done = [_encoded(each, result) for each, result in zip(operations, results, strict=True)]
            entry = [self._zxid, session, self._clock(), [each for each in done if each]]
            self._write(json.dumps(entry) + "\n")
        return results

    def _read(self, path: Path) -> None:
        lines = path.read_text().split("\n")[:-1]  # an incomplete last line had no response
        number = 1
        try:
            head = json.loads(lines[0])
            if head["format"] != FORMAT:
                raise ValueError(f"format {head['format']}")
            self.load(head)
            self._last_session = head["last_session"]
            for line in lines[1:]:
                number += 1
                zxid, session, self._now_ms, operations = json.loads(line)
                self._zxid = zxid - 1  # it increases by one for a failed change, too
                super().apply([_decoded(*each) for each in operations], session)
                self._last_session = max(self._last_session, session)
        except (AssertionError, LookupError, StoreError, TypeError, ValueError) as e:
            raise DamagedJournal(f"{path}, line {number}: {e}") from e
        self._now_ms = None


def _encoded(operation: Operation, result: OperationResult) -> list[Any]:
    """The JSON form of a change, with the final name of a sequential node; empty for an operation without
    a change."""
    if isinstance(operation, Create):
        return ["create", result, base64.b64encode(operation.data).decode(), operation.ephemeral]
    if isinstance(operation, SetData):
        return ["set", operation.path, base64.b64encode(operation.data).decode()]
    return ["delete", operation.path] if isinstance(operation, Delete) else []


def _decoded(kind: str, path: str, data: str = "", ephemeral: bool = False) -> Operation:
    if kind == "create":
        return Create(path, base64.b64decode(data), ephemeral)
    if kind == "set":
        return SetData(path, base64.b64decode(data))
    if kind == "delete":
        return Delete(path)
    raise ValueError(f"unknown change {kind}")
