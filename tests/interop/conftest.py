"""One replicated cluster for the tools that are tried on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.local.cluster import LocalCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers; groups form without delay and have few partitions, so that tests are quick."""
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "4",
        "log.retention.check.interval.ms": "86400000",  # some tests write records of long ago
    }
    with LocalCluster(tmp_path_factory.mktemp("cluster"), settings=settings) as running:
        yield running
