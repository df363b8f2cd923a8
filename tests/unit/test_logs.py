"""A log record is one line, regardless of the values that clients send."""

from __future__ import annotations

import io
import logging
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla import logs

FORGED = "x\n2026-01-01 00:00:00,000 INFO    ottla.server: forged"
RECORD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (?:DEBUG|INFO|WARNING|ERROR) .*")
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202e]")


def written(
    name: str, message: str, *values: object, exc_info: object = None, stack: str | None = None
) -> str:
    record = logging.LogRecord(name, logging.INFO, __file__, 1, message, values, exc_info)  # type: ignore[arg-type]
    record.stack_info = stack
    return logs.LineFormatter(logs.LINE).format(record)


@given(st.text())
def test_a_value_of_any_characters_stays_within_the_line(value: str) -> None:
    line = written("ottla.server", "client %s came", value)
    assert RECORD.fullmatch(line)
    assert line.isprintable()
    assert line.encode()
    if value.isprintable():
        assert line.endswith(f"client {value} came"), "what can be shown is shown as it is"


@pytest.mark.parametrize(
    "control", ["\n", "\r", "\t", "\0", "\x1b[2J", "\x85", "\x9b", "\u2028", "\u202e", "\udc80"]
)
def test_control_characters_are_written_as_escapes(control: str) -> None:
    line = written("n", f"a{control}b")
    assert not CONTROLS.search(line)
    assert "a\\" in line


def test_lines_of_an_exceptions_message_do_not_look_like_records() -> None:
    try:
        raise ValueError(FORGED + "\r\x1b[2K")
    except ValueError:
        text = written("n", "it failed: %s", FORGED, exc_info=sys.exc_info(), stack=f"Stack:\n{FORGED}")
    first, *more = text.split("\n")
    assert RECORD.fullmatch(first)
    assert len(more) > 5
    assert all(line.startswith("    ") for line in more)
    assert any("Traceback (most recent call last)" in line for line in more)
    assert not any(CONTROLS.search(line) for line in more)


def test_a_process_uses_this_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.RootLogger(logging.WARNING)
    monkeypatch.setattr(logging, "root", root)
    file = tmp_path / "up.log"
    logs.configure("INFO", filename=file)
    root.info("%s", FORGED)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    for handler in root.handlers[:]:
        handler.close()
        root.removeHandler(handler)
    logs.configure()
    root.info("%s", FORGED)
    for text in (file.read_text(), sys.stderr.getvalue()):  # type: ignore[attr-defined]
        assert text.count("\n") == 1
        assert "x\\n2026" in text


@pytest.mark.parametrize("folder", ["broker", "operator", "pipeline"])
def test_no_command_configures_logging_otherwise(folder: str) -> None:
    sources = (Path(__file__).parents[2] / folder).rglob("*.py")
    found = [path.name for path in sources if "basicConfig" in path.read_text()]
    assert found == (["logs.py"] if folder == "broker" else [])
