"""`ottla log`: what it says of files that no broker would mind."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from ottla.cli.main import main
from ottla.protocol.records import Record, build_batch


def test_a_time_beyond_all_calendars_is_shown_as_it_is(tmp_path: Path) -> None:
    microseconds = 1_700_000_000_000_000
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(build_batch([Record(0, microseconds, None, b"v")]))
    described = CliRunner().invoke(main, ["log", "describe", str(tmp_path), "-o", "json"])
    assert described.exit_code == 0, described.output
    assert json.loads(described.stdout)[0]["last_time"] == str(microseconds)
    dumped = CliRunner().invoke(main, ["log", "dump", str(segment), "--records", "-o", "json"])
    assert dumped.exit_code == 0, dumped.output
    assert json.loads(dumped.stdout)[0]["batch"][0]["time"] == str(microseconds)
