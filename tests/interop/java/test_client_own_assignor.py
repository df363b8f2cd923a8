"""Assignors, partitioners and interceptors of one's own, in groups with Kafka's own client.

`Weighted` and `Member.java`'s assignor of that name are twins: members of either language lead the group, and
give out the same partitions, from the same metadata.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ottla.client import blocking, errors
from ottla.client.core.assignment import Assignment, PartitionRacks, Subscription
from ottla.client.core.types import GroupMetadata, TopicPartition
from ottla.local.processes import wait_until
from ottla.testing import DevBroker
from tests.judges.java_member import JavaMember, java_member
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(300)

WAIT_S = 60.0
TOPIC, PARTITIONS = "shared", 6


class Weighted:
    """Gives partitions to members by their weights, and none that another member still owns."""

    name = "weighted"
    cooperative = True

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.assignments: list[tuple[int, str]] = []

    def subscription_user_data(self, topics: Sequence[str]) -> bytes:
        return f"{self.weight} {','.join(sorted(topics))}".encode()

    def assign(
        self, topics: Mapping[str, PartitionRacks], members: Mapping[str, Subscription]
    ) -> dict[str, Assignment]:
        weights = {name: int((m.user_data or b"").split()[0]) for name, m in members.items()}
        ordered = sorted(members, key=lambda name: weights[name])
        turns = [name for name in ordered for _ in range(weights[name])]
        owners = {tp: name for name, member in members.items() for tp in member.owned}
        shares: dict[str, list[TopicPartition]] = {name: [] for name in members}
        for topic in sorted(topics):
            for number in range(len(topics[topic])):
                place, name = TopicPartition(topic, number), turns[number % len(turns)]
                if owners.get(place, name) == name:
                    shares[name].append(place)
        seen = " ".join(
            f"{(members[name].user_data or b'').decode()}/{len(members[name].owned)}"
            f"/{members[name].instance_id or '-'}"
            for name in ordered
        )
        assignments = f"python saw {seen}".encode()
        return {name: Assignment(share, assignments) for name, share in shares.items()}

    def on_assignment(self, assignment: Assignment, metadata: GroupMetadata) -> None:
        assert metadata.group_id == "group"
        self.assignments.append((metadata.generation_id, (assignment.user_data or b"").decode()))


class PythonMember:
    """Polls in a thread of its own; the same words as `JavaMember`."""

    def __init__(self, bootstrap: str, weight: int, **settings: Any) -> None:
        self.assignor = Weighted(weight)
        self._consumer = blocking.Consumer(
            bootstrap_servers=bootstrap,
            group_id="group",
            heartbeat_interval_ms=200,
            partition_assignment_strategy=[self.assignor],
            **settings,
        )
        self._consumer.subscribe([TOPIC])
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def _poll(self) -> None:
        with self._consumer:
            while not self._ending.is_set():
                self._consumer.poll(0.1)

    @property
    def owned(self) -> set[int]:
        return {tp.partition for tp in self._consumer.assignment()}

    @property
    def assignments(self) -> list[tuple[int, str]]:
        return self.assignor.assignments

    def end(self) -> None:
        self._ending.set()
        self._thread.join()


def assignments(member: JavaMember | PythonMember) -> list[tuple[int, str]]:
    if isinstance(member, PythonMember):
        return member.assignments
    lines = (line.partition(" ") for line in member.lines("told"))
    return [(int(generation), text) for generation, _, text in lines]


@pytest.fixture
def broker() -> Iterator[DevBroker]:
    needs_kafka_jars()
    with DevBroker() as running:
        running.create_topic(TOPIC, partitions=PARTITIONS)
        yield running
        assert "Traceback" not in running.log_tail(1000), running.log_tail(1000)


@pytest.mark.parametrize("leader", ["java", "python"])
def test_java_and_python_members_share_a_group_with_the_same_assignor(
    broker: DevBroker, tmp_path: Path, leader: str
) -> None:
    with ExitStack() as ending:

        def java(weight: int, **settings: Any) -> JavaMember:
            strategy = {"partition_assignment_strategy": "Member$Weighted", "weight": weight}
            fast = {"heartbeat_interval_ms": 200, "auto_offset_reset": "earliest"}
            return ending.enter_context(
                java_member(tmp_path, broker.bootstrap, TOPIC, **strategy, **fast, **settings)
            )

        def python(weight: int, **settings: Any) -> PythonMember:
            member = PythonMember(broker.bootstrap, weight, **settings)
            ending.callback(member.end)
            return member

        members: list[JavaMember | PythonMember] = []

        def join(make: Callable[..., JavaMember | PythonMember], weight: int, **settings: Any) -> None:
            members.append(make(weight, **settings))
            assert wait_until(lambda: shares(members) == expected(members), timeout_s=WAIT_S), (
                shares(members),
                [assignments(member) for member in members],
            )

        weights: dict[int, int] = {}

        def shares(of: list[JavaMember | PythonMember]) -> list[set[int]]:
            return [member.owned for member in of]

        def expected(of: list[JavaMember | PythonMember]) -> list[set[int]]:
            ordered = sorted(range(len(of)), key=lambda n: weights[n])
            turns = [n for n in ordered for _ in range(weights[n])]
            found: list[set[int]] = [set() for _ in of]
            for number in range(PARTITIONS):
                found[turns[number % len(turns)]].add(number)
            return found

        first, other = (java, python) if leader == "java" else (python, java)
        weights[0] = 1
        join(first, 1)
        weights[1] = 2
        join(other, 2, group_instance_id="static")
        weights[2] = 3
        join(other, 3)
        assert [len(member.owned) for member in members] == [1, 2, 3]
        assigned = [assignments(member)[-1] for member in members]
        assert len(set(assigned)) == 1, assigned
        generation, seen = assigned[0]
        assert generation >= 5, "cooperative: each change took two rebalances"
        assert seen == f"{leader} saw 1 {TOPIC}/1/- 2 {TOPIC}/2/static 3 {TOPIC}/0/-", (
            "the last rebalance saw what was given up for the third"
        )
        assert f"{leader} saw 1 {TOPIC}/6/-" in " ".join(text for _, text in assignments(members[0])), (
            "and the one before it what the first one had to give up"
        )


class Fails:
    name = "fails"

    def assign(
        self, topics: Mapping[str, PartitionRacks], members: Mapping[str, Subscription]
    ) -> dict[str, Assignment]:
        raise LookupError("on purpose")


def test_poll_raises_the_error_of_an_assignor(broker: DevBroker) -> None:
    with blocking.Consumer(
        bootstrap_servers=broker.bootstrap, group_id="failing", partition_assignment_strategy=Fails
    ) as consumer:
        consumer.subscribe([TOPIC])
        for _ in range(2):
            with pytest.raises(LookupError, match="on purpose"):
                consumer.poll(WAIT_S)


class Recording:
    """Interceptors and a partitioner, made by the clients from their names."""

    events: list[tuple[Any, ...]] = []  # noqa: RUF012 (what all that are made have heard)

    def configure(self, settings: Mapping[str, Any]) -> None:
        self.events.append(("configured", settings["client.id"]))

    def on_send(self, record: Any) -> Any:
        return record._replace(headers=[("seen", b"1")])

    def on_acknowledgement(self, metadata: Any, error: BaseException | None) -> None:
        self.events.append(("acknowledged", metadata.topic, metadata.partition, type(error).__name__))

    def on_consume(self, records: Any) -> Any:
        self.events.append(("consumed", sum(map(len, records.values()))))
        raise LookupError("logged, and the records are given out as they were")

    def on_commit(self, offsets: Mapping[Any, Any]) -> None:
        self.events.append(("committed", sorted((tp.partition, o.offset) for tp, o in offsets.items())))

    def partition(self, topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        return int(value or b"0") % partitions

    def close(self) -> None:
        self.events.append(("closed",))


def test_plugins_are_loaded_by_their_dotted_names(broker: DevBroker) -> None:
    name = f"{__name__}.Recording"
    Recording.events.clear()
    with blocking.Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "client.id": "p",
            "partitioner.class": name,
            "interceptor.classes": name,
            "max.request.size": 10_000,
        }
    ) as producer:
        written = [producer.send_and_wait(TOPIC, b"%d" % number) for number in (3, 8)]
        assert [metadata.partition for metadata in written] == [3, 2]
        with pytest.raises(errors.MessageTooLargeError):
            producer.send_and_wait(TOPIC, b"9" * 20_000)
    assert Recording.events == [
        ("configured", "p"),
        ("configured", "p"),
        ("acknowledged", TOPIC, 3, "NoneType"),
        ("acknowledged", TOPIC, 2, "NoneType"),
        ("acknowledged", TOPIC, -1, "MessageTooLargeError"),
        ("closed",),
        ("closed",),
    ]
    Recording.events.clear()
    with blocking.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "client.id": "c",
            "group.id": "intercepted",
            "auto.offset.reset": "earliest",
            "interceptor.classes": [Recording],
            "enable.auto.commit": "false",
        }
    ) as consumer:
        consumer.assign([(TOPIC, 3)])
        (records,) = consumer.poll(WAIT_S).values()
        assert [(record.value, record.headers) for record in records] == [(b"3", [("seen", b"1")])]
        consumer.commit()
    assert Recording.events == [("configured", "c"), ("consumed", 1), ("committed", [(3, 1)]), ("closed",)]
