"""A lake for one test: two topics, a configuration for one of the sinks, and the ids that were produced.

Tests read it without Spark: Parquet by pyarrow and the manifest, Delta by deltalake.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from ottla_pipeline.config.common import validate
from ottla_pipeline.jobs import lake
from ottla_pipeline.lake.config import LakeConfig
from ottla_pipeline.lake.manifest import committed_files
from ottla_pipeline.running import JobContext

# Settings for the small tables of tests.
SMALL = {"spark.sql.shuffle.partitions": "1", "spark.databricks.delta.snapshotPartitions": "1"}
FIELDS = "id STRING, event_time TIMESTAMP, n INT, tags ARRAY<STRING>"


def create_topics(bootstrap: str, topics: tuple[str, ...], partitions: int = 2) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, partitions, 1) for topic in topics]).values():
        future.result(90)


@dataclass
class Line:
    """Two topics, the folders of a job on them, and the ids that were produced."""

    bootstrap: str
    topics: tuple[str, ...]
    folder: Path
    sink: str
    changes: dict[str, Any] = field(default_factory=dict)
    produced: list[str] = field(default_factory=list)

    def raw(self, **changes: Any) -> dict[str, Any]:
        """The configuration, as in a file."""
        return {
            "name": "lines",
            "kafka": {"bootstrap": self.bootstrap},
            "source": {"topics": list(self.topics)},
            "format": {"type": "json", "fields": FIELDS},
            "event": {"id": "id", "time": "event_time"},
            "sink": {
                "type": self.sink.partition("-")[0],
                "path": str(self.folder / "lake"),
                "deadLetters": str(self.folder / "dead"),
                **({"tables": "one"} if self.sink == "delta-one" else {}),
            },
            "checkpoint": str(self.folder / "checkpoint"),
            "trigger": {"availableNow": True},
            **self.changes,
            **changes,
        }

    def config(self, **changes: Any) -> LakeConfig:
        return validate(self.raw(**changes), LakeConfig, "lake.yaml")

    def write_config(self, **changes: Any) -> Path:
        path = self.folder / "lake.yaml"
        path.write_text(json.dumps(self.raw(**changes)))
        return path

    def land(self, spark: SparkSession, **changes: Any) -> list[str]:
        """Runs the job over all available records; returns its output."""
        said: list[str] = []
        (query,) = lake.start(JobContext(spark, said.append), self.config(**changes))
        query.awaitTermination(280)
        assert not query.isActive
        assert query.exception() is None
        return said

    def send(self, topic: str, values: list[bytes | None], **more: Any) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all", "enable.idempotence": True})
        for value in values:
            producer.produce(topic, value, b"key", **more)
        assert producer.flush(90) == 0

    def produce(self, numbers: range, *, day: int = 1, **more: Any) -> None:
        """Produces valid events, alternating between the topics, one an hour."""
        for number in numbers:
            self.produced.append(f"e{number}")
        for at, topic in enumerate(self.topics):
            mine = [number for number in numbers if number % len(self.topics) == at]
            times = (f"2013-01-{day:02}T{number % 24:02}:00:00Z" for number in mine)
            bodies = [
                {"id": f"e{number}", "event_time": time, "n": number, **more}
                for number, time in zip(mine, times, strict=True)
            ]
            self.send(topic, [json.dumps(body).encode() for body in bodies])

    # -- What is there, by readers that are not Spark --

    def tables(self) -> list[Path]:
        root = self.folder / "lake"
        if self.sink == "delta":
            return sorted(path for path in root.iterdir() if (path / "_delta_log").is_dir())
        return [root] if root.exists() else []

    def rows(self) -> list[dict[str, Any]]:
        if self.sink == "parquet":
            return parquet_rows(self.folder / "lake")
        return [row for path in self.tables() for row in DeltaTable(path).to_pyarrow_table().to_pylist()]

    def ids(self) -> list[str]:
        return sorted(row["id"] for row in self.rows())

    def dead(self) -> list[dict[str, Any]]:
        path = self.folder / "dead"
        if self.sink != "parquet":
            return DeltaTable(path).to_pyarrow_table().to_pylist() if path.exists() else []
        if not list(path.glob("topic=*/*.parquet")):
            return []
        found = ds.dataset(str(path), format="parquet", partitioning="hive", ignore_prefixes=["_", "."])
        rows: list[dict[str, Any]] = found.to_table().to_pylist()
        return rows

    def complete(self) -> None:
        """Asserts that every produced id is in the lake once."""
        assert self.ids() == sorted(self.produced)


def parquet_rows(lake: Path) -> list[dict[str, Any]]:
    """The rows by the manifest; a manifest that a compaction replaced is read again, as the manual says. A
    column that a file lacks is null."""
    while True:
        rows: list[dict[str, Any]] = []
        try:
            for file in committed_files(lake):
                parts: dict[str, Any] = dict(p.split("=", 1) for p in Path(file).parts if "=" in p)
                parts["event_date"] = date.fromisoformat(parts["event_date"])
                rows += [row | parts for row in pq.ParquetFile(file).read().to_pylist()]
        except FileNotFoundError:
            continue
        names = {name: None for row in rows for name in row}
        return [names | row for row in rows]
