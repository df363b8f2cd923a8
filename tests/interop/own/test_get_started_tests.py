"""docs/get-started/tests.md, followed literally: from an empty environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages import DOCS, Page, Reader, empty_environment
from tests.selection import ROOT


@pytest.mark.budget(40)  # half of it is an installation
def test_a_suite_with_a_real_broker(tmp_path: Path) -> None:
    with Reader(tmp_path / "home", folder=ROOT, environment=empty_environment()) as reader:
        reader.follow(Page(DOCS / "get-started/tests.md"))
