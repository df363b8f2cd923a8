"""examples/spark-job, as its user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages import run_example, spark_environment


@pytest.mark.timeout(900)
@pytest.mark.budget(60)  # a Spark of its own
def test_the_suite_of_the_example_passes(tmp_path: Path) -> None:
    run_example("spark-job", tmp_path, spark_environment())
