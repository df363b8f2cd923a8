"""The job on a local Spark: its arithmetic on a table, and the whole of it on a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession
from revenue import VALUE, revenue, run

from ottla.client.blocking import Producer
from ottla.testing import DevBroker


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars.packages", "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    yield session
    session.stop()


def at(minute: int, second: int = 0) -> datetime:
    return datetime(2026, 3, 1, 12, minute, second)


def test_sums_by_minute_and_customer(spark: SparkSession) -> None:
    orders = spark.createDataFrame(
        [
            ("ada", 30, at(0)),
            ("ada", 5, at(0, 59)),
            ("ada", 1, at(1)),
            ("bob", 12, at(0)),
            ("bob", -3, at(0)),
        ],
        VALUE,
    )
    found = revenue(orders).orderBy("minute", "customer").collect()
    assert found == [
        Row(minute=at(0), customer="ada", amount=35, orders=2),
        Row(minute=at(0), customer="bob", amount=12, orders=1),
        Row(minute=at(1), customer="ada", amount=1, orders=1),
    ]


def test_each_order_is_counted_once(
    spark: SparkSession, ottla_broker: DevBroker, ottla_topic: str, tmp_path: Path
) -> None:
    def order(customer: str, amount: int, when: datetime) -> None:
        value = {"customer": customer, "amount": amount, "at": when.isoformat()}
        with Producer(bootstrap_servers=ottla_broker.bootstrap) as producer:
            producer.send(ottla_topic, json.dumps(value).encode()).result(30)

    def written() -> list[tuple[datetime, int]]:
        run(spark, ottla_broker.bootstrap, str(tmp_path), ottla_topic)
        rows = spark.read.parquet(f"{tmp_path}/data").orderBy("minute").collect()
        return [(row.minute, row.amount) for row in rows]

    order("ada", 30, at(0))
    order("ada", 5, at(0, 30))
    order("ada", 7, at(20))  # closes the minutes until 12:10
    assert written() == [(at(0), 35)]
    order("ada", 1, at(15))
    order("ada", 2, at(40))
    assert written() == [(at(0), 35), (at(15), 1), (at(20), 7)]
