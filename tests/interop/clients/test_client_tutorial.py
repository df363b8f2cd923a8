"""docs/tutorials/client.md, followed literally: each program prints what the page says."""

from __future__ import annotations

from pathlib import Path

from tests.pages import BIN, DOCS, INSTALLED, Page, Reader, own_network


def test_the_tutorial_works(tmp_path: Path) -> None:
    with (
        own_network() as prefix,
        Reader(tmp_path / "home", environment=INSTALLED, path=[BIN], prefix=prefix) as reader,
    ):
        reader.follow(Page(DOCS / "tutorials/client.md"))
