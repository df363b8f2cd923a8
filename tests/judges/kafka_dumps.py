"""The output of Apache Kafka's DumpLogSegments, parsed into rows."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.apache_kafka import run_tool

Row = dict[str, Any]
_FIELD = re.compile(r"(\w+): (\[[^\]]*\]|\S+)")


def dump(files: Sequence[Path], *options: str) -> dict[Path, list[Row]]:
    """A row for each line, by file; rows of records have an `offset` behind a bar, and `key` and `payload` as
    text."""
    names = ",".join(str(path) for path in files)
    done = run_tool("kafka.tools.DumpLogSegments", [*options, "--files", names])
    assert done.returncode == 0, done.stderr + done.stdout
    found: dict[Path, list[Row]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("Dumping "):
            rows = found[Path(line.removeprefix("Dumping "))] = []
        elif ": " in line and not line.startswith("Log starting offset"):
            rows.append(_row(line))
    return found


def _row(line: str) -> Row:
    facts, _, content = line.partition(" key: ") if line.startswith("|") else (line, "", "")
    payload: str | None = None
    if not content and " payload: " in facts and line.startswith("|"):
        facts, _, payload = facts.partition(" payload: ")
    row: Row = {name: _value(value) for name, value in _FIELD.findall(facts)}
    row["is_record"] = line.startswith("|")
    if content:
        key, separator, rest = content.partition(" payload: ")
        row["key"] = key
        payload = rest if separator else None
    row["payload"] = payload
    return row


def _value(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return text


def as_json(text: str | None) -> Any:
    return None if text is None else json.loads(text)
