"""docs/tutorials, followed literally: a simulation that finds a bug, and a year of operation in a minute."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages import BIN, DOCS, INSTALLED, Page, Reader, own_network


@pytest.mark.budget(40)  # fifteen seeds
def test_exactly_once(tmp_path: Path) -> None:
    with Reader(tmp_path / "home", environment=INSTALLED, path=[BIN]) as reader:
        reader.follow(Page(DOCS / "tutorials/exactly-once.md"))


@pytest.mark.budget(90)  # restarts of four brokers, one by one
def test_operate(tmp_path: Path) -> None:
    with (
        own_network() as prefix,
        Reader(tmp_path / "home", environment=INSTALLED, path=[BIN], prefix=prefix) as reader,
    ):
        reader.follow(Page(DOCS / "tutorials/operate.md"))
