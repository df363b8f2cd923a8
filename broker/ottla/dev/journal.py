"""A journal of the in-memory metadata of a broker with a data folder: topics and all settings.

Used by ottla.dev.serve. Each change is a line of JSON, written before the response, so that it survives a
SIGKILL of the process (not a crash of the machine: nothing is synced). The file begins with the tree at the
broker's start, and each start writes a new file.

Invariants: nodes keep their versions and transaction ids, and later ones get higher ones (a broker's epoch is
one); ephemeral nodes end with the process; session ids are not reused.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ottla.metadata.memory import AppliedChange, MemoryTree
from ottla.metadata.store import Create, Delete, Operation, OperationResult, SetData, StoreError

FORMAT: Final = 1


class DamagedJournal(Exception):
    """The journal is corrupt; the message has the line."""


@contextmanager
def journaled_tree(path: Path, clock: Callable[[], int]) -> Iterator[MemoryTree]:
    """A MemoryTree that is restored from the journal at `path`, and writes its changes to it. Raises
    DamagedJournal, OSError."""
    tree = MemoryTree(clock)
    last_session = _restore(tree, path) if path.exists() else 0
    for session in range(1, last_session + 1):
        tree.end_session(session)
    tree.skip_sessions(last_session)
    fresh = path.with_suffix(".new")
    with fresh.open("w") as file:
        head = {"format": FORMAT, "last_session": last_session, **tree.dump()}
        file.write(json.dumps(head) + "\n")
    fresh.replace(path)
    with path.open("a", buffering=1) as journal:

        def write(change: AppliedChange) -> None:
            done = [_encoded(*each) for each in zip(change.operations, change.results, strict=True)]
            entry = [change.zxid, change.session, clock(), [each for each in done if each]]
            journal.write(json.dumps(entry) + "\n")

        tree.on_applied = write
        yield tree


def _restore(tree: MemoryTree, path: Path) -> int:
    """Read the journal into the tree; returns the last session id. Raises DamagedJournal."""
    lines = path.read_text().split("\n")[:-1]  # an incomplete last line had no response
    number = 1
    try:
        head = json.loads(lines[0])
        if head["format"] != FORMAT:
            raise ValueError(f"format {head['format']}")
        tree.load(head)
        last_session: int = head["last_session"]
        for line in lines[1:]:
            number += 1
            zxid, session, now_ms, operations = json.loads(line)
            tree.replay(zxid, session, now_ms, [_decoded(*each) for each in operations])
            last_session = max(last_session, session)
    except (AssertionError, LookupError, StoreError, TypeError, ValueError) as e:
        raise DamagedJournal(f"{path}, line {number}: {e}") from e
    return last_session


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
