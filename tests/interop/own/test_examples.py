"""examples/, as their users run them: `pytest` in a copy of the folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages import run_example


@pytest.mark.parametrize("name", ["exactly-once-consumer", "fastapi-orders", "pytest-suite"])
def test_the_suite_of_an_example_passes(name: str, tmp_path: Path) -> None:
    run_example(name, tmp_path)
