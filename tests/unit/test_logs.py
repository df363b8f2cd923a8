"""A log record is one line, regardless of the values that clients send."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
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


def formatted(style: str, name: str, message: str, *values: object, **more: object) -> str:
    exc_info = more.pop("exc_info", None)
    record = logging.LogRecord(name, logging.INFO, __file__, 1, message, values, exc_info)  # type: ignore[arg-type]
    record.created = 1_795_000_000.25
    vars(record).update(more)
    return logs.FORMATTERS[style]().format(record)


def test_a_record_is_a_line_of_keys_and_values() -> None:
    line = formatted("logfmt", "ottla.server", "client %s came", "c 1", fields={"api": "Fetch", "who": 'a"b'})
    assert line == (
        'time=2026-11-18T11:06:40.250Z level=INFO logger=ottla.server message="client c 1 came" '
        'api=Fetch who="a\\"b"'
    )


def test_a_record_is_a_json_object() -> None:
    line = formatted("json", "ottla.server", "client %s came", "c 1", fields={"bytes": 7})
    assert json.loads(line) == {
        "time": "2026-11-18T11:06:40.250Z",
        "level": "INFO",
        "logger": "ottla.server",
        "message": "client c 1 came",
        "bytes": 7,
    }


def test_fields_follow_the_message_of_a_text() -> None:
    line = formatted("text", "ottla.server", "done", fields={"api": "Fetch", "client": "a b"})
    assert line.endswith('ottla.server: done api=Fetch client="a b"')


@pytest.mark.parametrize("style", ["json", "logfmt"])
@given(value=st.text())
def test_whatever_clients_send_stays_within_the_line_of_keys(style: str, value: str) -> None:
    line = formatted(style, "n", "%s", value, fields={"client": value})
    assert line.isprintable()
    if style == "json":
        found = json.loads(line)
        assert found["message"] == found["client"] == value


@pytest.mark.parametrize("style", ["json", "logfmt"])
def test_an_exception_is_one_value(style: str) -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        line = formatted(style, "n", "it failed", exc_info=sys.exc_info())
    assert "\n" not in line
    assert line.isprintable()
    assert "ValueError: x" in line


@pytest.mark.parametrize(("chosen", "first"), [("json", "{"), ("logfmt", "time="), ("", "20"), ("xml", "20")])
def test_the_environment_chooses_the_format(chosen: str, first: str, tmp_path: Path) -> None:
    code = "import logging; from ottla import logs; logs.configure(); logging.getLogger('n').info('hello')"
    environment = {**os.environ, logs.FORMAT_VARIABLE: chosen}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.splitlines()[-1].startswith(first)
    assert ("OTTLA_LOG_FORMAT=xml: it must be text, logfmt, json" in done.stderr) == (chosen == "xml")
