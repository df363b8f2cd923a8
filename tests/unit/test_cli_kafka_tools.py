"""The documentation names commands and options of `ottla` that exist, and a reason where it names none."""

from __future__ import annotations

import pytest

from tests.kafka_page import PAGE, command_lines, examples, missing_of, rows


def test_every_command_line_on_the_page_exists() -> None:
    lines = command_lines()
    assert len(lines) > 100
    assert {line: missing for line in sorted(lines) if (missing := missing_of(line)) is not None} == {}


def test_every_example_exists() -> None:
    lines = examples(PAGE.parent / "command-line.md")
    assert len(lines) > 10
    assert {line: missing for line in sorted(lines) if (missing := missing_of(line)) is not None} == {}


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("ottla topics shrink", "shrink"),
        ("ottla topics list --no-such", "--no-such"),
        ("ottla topics grow T 3 4", "3 arguments"),
        ("ottla topics create T --partitions 3", None),
    ],
)
def test_the_check_finds_a_command_that_does_not_exist(line: str, missing: str | None) -> None:
    assert missing_of(line) == missing


def test_every_row_names_a_command_or_a_reason() -> None:
    for row in rows():
        assert row.kafka, row
        assert row.commands or not row.offered or "SIGTERM" in row.ottla, row
        assert len(row.ottla.removeprefix("not offered: ")) > 10, row
