"""The mirror's writer against a real broker, without Spark: killed at any moment, fenced, forgotten."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from ottla_pipeline.mirroring.syncs import OffsetSyncReader
from ottla_pipeline.mirroring.target import Limits, MirroredTopic, ReplicationPolicy, Target
from ottla_pipeline.mirroring.tasks import mirror_partition, split_transactions, worker_writers
from ottla_pipeline.mirroring.translation import Lineage
from ottla_pipeline.mirroring.writer import PartitionWriter, WriteFailed, Written
from tests.judges.mirror_clusters import create, read
from tests.judges.one_broker import OneBroker
from tests.selection import ROOT

pa = pytest.importorskip("pyarrow")
NUMBERS = count()
KILLS = 8
SEED = 20261122
BEGAN_MS = 1_700_000_000_000
SMALL = Limits(25)
Place = tuple[Target, MirroredTopic]


def rows(offsets: range, size: int = 10) -> list[pa.RecordBatch]:
    """Arrow batches as Spark hands them over: records of partition 0 whose value is their offset."""
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.int64()),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", headers),
        ]
    )
    result = []
    for start in range(offsets.start, offsets.stop, size):
        chunk = range(start, min(start + size, offsets.stop))
        made = [
            {
                "topic": "t",
                "partition": 0,
                "offset": n,
                "timestamp": 1_700_000_000_000 + n,
                "value": b"%d" % n,
            }
            for n in chunk
        ]
        result.append(pa.RecordBatch.from_pylist(made, schema=schema))
    return result


def a_target(bootstrap: str, name: str, limits: Limits = SMALL) -> Place:
    target = Target(
        name,
        (("bootstrap.servers", bootstrap),),
        ReplicationPolicy("east", "west"),
        f"{name}.syncs",
        limits,
    )
    return target, MirroredTopic("t", f"east.{name}", Lineage("cluster/topic", "target"), 1_048_588)


@pytest.fixture
def place(broker: OneBroker) -> Place:
    target, mirrored = a_target(broker.bootstrap, f"m{next(NUMBERS)}")
    create(broker.bootstrap, mirrored.target, 1)
    create(broker.bootstrap, target.syncs, 1, cleanup_policy="compact")
    return target, mirrored


Open = Callable[..., PartitionWriter]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Makes writers, and closes them and those of this process's tasks at the end."""
    made: list[PartitionWriter] = []

    def make(*place: Any) -> PartitionWriter:
        made.append(PartitionWriter(*place))
        return made[-1]

    yield make
    for writer in (*made, *worker_writers()._open.values()):
        writer.close()
    worker_writers.cache_clear()


def write(writer: PartitionWriter, offsets: range, limits: Limits = SMALL) -> Written:
    written = Written()
    for chunk in split_transactions(rows(offsets), limits):
        writer.write(chunk, written)
    return written


def there(broker: OneBroker, mirrored: MirroredTopic) -> list[int]:
    return [int(record.value or b"") for record in read(broker.bootstrap, mirrored.target)[0]]


def test_a_zombie_of_an_earlier_attempt_is_fenced_and_duplicates_nothing(
    broker: OneBroker, place: Place, opened: Open
) -> None:
    first, second = opened(*place, 0), opened(*place, 0)
    assert write(first, range(100)).records == 100
    # Another task has the same partition now, and all of it to write: it begins where the first one is.
    again = write(second, range(200))
    assert (again.skipped, again.records) == (100, 100)
    # The first one is still there, and knows of no second.
    zombie = write(first, range(100, 250))
    assert (zombie.skipped, zombie.records) == (100, 50)
    assert there(broker, place[1]) == list(range(250))
    assert (write(second, range(250)).records, write(second, range(260)).records) == (0, 10)
    assert there(broker, place[1]) == list(range(260))


def test_an_open_transaction_of_a_killed_writer_is_aborted_and_written_again(
    broker: OneBroker, place: Place, opened: Open
) -> None:
    first = opened(*place, 0)
    write(first, range(50))
    assert first._producer is not None
    first._producer.begin_transaction()
    first._produce(rows(range(50, 60))[0], [], [], last=True)
    first._producer.flush(30)
    assert write(opened(*place, 0), range(50, 75)).records == 25
    assert there(broker, place[1]) == list(range(75))


def test_the_position_is_kept_when_the_groups_offsets_have_expired(
    broker: OneBroker, place: Place, opened: Open
) -> None:
    write(opened(*place, 0), range(60))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.delete_consumer_groups([place[0].mirror]).values():
        future.result(30)
    again = write(opened(*place, 0), range(70))
    assert (again.skipped, again.records) == (60, 10)
    assert there(broker, place[1]) == list(range(70))


def test_every_offset_is_translated_to_the_records_position(
    broker: OneBroker, place: Place, opened: Open
) -> None:
    write(opened(*place, 0), range(100, 300))
    with OffsetSyncReader(dict(place[0].settings), place[0].syncs) as reader:
        table = reader.catch_up()
    # 25 records to a transaction (two whole batches of ten, in fact), and its marker behind them.
    assert [table.translate("t", 0, n) for n in (0, 100, 119, 120, 299, 300)] == [0, 0, 19, 21, 208, 209]


@pytest.mark.usefixtures("opened")
def test_a_task_reports_its_counts_and_rejects_records_of_two_partitions(
    broker: OneBroker, place: Place
) -> None:
    target, mirrored = place
    (first,) = mirror_partition(target, {"t": mirrored}, {})(rows(range(60)))
    (report,) = first.to_pylist()
    assert (report["topic"], report["partition"], report["records"], report["transactions"]) == (
        "t",
        0,
        60,
        3,
    )
    assert report["newest_ms"] == BEGAN_MS + 59
    owners = {("t", 0): report["worker"]}
    (again,) = mirror_partition(target, {"t": mirrored}, owners)(rows(range(40, 80)))
    assert (again.to_pylist()[0]["records"], again.to_pylist()[0]["skipped"]) == (20, 20)
    assert there(broker, mirrored) == list(range(80))
    mixed = rows(range(80, 90))[0]
    other = mixed.set_column(1, "partition", pa.array([1] * 10, pa.int32()))
    with pytest.raises(WriteFailed, match="needs its own task"):
        list(mirror_partition(target, {"t": mirrored}, owners)([mixed, other]))


def test_a_record_that_the_target_refuses_is_named(broker: OneBroker, place: Place, opened: Open) -> None:
    target, mirrored = place
    small = MirroredTopic("t", f"{mirrored.target}.small", mirrored.lineage, 100)
    create(broker.bootstrap, small.target, 1, max_message_bytes="100")
    batch = rows(range(1))[0]
    batch = batch.set_column(5, "value", pa.array([b"x" * 1000], pa.binary()))
    with pytest.raises(WriteFailed, match=rf"t-0 to {small.target} on west: .*MSG_SIZE_TOO_LARGE"):
        opened(target, small, 0).write([batch], Written())


def test_a_job_killed_at_any_moment_and_restarted_writes_each_record_once(
    broker: OneBroker, place: Place, tmp_path: Path
) -> None:
    """Each attempt is given everything from the beginning, and one before may still be there."""
    chance, total = random.Random(SEED), 30_000
    command = [
        sys.executable,
        "-m",
        "tests.interop.spark.test_pipeline_mirror_writer",
        broker.bootstrap,
        place[0].mirror,
        str(total),
    ]
    children: list[subprocess.Popen[str]] = []
    stopped_midway = 0
    try:
        for attempt in range(KILLS + 1):
            child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            children.append(child)
            assert child.stdout is not None
            assert child.stdout.readline() == "begun\n", "its first transaction is through"
            if attempt < KILLS:
                time.sleep(chance.uniform(0, 0.4))  # a kill at any moment
                # Now and then one is not killed but sleeps, and wakes up when another is at work.
                child.send_signal(signal.SIGSTOP if attempt % 4 == 3 else signal.SIGKILL)
                stopped_midway += child.poll() is None
                if attempt % 4 == 0 and attempt:
                    children[attempt - 1].send_signal(signal.SIGCONT)
        last = json.loads(children[-1].communicate(timeout=200)[0])
    finally:
        for child in children:
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
    assert stopped_midway
    assert last["skipped"], "those before had written some"
    assert there(broker, place[1]) == list(range(total))


def main() -> None:
    """A child of the test above: one attempt of a task."""
    bootstrap, name, total = sys.argv[1], sys.argv[2], int(sys.argv[3])
    written, limits = Written(), Limits(200)
    writer = PartitionWriter(*a_target(bootstrap, name, limits), 0)
    said = False
    for chunk in split_transactions(rows(range(total), 100), limits):
        writer.write(chunk, written)
        if not said:
            print("begun", flush=True)
            said = True
    print(json.dumps({"records": written.records, "skipped": written.skipped}), flush=True)


if __name__ == "__main__":
    main()
