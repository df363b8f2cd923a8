"""docs/tutorials/lake.md, followed literally: a Delta table, and an audit that names a deleted row."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages import BIN, DOCS, INSTALLED, Page, Reader, own_network, spark_environment


@pytest.mark.timeout(2400)
@pytest.mark.budget(120)  # four starts of Spark
def test_the_lake_and_its_audit(tmp_path: Path) -> None:
    environment = INSTALLED | spark_environment()
    with (
        own_network() as prefix,
        Reader(tmp_path / "home", environment=environment, path=[BIN], prefix=prefix) as reader,
    ):
        reader.follow(Page(DOCS / "tutorials/lake.md"))
