"""What appears after a consumer has subscribed, with auto.offset.reset=latest: on a real broker, under load,
beside Kafka's own consumer, which skips what is written before it has heard of a partition."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ottla.client import blocking, errors
from ottla.client.admin import TopicPartition
from ottla.local.processes import wait_until
from ottla.testing import DevBroker
from tests.judges.java_member import java_member
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(300)

WAIT_S = 60.0
OLD, ALL = 2, 5
"""Partitions before, and after."""


@pytest.fixture(scope="module")
def shared() -> Iterator[DevBroker]:
    with DevBroker({"auto.create.topics.enable": "false"}) as broker:
        yield broker
        assert "Traceback" not in broker.log_tail(1000), broker.log_tail(1000)


@pytest.fixture
def topic(shared: DevBroker, request: pytest.FixtureRequest) -> str:
    name = f"t-{abs(hash(request.node.name)) % 10**8}"
    shared.create_topic(name, partitions=OLD)
    return name


def write(broker: DevBroker, topic: str, *partitions: int, count: int = 10) -> None:
    with blocking.Producer(bootstrap_servers=broker.bootstrap) as producer:
        for partition in partitions:
            for number in range(count):
                producer.send(topic, b"%d" % number, partition=partition)


def add_partitions(broker: DevBroker, topic: str, count: int = ALL) -> None:
    with blocking.AdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_partitions({topic: count}).raise_first()


def created(broker: DevBroker, topic: str) -> bool:
    """Not while the topic of the name is still being deleted."""
    try:
        broker.create_topic(topic, partitions=OLD)
    except errors.TopicAlreadyExistsError:
        return False
    return True


class Reader:
    """A consumer of ours that polls in a thread of its own."""

    def __init__(self, broker: DevBroker, group: str, **settings: Any) -> None:
        topics = settings.pop("topics", ())
        pattern = settings.pop("pattern", None)
        self.found: list[tuple[str, int, int]] = []
        self._ending = threading.Event()
        self.consumer = blocking.Consumer(
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            auto_offset_reset="latest",
            heartbeat_interval_ms=200,
            **{"metadata_max_age_ms": 500, **settings},
        )
        self.consumer.subscribe(topics, pattern=pattern)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with self.consumer:
            while not self._ending.is_set():
                for records in self.consumer.poll(0.05).values():
                    self.found += [(record.topic, record.partition, record.offset) for record in records]

    def owns(self, *partitions: tuple[str, int]) -> bool:
        """And has a position in each, which a lag tells."""
        wanted = {TopicPartition(*each) for each in partitions}
        measured = {
            (m.tags["topic"], int(m.tags["partition"]))
            for m in self.consumer.measurements()
            if m.name == "records-lag"
        }
        return self.consumer.assignment() == wanted and measured >= wanted

    def stop(self) -> None:
        self._ending.set()
        self._thread.join()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def until(condition: Callable[[], bool]) -> None:
    assert wait_until(condition, timeout_s=WAIT_S)


def places(topic: str, partitions: range | list[int]) -> list[tuple[str, int]]:
    return [(topic, number) for number in partitions]


def test_all_records_of_added_partitions_are_read_under_load_and_java_skips_some(
    shared: DevBroker, topic: str, tmp_path: Path
) -> None:
    needs_kafka_jars()
    write(shared, topic, *range(OLD))
    with ExitStack() as ending:
        readers = [ending.enter_context(Reader(shared, "ours", topics=[topic])) for _ in range(2)]
        as_java = ending.enter_context(
            Reader(shared, "as-java", topics=[topic], auto_offset_reset_new_partitions="latest")
        )
        java = ending.enter_context(
            java_member(
                tmp_path,
                shared.bootstrap,
                topic,
                auto_offset_reset="latest",
                metadata_max_age_ms=2000,
                heartbeat_interval_ms=200,
            )
        )
        java.wait_for("owns", "0,1")
        until(lambda: as_java.owns(*places(topic, range(OLD))))
        until(lambda: {len(reader.consumer.assignment()) for reader in readers} == {1})
        until(lambda: all(reader.owns(*reader.consumer.assignment()) for reader in readers))
        add_partitions(shared, topic)
        sent = 0
        with blocking.Producer(bootstrap_servers=shared.bootstrap) as producer:
            while java.owned != set(range(ALL)) or not as_java.owns(*places(topic, range(ALL))):
                futures = [producer.send(topic, b"x", partition=number) for number in range(ALL)]
                for future in futures:
                    future.result(WAIT_S)
                sent += 1
                assert sent < 100_000
        added = set(range(OLD, ALL))
        expected = {(topic, number, offset) for number in added for offset in range(sent)}

        def found(reader: Reader) -> list[tuple[str, int, int]]:
            return [place for place in reader.found if place[1] in added]

        until(lambda: len(found(readers[0])) + len(found(readers[1])) >= len(expected))
        assert sorted(found(readers[0]) + found(readers[1])) == sorted(expected), "each once"
        write(shared, topic, *added, count=1)
        until(lambda: {place[1] for place in found(as_java) if place[2] == sent} == added)
        until(lambda: sum(f"record {n} {sent} " in line for line in java_lines(tmp_path) for n in added) == 3)
        skipped = {
            "Kafka's": min(int(line.split()[1]) for line in java.lines("record") if int(line[0]) in added),
            "ours, as Kafka's": min(place[2] for place in found(as_java)),
        }
        print("the first record that was read of partitions with", sent, skipped)
        assert all(first > 0 for first in skipped.values()), skipped


def java_lines(directory: Path) -> list[str]:
    return (directory / "member-0.out").read_text().splitlines()


def test_a_topic_that_a_pattern_finds_later_is_read_from_its_first_record(shared: DevBroker) -> None:
    shared.create_topic("found-before", partitions=1)
    write(shared, "found-before", 0)
    with Reader(shared, "pattern", pattern="found-.*") as reader:
        until(lambda: reader.owns(("found-before", 0)))
        shared.create_topic("found-later", partitions=1)
        write(shared, "found-later", 0)
        until(lambda: len(reader.found) >= 10)
        assert reader.found == [("found-later", 0, offset) for offset in range(10)]


def test_a_topic_that_does_not_exist_yet(shared: DevBroker) -> None:
    with Reader(shared, "early", topics=["not-there-yet"]) as reader:
        until(lambda: "not-there-yet" in reader.consumer._client._runtime.cluster.topics)
        shared.create_topic("not-there-yet", partitions=1)
        write(shared, "not-there-yet", 0)
        until(lambda: len(reader.found) == 10)


def test_a_restarted_instance_reads_records_added_meanwhile(shared: DevBroker, topic: str) -> None:
    write(shared, topic, *range(OLD))
    with Reader(shared, "again", topics=[topic]) as reader:
        until(lambda: reader.owns(*places(topic, range(OLD))))
    add_partitions(shared, topic)
    write(shared, topic, *range(ALL))
    with Reader(shared, "again", topics=[topic]) as reader:
        until(lambda: len(reader.found) >= 10 * ALL)
        expected = [(topic, number, 10 + offset) for number in range(OLD) for offset in range(10)]
        expected += [(topic, number, offset) for number in range(OLD, ALL) for offset in range(10)]
        assert sorted(reader.found) == sorted(expected)
    with Reader(shared, "new group", topics=[topic]) as reader:
        until(lambda: reader.owns(*places(topic, range(ALL))))
        write(shared, topic, *range(ALL), count=1)
        until(lambda: len(reader.found) >= ALL)
        assert {place[2] for place in reader.found} == {20, 10}, "a group that begins, begins at the end"


def test_a_member_that_joins_before_the_others_know_of_the_rebalance(shared: DevBroker, topic: str) -> None:
    with Reader(shared, "late", topics=[topic], metadata_max_age_ms=3_000) as first:
        until(lambda: first.owns(*places(topic, range(OLD))))
        add_partitions(shared, topic)
        write(shared, topic, *range(ALL))
        with Reader(shared, "late", topics=[topic]) as second:
            until(lambda: len(first.found) + len(second.found) >= 10 * ALL)
            expected = {(topic, number, offset) for number in range(ALL) for offset in range(10)}
            assert {*first.found, *second.found} == expected
            assert {place[1] for place in second.found} & set(range(OLD, ALL))


def test_a_topic_that_is_deleted_and_recreated(shared: DevBroker, topic: str) -> None:
    write(shared, topic, *range(OLD))
    with Reader(shared, "anew", topics=[topic]) as reader:
        until(lambda: reader.owns(*places(topic, range(OLD))))
        with blocking.AdminClient(bootstrap_servers=shared.bootstrap) as admin:
            admin.delete_topic(topic)
        until(lambda: created(shared, topic))
        write(shared, topic, *range(OLD))
        until(lambda: len(reader.found) >= 10 * OLD)
        assert sorted(reader.found) == [(topic, n, offset) for n in range(OLD) for offset in range(10)]


def test_an_out_of_range_position_is_reset_by_auto_offset_reset(shared: DevBroker, topic: str) -> None:
    with Reader(shared, "range", topics=[topic]) as reader:
        until(lambda: reader.owns(*places(topic, range(OLD))))
    add_partitions(shared, topic)
    write(shared, topic, *range(ALL))
    with blocking.AdminClient(bootstrap_servers=shared.bootstrap) as admin:
        beyond = {TopicPartition(topic, number): 1000 for number in range(ALL)}
        admin.alter_group_offsets("range", beyond).raise_first()
    with Reader(shared, "range", topics=[topic]) as reader:
        until(lambda: reader.owns(*places(topic, range(ALL))))
        until(lambda: all(reader.consumer._client._assigned[tp].position == 10 for tp in beyond))
        write(shared, topic, *range(ALL), count=1)
        until(lambda: len(reader.found) >= ALL)
        assert {place[2] for place in reader.found} == {10}
