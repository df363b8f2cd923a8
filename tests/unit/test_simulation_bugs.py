"""The planted bugs of `tests.simulation_bugs`: each applies to the source, and the simulation finds some of
them again."""

from pathlib import Path

import pytest

from tests.simulation_bugs.catalogue import BUGS, Bug
from tests.simulation_bugs.planting import ROOT, copy_source, edited, plant, search
from tests.simulation_bugs.table import TABLE, page, read_rows

pytestmark = pytest.mark.budget(5)

FOUND_QUICKLY = (
    "high-watermark-before-fetch",
    "markers-of-one-partition-only",
    "generation-not-persisted",
    "aborted-transactions-not-listed",
)
"""Bugs that nearly every seed finds within seconds."""
SEEDS = 10
"""From the recorded one on: a change of the broker changes what happens under a seed."""


@pytest.mark.parametrize("bug", BUGS.values(), ids=str)
def test_a_planted_bug_applies(bug: Bug) -> None:
    for path, text in edited(bug, ROOT).items():
        compile(text, str(path), "exec")


def test_the_page_describes_the_catalogue() -> None:
    assert TABLE.read_text(encoding="utf-8") == page(read_rows())


@pytest.mark.parametrize("name", FOUND_QUICKLY)
def test_the_simulation_finds_a_planted_bug(name: str, tmp_path: Path) -> None:
    bug, row = BUGS[name], read_rows()[name]
    copy_source(tmp_path)
    plant(bug, tmp_path)
    found = search(tmp_path, bug, range(row.seed, row.seed + SEEDS), limit_s=120)
    assert found.violation
