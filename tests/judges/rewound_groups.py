"""Groups of running members that are rewound: Java's, librdkafka's and our consumers, beside a producer.

Called by the tests of live rewinds. The members start far in the log (FAR) and are rewound to its start (TO).
After the first record from TO, a member gets none from its old position, and together the members get every
record from TO on. Members commit after every record, so that commits are in flight during the rewind.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient as ConfluentAdmin
from confluent_kafka.admin import NewTopic

from bench.apache_kafka import java_command
from ottla.client import Consumer
from ottla.client.admin import AdminClient, TopicPartition
from ottla.client.errors import ClientError
from ottla.local.processes import wait_until

PARTITIONS = 2
RECORDS = 30_000
FAR, TO = 20_000, 10
BETWEEN = 10_000
"""No member gets here: less is behind the rewind, more is before it."""
JAVA_ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}


@contextmanager
def written_topic(bootstrap: str) -> Iterator[str]:
    """A topic with RECORDS in each partition, and a producer that adds records slowly."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin = ConfluentAdmin({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(60)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    for number in range(RECORDS):
        for partition in range(PARTITIONS):
            producer.produce(name, b"%d" % number, partition=partition)
        producer.poll(0)
    assert producer.flush(120) == 0
    stopping = threading.Event()

    def go_on() -> None:
        while not stopping.wait(0.005):
            producer.produce(name, b"more")
            producer.poll(0)
        producer.flush(60)

    load = threading.Thread(target=go_on)
    load.start()
    try:
        yield name
    finally:
        stopping.set()
        load.join()


class Member:
    """The records that a consumer got, in order; it closes with the block."""

    def __init__(
        self, group: str, topic: str, bootstrap: str, instance_id: str | None, assignor: str
    ) -> None:
        self.group, self.topic, self.bootstrap = group, topic, bootstrap
        self.instance_id, self.assignor = instance_id, assignor
        self.got: list[tuple[int, int, int]] = []
        """(partition, first offset, last offset) of records that came together."""
        self.failures: list[str] = []
        self.lost: list[int] = []
        """Partitions that the client said it had lost (librdkafka's does)."""
        self.refused_count = 0
        """Commits that failed."""

    @property
    def after(self) -> list[tuple[int, int, int]]:
        """The records from the first one after the rewind."""
        for place, (_, first, _) in enumerate(self.got):
            if first < BETWEEN:
                return self.got[place:]
        return []


class JavaMember:
    """Kafka's own VerifiableConsumer: one record a poll, each committed."""

    def __init__(self, member: Member, directory: Path) -> None:
        self.member = member
        config = directory / f"{uuid.uuid4().hex}.properties"
        config.write_text("max.poll.records=1\nheartbeat.interval.ms=300\n")
        static = ("--group-instance-id", member.instance_id) if member.instance_id else ()
        command = java_command(
            "org.apache.kafka.tools.VerifiableConsumer",
            *("--bootstrap-server", member.bootstrap, "--topic", member.topic, "--group-id", member.group),
            *("--assignment-strategy", JAVA_ASSIGNORS[member.assignor], "--session-timeout", "20000"),
            *("--consumer.config", str(config), *static),
        )
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                event = json.loads(line) if line.startswith("{") else {}
                match event.get("name"):
                    case "records_consumed":
                        for row in event["partitions"]:
                            self.member.got.append((row["partition"], row["minOffset"], row["maxOffset"]))
                    case "offsets_committed" if not event["success"]:
                        self.member.refused_count += 1

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait()
        self._reader.join(60)


class ThreadMember:
    """A consumer in a thread of its own."""

    def __init__(self, member: Member, run: Callable[[Member, threading.Event], None]) -> None:
        self._stopping = threading.Event()

        def work() -> None:
            try:
                run(member, self._stopping)
            except Exception as error:
                member.failures.append(repr(error))

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert not self.alive


def confluent(member: Member, stopping: threading.Event) -> None:
    settings: dict[str, Any] = {
        "bootstrap.servers": member.bootstrap,
        "group.id": member.group,
        "partition.assignment.strategy": member.assignor,
        "heartbeat.interval.ms": 300,
        "session.timeout.ms": 20_000,
        "enable.auto.commit": False,
    }
    if member.instance_id:
        settings["group.instance.id"] = member.instance_id
    with ConfluentConsumer(settings) as consumer:

        def lost(_: Any, places: Sequence[Any]) -> None:
            member.lost += [place.partition for place in places]
            try:  # What a careless application does here must not count either.
                consumer.commit(asynchronous=False)
            except KafkaException:
                member.refused_count += 1

        consumer.subscribe([member.topic], on_lost=lost)
        while not stopping.wait(0.001):
            message = consumer.poll(0.2)
            if message is None:
                continue
            problem = message.error()
            if problem is not None:
                assert not problem.fatal(), problem
                continue
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            member.got.append((partition, offset, offset))
            try:
                consumer.commit(message=message, asynchronous=False)
            except KafkaException:
                member.refused_count += 1


def ours(member: Member, stopping: threading.Event) -> None:
    async def read() -> None:
        settings = {
            "bootstrap.servers": member.bootstrap,
            "group.id": member.group,
            "partition.assignment.strategy": member.assignor,
            "heartbeat.interval.ms": 300,
            "session.timeout.ms": 20_000,
            "enable.auto.commit": False,
            "max.poll.records": 1,
        }
        if member.instance_id:
            settings["group.instance.id"] = member.instance_id
        async with Consumer(settings) as consumer:
            consumer.subscribe([member.topic])
            while not stopping.is_set():
                for records in (await consumer.poll(0.2)).values():
                    member.got += [(record.partition, record.offset, record.offset) for record in records]
                    try:
                        await consumer.commit()
                    except ClientError:
                        member.refused_count += 1
                    await asyncio.sleep(0.001)

    asyncio.run(read())


class GroupOfTopic:
    """A group for one test, with committed offsets at FAR."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.name, self.bootstrap, self.topic = f"g-{uuid.uuid4().hex[:8]}", bootstrap, topic
        self.partitions = [TopicPartition(topic, n) for n in range(PARTITIONS)]
        self.alter(dict.fromkeys(self.partitions, FAR))

    def admin(self, ask: Callable[[AdminClient], Any]) -> Any:
        async def asked() -> Any:
            async with AdminClient(bootstrap_servers=self.bootstrap) as admin:
                return await ask(admin)

        return asyncio.run(asked())

    def alter(self, offsets: dict[TopicPartition, int], *, live: bool = False) -> None:
        async def ask(admin: AdminClient) -> None:
            (await admin.alter_group_offsets(self.name, offsets, live=live)).raise_first()

        self.admin(ask)

    def committed(self, *, stable: bool = False) -> dict[TopicPartition, int]:
        async def ask(admin: AdminClient) -> dict[TopicPartition, int]:
            found = (await admin.list_group_offsets({self.name: None}, require_stable=stable))[self.name]
            return {tp: each.offset for tp, each in found.items() if each is not None}

        found: dict[TopicPartition, int] = self.admin(ask)
        return found

    def rewind(self) -> None:
        """Rewinds the group to TO, while its members run."""
        self.alter(dict.fromkeys(self.partitions, TO), live=True)


class RunningGroup(GroupOfTopic):
    """Running members that start at FAR."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        directory: Path,
        kind: str,
        assignor: str,
        *,
        static: bool,
    ) -> None:
        super().__init__(bootstrap, topic)
        self._closing = ExitStack()
        self.members = [
            Member(self.name, topic, bootstrap, f"seat-{n}" if static else None, assignor) for n in range(2)
        ]
        self.running = [self._start(kind, member, directory) for member in self.members]

    def _start(self, kind: str, member: Member, directory: Path) -> JavaMember | ThreadMember:
        if kind == "java":
            running: JavaMember | ThreadMember = JavaMember(member, directory)
        else:
            running = ThreadMember(member, confluent if kind == "librdkafka" else ours)
        self._closing.callback(running.close)
        return running

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        def met() -> bool:
            assert all(member.failures == [] for member in self.members), [
                each.failures for each in self.members
            ]
            assert all(running.alive for running in self.running)
            return condition()

        shown = [(member.got[:1], member.got[-1:], member.lost) for member in self.members]
        assert wait_until(met, timeout_s=120), f"{what}: {shown}"

    def wait_for_old(self) -> None:
        self.wait(lambda: all(len(each.got) > 20 for each in self.members), "both to read")

    def wait_for_new(self) -> None:
        self.wait(lambda: all(len(each.after) > 30 for each in self.members), "both to read from there")
        self.wait(lambda: all(len(each) > 30 for each in self.seen_after().values()), "every partition")

    def seen_after(self) -> dict[int, set[int]]:
        seen: dict[int, set[int]] = {n: set() for n in range(PARTITIONS)}
        for member in self.members:
            for partition, first, last in member.after:
                seen[partition].update(range(first, last + 1))
        return seen

    def check_nothing_old(self) -> None:
        """Asserts that from the rewind on, members got every record from TO, without a gap, and none from the
        old position."""
        committed = {tp.partition: offset for tp, offset in self.committed().items()}
        for partition, offsets in self.seen_after().items():
            assert offsets, f"nothing of partition {partition}"
            assert offsets == set(range(TO, max(offsets) + 1)), f"partition {partition}"
            assert max(offsets) < BETWEEN
            # Nor was anything committed from there.
            assert TO < committed[partition] <= max(offsets) + 1
