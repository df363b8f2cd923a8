"""`ottla groups reset` and kafka-consumer-groups --reset-offsets choose the same offsets, and read the
files of each other."""

from __future__ import annotations

import asyncio
import csv
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from judges import needs_kafka_jars
from kafka_tools import Command, run_all
from one_broker import OneBroker, one_broker

from ottla.cli.main import main
from ottla.client.admin import AdminClient, NewTopic, TopicPartition

pytestmark = pytest.mark.timeout(300)
TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
HOUR_MS = 3_600_000
RECORDS = 10
COMMITTED = {TopicPartition("t", 0): 7, TopicPartition("t", 1): 2}
DAY = "2026-01-31"
FORMS: Sequence[tuple[Sequence[str], Sequence[str]]] = [
    (["--topic", "t", "--to-earliest"], ["t", "--to", "earliest"]),
    (["--topic", "t", "--to-latest"], ["t", "--to", "latest"]),
    (["--topic", "t", "--to-current"], ["t", "--to", "current"]),
    (["--topic", "t", "--to-offset", "4"], ["t", "--to", "4"]),
    (["--topic", "t", "--to-offset", "400"], ["t", "--to", "400"]),
    (["--topic", "t:0,1", "--shift-by", "-3"], ["t:0,1", "--shift-by", "-3"]),
    (["--topic", "t:0", "--shift-by", "2"], ["t:0", "--shift-by", "2"]),
    (["--all-topics", "--to-latest"], ["--all-topics", "--to", "latest"]),
    (["--topic", "t:0", "--topic", "u", "--to-earliest"], ["t:0", "u", "--to", "earliest"]),
    (["--topic", "t", "--by-duration", "PT4H30M"], ["t", "--by-duration", "PT4H30M"]),
    (["--topic", "t", "--by-duration", "P30D"], ["t", "--by-duration", "P30D"]),
    (["--topic", "u", "--to-datetime", f"{DAY}T05:30:00.000"], ["u", "--to", f"{DAY}T05:30:00.000"]),
    (
        ["--topic", "u", "--to-datetime", f"{DAY}T05:30:00.000+02:00"],
        ["u", "--to", f"{DAY}T05:30:00.000+02:00"],
    ),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneBroker]:
    """Topic t with a record an hour until now, u with one an hour of DAY (UTC), in each partition."""
    needs_kafka_jars()

    async def prepare(bootstrap: str) -> None:
        async with AdminClient(bootstrap_servers=bootstrap) as admin:
            (await admin.create_topics([NewTopic("t", 3, 1), NewTopic("u", 1, 1)])).raise_first()
            (await admin.alter_group_offsets("g", COMMITTED)).raise_first()

    with one_broker(tmp_path_factory.mktemp("broker")) as running:
        asyncio.run(prepare(running.bootstrap))
        producer = Producer({"bootstrap.servers": running.bootstrap})
        now_ms, day_ms = int(time.time() * 1000), 1_769_817_600_000
        for hour in range(RECORDS):
            for partition in range(3):
                ago = now_ms - (RECORDS - hour) * HOUR_MS
                producer.produce("t", b"v", partition=partition, timestamp=ago)
            producer.produce("u", b"v", partition=0, timestamp=day_ms + hour * HOUR_MS)
        assert producer.flush(60) == 0
        yield running


def ours(broker: OneBroker, *arguments: str) -> list[list[str]]:
    ran = CliRunner(env={"OTTLA_BOOTSTRAP": broker.bootstrap}).invoke(
        main, ["groups", "reset", "g", *arguments, "--export"]
    )
    assert ran.exit_code == 0, ran.output
    return sorted(csv.reader(ran.stdout.splitlines()))


def theirs(broker: OneBroker, *arguments: str) -> Command:
    common = ("--bootstrap-server", broker.bootstrap, "--group", "g", "--reset-offsets", "--export")
    return Command(TOOL, (*common, *arguments))


def rows(printed: str) -> list[list[str]]:
    return sorted(row for row in csv.reader(printed.splitlines()) if len(row) == 3)


def test_the_same_offsets(broker: OneBroker, tmp_path: Path) -> None:
    printed = run_all([theirs(broker, *form, "--dry-run") for form, _ in FORMS], tmp_path)
    for (form, ours_form), shown in zip(FORMS, printed, strict=True):
        assert rows(shown.out), (form, shown)
        assert ours(broker, *ours_form, "--dry-run") == rows(shown.out), form


def test_each_reads_the_others_file(broker: OneBroker, tmp_path: Path) -> None:
    file = tmp_path / "ours.csv"
    exported = ours(broker, "t", "--to", "3", "--dry-run")
    file.write_text("".join(f"{','.join(row)}\n" for row in exported))
    (shown,) = run_all([theirs(broker, "--from-file", str(file), "--dry-run")], tmp_path)
    assert rows(shown.out) == exported
    file.write_text(shown.out)
    assert ours(broker, "--from-file", str(file), "--dry-run") == exported
