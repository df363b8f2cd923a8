"""Fixtures of the interop tests: brokers, a registry, Apache Kafka, a fast-starting Spark.

Files with other needs override fixtures by name. Imports wait for the first use: Spark's are slow.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from ottla.local.cluster import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.judges.one_broker import OneBroker
    from tests.judges.registries import Registry


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[LocalCluster]:
    """Three brokers; groups form without delay and have few partitions, so that tests are quick. A file may
    add settings: `CLUSTER`."""
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "4",
        "log.retention.check.interval.ms": "86400000",  # some tests write records of long ago
        **getattr(request.module, "CLUSTER", {}),
    }
    with LocalCluster(tmp_path_factory.mktemp("cluster"), settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneBroker]:
    """One broker of ours, in a process, without ZooKeeper."""
    from tests.judges.one_broker import one_broker

    with one_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="module")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The broker's address, or that of another cluster in OTTLA_PIPELINE_BOOTSTRAP (Apache Kafka's, for
    example)."""
    elsewhere = os.environ.get("OTTLA_PIPELINE_BOOTSTRAP")
    return elsewhere or request.getfixturevalue("broker").bootstrap


@pytest.fixture(scope="module")
def registry(broker: OneBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    from tests.judges.registries import Registry

    with Registry(broker.bootstrap, tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="module")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The bootstrap address of one Apache Kafka broker."""
    from bench.apache_kafka import KafkaBroker
    from ottla.local.zookeeper import EmbeddedZooKeeper
    from tests.judges.one_broker import SETTINGS
    from tests.oracles import needs_kafka_jars

    needs_kafka_jars()
    directory = tmp_path_factory.mktemp("apache")
    names = [name for name in SETTINGS if name.startswith(("transaction.", "offsets."))]
    settings = {"num.partitions": "3", **{name: SETTINGS[name] for name in names}}
    zookeeper = EmbeddedZooKeeper(directory / "zookeeper")
    zookeeper.start()
    broker = KafkaBroker(directory / "kafka", zookeeper.connect, settings=settings)
    try:
        broker.start()
        yield broker.bootstrap
    finally:
        broker.stop()
        zookeeper.stop()


@pytest.fixture
def group() -> str:
    """The name of a consumer group for one test."""
    return f"g-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def spark(quick_spark: None, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A session with the file's settings, `SPARK`; later ones override earlier ones."""
    from tests.judges.sparks import session_of

    with session_of(*request.module.SPARK) as session:
        yield session
