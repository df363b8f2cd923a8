"""A group is rewound while its member has a transaction open: Kafka's own clients, and librdkafka's.

The member reads a record at its old position, FAR, writes it to another topic and commits its offset, both in
one transaction (KIP-447). What committed transactions wrote is read by librdkafka.
"""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.apache_kafka import java_command
from ottla.local.processes import wait_until
from tests.judges.kafka_tools import compiled
from tests.judges.one_broker import OneBroker
from tests.judges.rewound_groups import BETWEEN, FAR, TO, GroupOfTopic, written_topic
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(300)
WAIT_S = 120
HEARTBEAT_MS = 300
SELDOM_MS = 6_000
"""Between heartbeats of a member that does not notice the rewind before it commits."""


class Member(Protocol):
    """One consumer and one producer, which do a step at a time."""

    refusal: str
    """Of offsets that a member of before the rewind sends."""

    def read(self) -> tuple[int, int]:
        """(partition, offset) of the next record."""

    def begin(self) -> None: ...

    def write(self, text: str) -> None: ...

    def send_offsets(self) -> str:
        """Of the record that was read last, with the group metadata as it is now. "" or the refusal."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def wait_for_notice(self) -> None:
        """Until its heartbeats, every HEARTBEAT_MS, have been refused."""


class JavaMember:
    """`MemberInTransactions.java` as a process."""

    refusal = "CommitFailedException"

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def _ask(self, command: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def _do(self, command: str) -> None:
        assert (answer := self._ask(command)) == "ok", f"{command}: {answer}"

    def read(self) -> tuple[int, int]:
        partition, offset = self._ask("read").split()
        return int(partition), int(offset)

    def begin(self) -> None:
        self._do("begin")

    def write(self, text: str) -> None:
        self._do(f"write {text}")

    def send_offsets(self) -> str:
        answer = self._ask("offsets")
        return "" if answer == "ok" else answer

    def commit(self) -> None:
        self._do("commit")

    def abort(self) -> None:
        self._do("abort")

    def wait_for_notice(self) -> None:
        time.sleep(5 * HEARTBEAT_MS / 1000)  # nothing shows from outside when it has


class LibrdkafkaMember:
    refusal = "UNKNOWN_MEMBER_ID"

    def __init__(self, consumer: Consumer, producer: Producer, output: str) -> None:
        self._consumer, self._producer, self._output = consumer, producer, output
        self._next: TopicPartition | None = None

    def read(self) -> tuple[int, int]:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            message = self._consumer.poll(0.2)
            if message is None:
                continue
            assert message.error() is None, message.error()
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None
            assert partition is not None
            assert offset is not None
            self._next = TopicPartition(topic, partition, offset + 1)
            return partition, offset
        raise AssertionError("no record")

    def begin(self) -> None:
        self._producer.begin_transaction()

    def write(self, text: str) -> None:
        self._producer.produce(self._output, text, partition=0)
        assert self._producer.flush(WAIT_S) == 0

    def send_offsets(self) -> str:
        assert self._next is not None
        metadata = self._consumer.consumer_group_metadata()
        try:
            self._producer.send_offsets_to_transaction([self._next], metadata, WAIT_S)
        except KafkaException as problem:
            error: KafkaError = problem.args[0]
            assert error.txn_requires_abort()
            return error.name()
        return ""

    def commit(self) -> None:
        self._producer.commit_transaction(WAIT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(WAIT_S)

    def wait_for_notice(self) -> None:
        assert wait_until(lambda: self._consumer.memberid() is None, timeout_s=WAIT_S)


@contextmanager
def java_member(group: GroupOfTopic, output: str, heartbeat_ms: int, errors: Path) -> Iterator[JavaMember]:
    arguments = (group.bootstrap, group.name, group.topic, output, str(heartbeat_ms))
    command = java_command("MemberInTransactions", *arguments, classes=compiled("MemberInTransactions"))
    with (
        errors.open("w") as problems,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=problems, text=True
        ) as process,
    ):
        try:
            yield JavaMember(process)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(WAIT_S) == 0, errors.read_text()
        finally:
            process.kill()


@contextmanager
def librdkafka_member(
    group: GroupOfTopic, output: str, heartbeat_ms: int, _: Path
) -> Iterator[LibrdkafkaMember]:
    settings = {"bootstrap.servers": group.bootstrap}
    consumer = Consumer(
        {
            **settings,
            "group.id": group.name,
            "heartbeat.interval.ms": heartbeat_ms,
            "session.timeout.ms": 20_000,
            "enable.auto.commit": False,
        }
    )
    producer = Producer({**settings, "transactional.id": group.name})
    producer.init_transactions(WAIT_S)
    consumer.subscribe([group.topic])
    try:
        yield LibrdkafkaMember(consumer, producer, output)
    finally:
        consumer.close()


MEMBERS = {"java": java_member, "librdkafka": librdkafka_member}


class Scenario(NamedTuple):
    group: GroupOfTopic
    member: Member
    output: str

    def outputs(self) -> list[str]:
        """What committed transactions wrote."""
        settings = {"bootstrap.servers": self.group.bootstrap, "group.id": "reader"}
        reader = Consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False})
        found: list[str] = []
        try:
            reader.assign([TopicPartition(self.output, 0, 0)])
            deadline = time.monotonic() + WAIT_S
            while time.monotonic() < deadline:
                message = reader.poll(1)
                if message is None:
                    continue
                if message.error() is not None:
                    assert message.error().code() == KafkaError._PARTITION_EOF
                    return found
                value = message.value()
                assert value is not None
                found.append(value.decode())
        finally:
            reader.close()
        raise AssertionError("no end")

    def begin_at_the_old_position(self) -> None:
        assert self.member.read()[1] >= FAR
        self.member.begin()
        self.member.write("old")

    def check_rewound(self) -> None:
        """The offsets are there, and no pending one is before them."""
        assert self.group.committed(stable=True) == dict.fromkeys(self.group.partitions, TO)

    def check_it_goes_on_from_there(self, outputs: list[str]) -> None:
        partition, offset = self.member.read()
        while offset > BETWEEN:  # fetched before it noticed
            partition, offset = self.member.read()
        assert offset == TO
        self.member.begin()
        self.member.write("new")
        assert self.member.send_offsets() == ""
        self.member.commit()
        expected = {tp: TO + (tp.partition == partition) for tp in self.group.partitions}

        def committed() -> bool:
            return self.group.committed(stable=True) == expected

        assert wait_until(committed, timeout_s=WAIT_S), self.group.committed()
        assert wait_until(lambda: self.outputs() == outputs, timeout_s=WAIT_S), self.outputs()


@pytest.fixture(scope="module")
def topic(broker: OneBroker) -> Iterator[str]:
    with written_topic(broker.bootstrap) as name:
        yield name


@pytest.fixture(params=MEMBERS)
def scenario_of(
    request: pytest.FixtureRequest, broker: OneBroker, topic: str, tmp_path: Path
) -> Iterator[Callable[[int], Scenario]]:
    """By the member's interval of heartbeats."""
    if request.param == "java":
        needs_kafka_jars()
    output = f"out-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(output, 1, 1)])[output].result(WAIT_S)
    with ExitStack() as running:

        def make(heartbeat_ms: int = HEARTBEAT_MS) -> Scenario:
            group = GroupOfTopic(broker.bootstrap, topic)
            member = MEMBERS[request.param](group, output, heartbeat_ms, tmp_path / "errors")
            return Scenario(group, running.enter_context(member), output)

        yield make


@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_offsets_that_were_sent_before_the_rewind_have_no_effect(
    scenario_of: Callable[[int], Scenario], ends: str
) -> None:
    """However the transaction ends. Its output stays if it commits, and its input is read again."""
    scenario = scenario_of(HEARTBEAT_MS)
    scenario.begin_at_the_old_position()
    assert scenario.member.send_offsets() == ""
    scenario.group.rewind()
    scenario.check_rewound()
    if ends == "commit":
        scenario.member.commit()
    else:
        scenario.member.abort()
    assert wait_until(lambda: scenario.outputs() == ["old"] * (ends == "commit"), timeout_s=WAIT_S)
    scenario.check_rewound()
    scenario.check_it_goes_on_from_there(["old", "new"] if ends == "commit" else ["new"])


@pytest.mark.parametrize("notices", [False, True])
def test_offsets_that_are_sent_after_the_rewind_are_refused(
    scenario_of: Callable[[int], Scenario], notices: bool
) -> None:
    """Whether or not the member's heartbeats have had the answer already."""
    scenario = scenario_of(HEARTBEAT_MS if notices else SELDOM_MS)
    scenario.begin_at_the_old_position()
    scenario.group.rewind()
    if notices:
        scenario.member.wait_for_notice()
    assert scenario.member.send_offsets() == scenario.member.refusal
    scenario.member.abort()
    scenario.check_rewound()
    scenario.check_it_goes_on_from_there(["new"])
