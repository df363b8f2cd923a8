"""What test files here ask for: a replicated cluster, a Spark that is made for short lives."""

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


@pytest.fixture(scope="session")
def quick_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every Spark from here on, also of processes that are started, has a JVM made for short lives."""
    from tests.interop.sparks import write_defaults

    folder = tmp_path_factory.mktemp("spark-conf")
    write_defaults(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONF_DIR", str(folder))
        yield
