"""docs/get-started/laptop.md, followed literally: the first record, a cluster, Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages import DOCS, Page, Reader, empty_environment, own_network, spark_environment
from tests.selection import ROOT


@pytest.mark.timeout(1800)
@pytest.mark.budget(60)  # an installation, a broker, a cluster and Spark
def test_the_first_record_and_a_cluster_with_spark(tmp_path: Path) -> None:
    environment = empty_environment() | spark_environment()
    with (
        own_network() as prefix,
        Reader(tmp_path / "home", folder=ROOT, environment=environment, prefix=prefix) as reader,
    ):
        reader.follow(Page(DOCS / "get-started/laptop.md"))
