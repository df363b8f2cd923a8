"""`ottla-pipeline` itself: a job's life on a real broker and real Spark, seen from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.local.processes import wait_until
from ottla_pipeline.spark import JavaMissing, check_java
from tests.judges.one_broker import OneBroker, one_broker

# A job that only reads: what it is given, and a line for each batch.
JOB = '''
"""Reads topics and says how much."""
from ottla_pipeline.config.common import JobConfig, TopicsConfig

class Config(JobConfig):
    JOB = "count"
    source: TopicsConfig

CONFIG = Config

def start(context, config):
    def batch(records, number):
        context.echo(f"batch {number}: {records.count()}")
        if records.where("CAST(value AS STRING) = 'poison'").count():
            raise ValueError("poison was read")
    records = context.spark.readStream.format("kafka").options(**config.source_options(config.source)).load()
    writer = records.writeStream.foreachBatch(batch).option("checkpointLocation", config.checkpoint)
    return [writer.trigger(**config.trigger.write_options()).start()]
'''
RUN = """
import sys, types
from ottla_pipeline import command
module = types.ModuleType("count", "Reads topics and says how much.")
exec(open(sys.argv.pop(1)).read(), module.__dict__)
command.command_of(module, "count")()
"""


@pytest.fixture(scope="module")
def broker(quick_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneBroker]:
    try:
        check_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    with one_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


class Job:
    """The job's process on a topic of its own. Its lines are read as they come."""

    def __init__(self, folder: Path, bootstrap: str, *arguments: str, **changes: Any) -> None:
        script, config = folder / "count.py", folder / "count.yaml"
        script.write_text(JOB)
        config.write_text(
            json.dumps(
                {
                    "name": folder.name,
                    "kafka": {"bootstrap": bootstrap},
                    "checkpoint": str(folder / "checkpoint"),
                    "source": {"topics": [folder.name]},
                    "trigger": {"interval": "200 milliseconds"},
                    **changes,
                }
            )
        )
        command = [sys.executable, "-c", RUN, str(script), "--config", str(config), *arguments]
        self.errors = (folder / "errors").open("w+")
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self.errors.close()

    def line(self, beginning: str) -> str:
        """The rest of the next line that begins so."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(beginning):
                return line.removeprefix(beginning).strip()
        self._process.wait()
        self.errors.seek(0)
        raise AssertionError(f"no line {beginning!r}: {self.errors.read()[-3000:]}")

    def terminate(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        assert self._process.stdout is not None
        self._process.stdout.read()
        return self._process.wait()

    def said(self) -> str:
        self.errors.seek(0)
        return self.errors.read()


def produce(bootstrap: str, topic: str, count: int, value: str = "v") -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for _ in range(count):
        producer.produce(topic, value)
    assert producer.flush(60) == 0


def committed(bootstrap: str, group: str, topic: str) -> int:
    """The sum of a group's offsets in the two partitions of a topic, as librdkafka reads them."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        found = reader.committed([TopicPartition(topic, part) for part in range(2)], timeout=30)
        return sum(max(0, position.offset) for position in found)
    finally:
        reader.close()


def get(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def folder(tmp_path: Path, name: str) -> Path:
    found = tmp_path / name
    found.mkdir()
    return found


def test_a_job_publishes_its_progress_and_stops_on_sigterm(broker: OneBroker, tmp_path: Path) -> None:
    produce(broker.bootstrap, "told", 40)
    with Job(folder(tmp_path, "told"), broker.bootstrap, "--status-port", "0") as job:
        address = job.line("count: status at ")
        job.line("count: batch 0:")

        def status() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(get(address, "/status"))
            return found

        assert wait_until(lambda: status()["caughtUp"], timeout_s=60), status()
        produce(broker.bootstrap, "told", 5)
        assert wait_until(lambda: status()["records"] == 45, timeout_s=60), status()
        found = status()
        assert found["state"] == "Running"
        assert (found["job"], found["name"], found["lag"]) == ("count", "told", 0)
        assert found["lastBatch"]["records"] > 0
        assert found["applicationId"].startswith("local-")
        assert wait_until(lambda: committed(broker.bootstrap, "ottla-count-told", "told") == 45, timeout_s=60)
        metrics = get(address, "/metrics")
        assert 'ottla_pipeline_records_total{job_type="count",name="told"} 45.0' in metrics
        assert 'ottla_pipeline_lag_records{job_type="count",name="told"} 0.0' in metrics
        assert job.terminate() == 0


def test_an_available_now_job_ends_with_its_offsets_published(broker: OneBroker, tmp_path: Path) -> None:
    produce(broker.bootstrap, "whole", 30)
    with Job(folder(tmp_path, "whole"), broker.bootstrap, "--available-now", group="watched") as job:
        assert job.wait() == 0
        assert committed(broker.bootstrap, "watched", "whole") == 30


def test_an_error_in_a_batch_ends_the_job_with_its_reason(broker: OneBroker, tmp_path: Path) -> None:
    produce(broker.bootstrap, "bad", 1, "poison")
    with Job(folder(tmp_path, "bad"), broker.bootstrap) as job:
        assert job.wait() == 1
        assert "ValueError: poison was read" in job.said()


def test_an_error_in_the_file_is_found_before_spark_starts(broker: OneBroker, tmp_path: Path) -> None:
    with Job(folder(tmp_path, "odd"), broker.bootstrap, source={"topic": ["odd"]}) as job:
        assert job.wait() == 2
        assert "source.topic: unknown key; known are topics, topicPattern" in job.said()
        assert "WARN" not in job.said()


def test_brokers_that_do_not_respond_are_reported_at_once(tmp_path: Path) -> None:
    with Job(folder(tmp_path, "alone"), "127.0.0.1:9") as job:
        assert job.wait() == 2
        assert "count: no broker accepts connections (127.0.0.1:9: Connection refused)" in job.said()
