"""The same scenarios with Ottla's client and with confluent-kafka, on Ottla and on Apache Kafka 3.9.1.

Each scenario runs four times, concurrently; its notes must be equal in all runs, and equal to the expected
ones. Records are also read by the client that did not write them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.client.errors import ClientError
from tests.judges.request_recorder import kafka_and_ottla
from tests.judges.two_clients import CONSUMERS, PRODUCERS, Found, Place, Reading, Sending, error_text
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(300)

SETTINGS = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
}
WAIT_S = 60.0
T0 = 1_700_000_000_000


class Stage:
    """One client and one broker."""

    def __init__(self, client: str, bootstrap: str, name: str) -> None:
        self.client = client
        self.bootstrap = bootstrap
        self.name = name
        """Part of all names, so that stories do not meet."""
        self.notes: dict[str, object] = {}
        self._closing = ExitStack()

    def topic(self, name: str = "t", partitions: int = 3, **configs: str) -> str:
        full = f"{self.name}-{name}"
        given = {key.replace("_", "."): value for key, value in configs.items()}
        new = NewTopic(full, num_partitions=partitions, replication_factor=1, config=given)
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([new])[full].result(WAIT_S)
        return full

    def producer(self, **settings: object) -> Sending:
        given = {key.replace("_", "."): value for key, value in settings.items()}
        producer = PRODUCERS[self.client](self.bootstrap, {"linger.ms": 5, **given})
        self._closing.callback(producer.close)
        return producer

    def consumer(self, client: str | None = None, **settings: object) -> Reading:
        given = {key.replace("_", "."): value for key, value in settings.items()}
        fixed = {
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 200,
            "metadata.max.age.ms": 1000,
        }
        named = {"group.id": f"{self.name}-group", **fixed, **given}
        consumer = CONSUMERS[client or self.client](self.bootstrap, named)
        self._closing.callback(consumer.close)
        return consumer

    def close(self) -> None:
        self._closing.close()


Scenario: TypeAlias = Callable[[Stage], None]
Compare: TypeAlias = Callable[[Scenario], dict[str, Any]]


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    needs_kafka_jars()
    directory: Path = tmp_path_factory.mktemp("clients")
    with kafka_and_ottla(directory, SETTINGS) as by_name:
        yield by_name


@pytest.fixture
def same(ports: dict[str, int]) -> Compare:
    """Runs a scenario four times and returns the notes, which must be equal."""

    def once(scenario: Scenario, client: str, broker: str) -> dict[str, Any]:
        name = f"{scenario.__name__}-{client[:1].lower()}"
        stage = Stage(client, f"127.0.0.1:{ports[broker]}", name)
        try:
            scenario(stage)
        finally:
            stage.close()
        return stage.notes

    def compare(scenario: Scenario) -> dict[str, Any]:
        places = list(product(PRODUCERS, ports))
        with ThreadPoolExecutor(len(places)) as pool:
            running = {place: pool.submit(once, scenario, *place) for place in places}
            notes = {place: future.result() for place, future in running.items()}
        expected = notes["confluent-kafka", "Apache Kafka"]
        for (client, broker), noted in notes.items():
            for label, what in expected.items():
                assert noted.get(label) == what, f"{client} on {broker}: {label}"
        return expected

    return compare


def read(consumer: Reading, count: int) -> list[Found]:
    found: list[Found] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
        found += consumer.poll()
    return found


def read_to_end(consumer: Reading) -> list[Found]:
    found: list[Found] = []
    deadline = time.monotonic() + WAIT_S
    while not consumer.at_end():
        assert time.monotonic() < deadline, f"never at the end, after {len(found)} records"
        found += consumer.poll()
    return found


def values(found: list[Found]) -> list[bytes | None]:
    return [each.value for each in found]


def until(condition: Callable[[], bool], *members: Reading) -> None:
    """Poll the members until it is true."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, [member.callbacks for member in members]
        for member in members:
            assert member.poll(0.05) == []


def fill(stage: Stage, topic: str, count: int, partitions: int = 1) -> None:
    producer = stage.producer()
    sent = [
        producer.send(topic, b"%d" % n, partition=n % partitions, timestamp_ms=T0 + n) for n in range(count)
    ]
    assert all(isinstance(outcome(), tuple) for outcome in sent)


# --- producing -----------------------------------------------------------------------------------


def test_records_are_written_and_read_as_in_kafka(same: Compare) -> None:
    def records(stage: Stage) -> None:
        rows: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
            (None, b"", []),
            (b"", b"v", []),
            (b"k", None, [("h", b"1"), ("h", None), ("ä", b"")]),
            (b"k" * 300, b"v" * 40_000, [("long", b"x" * 500)]),
        ]
        for acks, codec in (("all", "none"), ("all", "zstd"), ("1", "lz4"), ("0", "gzip"), ("0", "snappy")):
            topic = stage.topic(f"{acks}-{codec}")
            settings = {"acks": acks, "compression_type": codec, "enable_idempotence": acks == "all"}
            producer = stage.producer(**settings)
            sent = [
                producer.send(topic, value, key, partition=2, timestamp_ms=T0 + n, headers=headers)
                for n, (key, value, headers) in enumerate(rows)
            ]
            sent += [producer.send(topic, b"%d" % n, b"key-%d" % n, timestamp_ms=T0) for n in range(200)]
            producer.flush()
            if acks == "0":
                outcomes = [outcome() for outcome in sent]
                assert not [each for each in outcomes if isinstance(each, str)]
            else:
                stage.notes[f"acks={acks} {codec} outcomes"] = [outcome() for outcome in sent]
            for client in CONSUMERS:
                consumer = stage.consumer(client)
                consumer.assign([(topic, partition) for partition in range(3)])
                found = sorted(read(consumer, 204), key=lambda each: each[1:3])
                stage.notes[f"acks={acks} {codec} read"] = [each[1:] for each in found]
                assert stage.notes.setdefault(f"{topic} read", found) == found, "the other client's reading"
            del stage.notes[f"{topic} read"]

    noted = same(records)
    assert len(noted["acks=0 gzip read"]) == 204
    assert noted["acks=0 gzip read"] == noted["acks=all none read"]


def test_invalid_calls_get_kafkas_errors(same: Compare) -> None:
    def refusals(stage: Stage) -> None:
        small = stage.topic("small", max_message_bytes="1000")
        producer = stage.producer(max_request_size=3000)
        stage.notes["beyond the topic's limit"] = producer.send(small, b"x" * 2000, partition=0)()
        stage.notes["beyond the client's limit"] = _outcome(lambda: producer.send(small, b"x" * 4000)())
        stage.notes["after that"] = producer.send(small, b"x", partition=0)()
        waiting = stage.producer(max_block_ms=1500)
        stage.notes["no such topic"] = waiting.send(f"{stage.name}-nowhere", b"x")()
        stage.notes["no such partition"] = waiting.send(small, b"x", partition=9)()
        stage.notes["not a topic's name"] = producer.send("not a name!", b"x")()

    noted = same(refusals)
    nowhere = "no such topic or partition"
    assert noted == {
        "beyond the topic's limit": "MESSAGE_TOO_LARGE",
        "beyond the client's limit": "MESSAGE_TOO_LARGE",
        "after that": (0, 0),
        "no such topic": nowhere,
        "no such partition": nowhere,
        "not a topic's name": "INVALID_TOPIC_EXCEPTION",
    }


def _outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except (ClientError, KafkaException) as error:
        return error_text(error)


def test_transactions_as_in_kafka(same: Compare) -> None:
    def transactions(stage: Stage) -> None:
        topic, source = stage.topic(), stage.topic("source", partitions=1)
        fill(stage, source, 10)
        consumer = stage.consumer()
        consumer.subscribe([source])
        read(consumer, 10)
        producer = stage.producer(transactional_id=stage.name)
        for number, decide in enumerate((producer.commit, producer.abort, producer.commit)):
            producer.begin()
            for n in range(3):
                producer.send(topic, b"%d" % number, partition=n)
            if number != 2:
                producer.send_offsets({(source, 0): 4 + number}, consumer)
            producer.flush()
            decide()
        stage.notes["offsets"] = consumer.committed([(source, 0)])
        producer.begin()
        producer.send(topic, b"open", partition=0)
        producer.flush()
        for isolation in ("read_committed", "read_uncommitted"):
            for client in CONSUMERS:
                reader = stage.consumer(client, isolation_level=isolation)
                reader.assign([(topic, n) for n in range(3)])
                found = sorted((each[1], each[2], each.value) for each in read_to_end(reader))
                assert stage.notes.setdefault(isolation, found) == found, "the other client's reading"
        successor = stage.producer(transactional_id=stage.name)
        stage.notes["the first one"] = _outcome(producer.commit)
        successor.begin()
        stage.notes["the successor"] = successor.send(topic, b"after", partition=1)()
        successor.commit()
        reader = stage.consumer(isolation_level="read_committed")
        reader.assign([(topic, n) for n in range(3)])
        # Who commits does not wait for the markers: the last record may come after the end was seen.
        found = [*read(reader, 7), *read_to_end(reader)]
        stage.notes["at the end"] = sorted((each[1], each[2], each.value) for each in found)

    noted = same(transactions)
    assert noted["offsets"] == [(4, "")]
    assert noted["read_committed"] == [(p, o, v) for p in range(3) for o, v in ((0, b"0"), (4, b"2"))]
    assert noted["the first one"] == "fenced"
    assert noted["at the end"] == sorted(
        [*noted["read_committed"], (1, *noted["the successor"][1:], b"after")]
    )


# --- reading -------------------------------------------------------------------------------------


def test_positions_equal_those_of_kafkas_consumer(same: Compare) -> None:
    def positions(stage: Stage) -> None:
        topic = stage.topic(partitions=1)
        place: Place = (topic, 0)
        fill(stage, topic, 60)
        consumer = stage.consumer()
        consumer.assign([place])
        stage.notes["all"] = values(read(consumer, 60))
        stage.notes["then"] = consumer.position(place)
        consumer.seek(place, 50)
        stage.notes["after a seek"] = values(read(consumer, 10))
        stage.notes["times"] = [consumer.offset_at(place, T0 + n) for n in (-5, 0, 31, 59, 60)]
        stage.notes["ends"] = consumer.ends(place)
        consumer.seek(place, 30)
        consumer.pause(place)
        stage.notes["paused"] = [each for _ in range(5) for each in consumer.poll()]
        consumer.resume(place)
        stage.notes["resumed"] = values(read(consumer, 30))
        consumer.seek(place, 10)
        stage.notes["a few"] = 1 <= len(consumer.poll(WAIT_S, 7)) <= 7
        late = stage.consumer(auto_offset_reset="latest")
        late.assign([place])
        stage.notes["before the end"] = read_to_end(late)
        stage.producer().send(topic, b"new", timestamp_ms=T0)()
        stage.notes["from the end"] = [each[1:] for each in read(late, 1)]

    noted = same(positions)
    assert noted["times"] == [0, 0, 31, 59, None]
    assert noted["ends"] == (0, 60)
    assert noted["paused"] == []
    assert noted["from the end"] == [(0, 60, T0, None, b"new", ())]


def test_commits_get_kafkas_responses(same: Compare) -> None:
    def commits(stage: Stage) -> None:
        topic = stage.topic(partitions=2)
        fill(stage, topic, 40, partitions=2)
        places: list[Place] = [(topic, 0), (topic, 1)]
        consumer = stage.consumer()
        consumer.subscribe([topic])
        stage.notes["at first"] = consumer.committed(places)
        read(consumer, 40)
        consumer.commit()
        stage.notes["all"] = consumer.committed(places)
        consumer.commit({places[0]: (7, "a note")})
        stage.notes["later"] = consumer.commit_later({places[1]: (9, "")})
        stage.notes["by hand"] = consumer.committed(places)
        consumer.close()
        again = stage.consumer(enable_auto_commit=True)
        again.subscribe([topic])
        stage.notes["from there"] = sorted(each[1:3] for each in read(again, 24))
        again.close()
        stage.notes["after the close"] = stage.consumer().committed(places)

    noted = same(commits)
    assert noted["at first"] == [None, None]
    assert noted["all"] == [(20, ""), (20, "")]
    assert noted["by hand"] == [(7, "a note"), (9, "")]
    assert noted["after the close"] == [(20, ""), (20, "")]


def test_initial_positions_without_a_committed_offset(same: Compare) -> None:
    def resets(stage: Stage) -> None:
        topic = stage.topic(partitions=1)
        fill(stage, topic, 5)
        for reset, offset in product(("earliest", "latest", "none"), (None, 3, 1000)):
            group = f"{stage.name}-{reset}-{offset}"
            consumer = stage.consumer(auto_offset_reset=reset, group_id=group)
            if offset is not None:
                consumer.commit({(topic, 0): (offset, "")})
            consumer.assign([(topic, 0)])
            try:
                found: object = values(read_to_end(consumer))
            except KeyError as error:
                found = error.args[0]
            stage.notes[f"{reset}, {offset} committed"] = found

    noted = same(resets)
    everything, rest = [b"%d" % n for n in range(5)], [b"3", b"4"]
    nowhere = "no offset to begin at"
    assert noted == {
        "earliest, None committed": everything,
        "earliest, 3 committed": rest,
        "earliest, 1000 committed": everything,
        "latest, None committed": [],
        "latest, 3 committed": rest,
        "latest, 1000 committed": [],
        "none, None committed": nowhere,
        "none, 3 committed": rest,
        "none, 1000 committed": nowhere,
    }


# --- groups --------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_two_members_share_partitions_as_in_kafka(same: Compare, strategy: str) -> None:
    def shares(stage: Stage) -> None:
        topic = stage.topic(strategy, partitions=4)
        group = f"{stage.name}-{strategy}"

        def member(name: str) -> Reading:
            consumer = stage.consumer(client_id=name, group_id=group, partition_assignment_strategy=strategy)
            consumer.subscribe([topic])
            return consumer

        first = member("a")
        until(lambda: len(first.assignment()) == 4, first)
        second = member("b")
        until(lambda: len(first.assignment()) == len(second.assignment()) == 2, first, second)
        halves = first.assignment(), second.assignment()
        assert halves[0] | halves[1] == {0, 1, 2, 3}
        first.close()
        until(lambda: len(second.assignment()) == 4, second)
        second.close()
        if strategy == "cooperative-sticky":
            # Which two the first one keeps is anybody's choice: it is told of the others.
            moved = sorted(halves[1])
            stage.notes["first"] = [
                (what, "moved" if them == moved else len(them)) for what, them in first.callbacks
            ]
            stage.notes["second"] = [(what, len(them)) for what, them in second.callbacks]
        else:
            stage.notes["first"], stage.notes["second"] = first.callbacks, second.callbacks

    noted = same(shares)
    everything = [0, 1, 2, 3]
    if strategy == "cooperative-sticky":
        assert noted["first"] == [("got", 4), ("gave", "moved"), ("gave", 2)]
        assert noted["second"] == [("got", 2), ("got", 2), ("gave", 4)]
        return
    ours, others = ([0, 1], [2, 3]) if strategy == "range" else ([0, 2], [1, 3])
    assert noted["first"] == [("got", everything), ("gave", everything), ("got", ours), ("gave", ours)]
    assert noted["second"] == [("got", others), ("gave", others), ("got", everything), ("gave", everything)]


def test_static_members_rejoin_as_in_kafka(same: Compare) -> None:
    def static_members(stage: Stage) -> None:
        topic = stage.topic(partitions=4)

        def member(name: str) -> Reading:
            consumer = stage.consumer(client_id=name, group_instance_id=name)
            consumer.subscribe([topic])
            return consumer

        first, second = member("a"), member("b")
        until(lambda: len(first.assignment()) == len(second.assignment()) == 2, first, second)
        share, callbacks = second.assignment(), list(first.callbacks)
        second.close()
        second = member("b")
        until(lambda: second.assignment() == share, first, second)
        until(lambda: True, first)
        stage.notes["the same share"] = sorted(share)
        stage.notes["what the other heard meanwhile"] = first.callbacks[len(callbacks) :]
        stage.notes["its callbacks"] = list(second.callbacks)

    noted = same(static_members)
    assert noted == {
        "the same share": [2, 3],
        "what the other heard meanwhile": [],
        "its callbacks": [("got", [2, 3])],
    }


def test_subscriptions_find_later_topics_as_in_kafka(same: Compare) -> None:
    def later(stage: Stage) -> None:
        by_pattern = stage.consumer(group_id=f"{stage.name}-pattern")
        by_pattern.subscribe(pattern=f"{stage.name}-p-[ab]")
        by_name = stage.consumer(group_id=f"{stage.name}-name", allow_auto_create_topics=False)
        by_name.subscribe([f"{stage.name}-p-b"])
        until(lambda: True, by_pattern, by_name)
        for name in ("p-a", "p-c", "p-b"):
            fill(stage, stage.topic(name, partitions=1), 2)
            if name == "p-a":
                stage.notes["the first"] = [each[0][-3:] for each in read(by_pattern, 2)]
                by_pattern.commit()
        stage.notes["the last"] = [each[0][-3:] for each in read(by_pattern, 2)]
        stage.notes["by name"] = [each[0][-3:] for each in read(by_name, 2)]

    assert same(later) == {"the first": ["p-a"] * 2, "the last": ["p-b"] * 2, "by name": ["p-b"] * 2}
