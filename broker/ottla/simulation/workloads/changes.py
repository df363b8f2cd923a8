"""An administrator changes topics, settings and brokers by the shipped admin client, while records flow.

Reassignments and their cancellation, preferred elections, partition growth, deletion and re-creation of a
topic under the same name, dynamic settings of topics and brokers, a broker that joins and one that leaves.
Reassignments move the topics of the other workloads, too.

Checked: a change that was acknowledged is visible when the cluster is whole; reassignments end; each topic
has the replicas that were asked for; a re-created topic has another id, holds no record of the
former one, and all records that were sent and acknowledged since.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final
from uuid import UUID

from ottla.client import AdminClient, Consumer, Producer
from ottla.client.admin import ConfigResource, ConfigType, NewTopic, TopicPartition
from ottla.client.errors import ClientError
from ottla.simulation.cluster import Cluster, Violation
from ottla.simulation.invariants import check_acknowledged

PARTITIONS_MAX: Final = 5
VISIBLE_S: Final = 60.0
"""A change without faults must be visible after so long."""
RECREATED_S: Final = 240.0
"""A topic must have been deleted and re-created after so long, faults included."""
CONFIG_SPREAD_S: Final = 8.0
"""After so long a broker that reaches ZooKeeper has applied a changed setting."""

CREATED_WITH: Final = {"segment.bytes": "16384"}
TOPIC_SETTINGS: Final = {
    "min.insync.replicas": ("1", "2"),
    "segment.bytes": ("16384", "32768", "100000"),
    "retention.ms": ("-1", "86400000", "604800000"),
    "retention.bytes": ("-1", "1000000000"),
}
BROKER_SETTINGS: Final = {
    "log.cleaner.threads": ("1", "2"),
    "log.retention.ms": ("86400000", "604800000"),
    "log.segment.bytes": ("32768", "65536"),
    "num.io.threads": ("4", "8"),
}

_Key = tuple[str, ...]
"""What is changed: `("replicas", topic, partition)`, `("topic", name of a setting)` and so on."""


class Changes:
    """See the module."""

    def __init__(self, *, topic: str = "changes", rate: float = 20.0, changes_rate: float = 1.0) -> None:
        """`rate`: records in a second; `changes_rate`: changes in a second."""
        self.topic = topic
        self._interval_s = 1 / rate
        self._changes_rate = changes_rate
        self._possible: dict[_Key, set[str]] = {}
        """The values that each thing may have: more than one after a change without an answer."""
        self._phase = 0
        """Even: incarnation `phase / 2` of the topic exists; odd: it is being deleted and re-created."""
        self._ids: list[UUID] = []
        """The topic ids of the incarnations."""
        self._of_incarnation: dict[str, int] = {}
        """The incarnation in which a record was acknowledged, if it is certain."""
        self._places: dict[str, tuple[int, int]] = {}
        self._partitions = 2
        """At least so many partitions exist."""
        self._config_changed_s = 0.0
        self._leaving: int | None = None
        """A broker whose replicas are moved away."""
        self._joins = self._joined = False
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def prepare(self, cluster: Cluster) -> None:
        self._cluster = cluster
        cluster.is_administered = True
        self._random = cluster.random(self.topic)
        self._joins = self._random.random() < 0.5
        await cluster.admin(self._create)

    async def _create(self, admin: AdminClient) -> None:
        created = await admin.create_topics([NewTopic(self.topic, 2, 3, CREATED_WITH)])
        self._ids.append(created[self.topic].topic_id)

    async def run(self) -> None:
        for name, work in (
            ("admin", self._administrate),
            ("producer", self._produce),
            ("consumer", self._consume),
        ):
            process = self._cluster.client(f"{self.topic}-{name}")
            self._tasks.append(process.create_task(work()))

    # --- the administrator ---

    async def _administrate(self) -> None:
        source = self._random
        changes = [
            (self._reassign, 4.0),
            (self._cancel, 1.5),
            (self._elect, 1.0),
            (self._grow, 0.5),
            (self._set_topic, 1.5),
            (self._set_broker, 1.0),
            (self._recreate, 0.3),
            (self._scale, 0.5 if self._joins else 0.0),
        ]
        while not self._stopping:
            async with AdminClient(
                bootstrap_servers=self._cluster.bootstrap, default_api_timeout_ms=10_000
            ) as admin:
                for _ in range(20):
                    await asyncio.sleep(0.2 + source.expovariate(self._changes_rate))
                    if self._stopping:
                        break
                    (change,) = source.choices([each for each, _ in changes], [rate for _, rate in changes])
                    try:
                        await change(admin)
                    except ClientError as problem:
                        self._note(f"{change.__name__[1:]} failed: {problem!r}")

    def _note(self, text: str) -> None:
        self._cluster.note(f"{self.topic}-admin", text)

    async def _change(self, key: _Key, value: str, request: Coroutine[Any, Any, object]) -> None:
        """Make a change; raises what the request raises."""
        before = self._possible.get(key)
        if before is not None:
            before.add(value)
        await request
        # A request without an answer may take effect later than one with an answer.
        if before is None or len(before) <= 2:
            self._possible[key] = {value}
        self._note(f"{' '.join(key)} is {value}")

    def _replicas_key(self, tp: TopicPartition) -> _Key:
        return ("replicas of", tp.topic, str(tp.partition))

    def _pick_replicas(self, count: int, source: random.Random) -> list[int]:
        brokers = [m.id for m in self._cluster.machines.values() if m.id != self._leaving]
        return source.sample(brokers, min(count, len(brokers)))

    async def _reassign(self, admin: AdminClient) -> None:
        """Move some partitions of a topic."""
        if self._leaving is not None:
            return await self._drain(admin)
        source = self._random
        topics = self._cluster.topics()
        topic = source.choice(list(topics))
        for number, replicas in topics[topic].partitions.items():
            if source.random() < 0.6:
                removing = topics[topic].removing.get(number, ())
                count = len([each for each in replicas if each not in removing])
                if topic == self.topic:
                    count = source.choice((2, 3, 3))
                target = self._pick_replicas(count, source)
                await self._move(admin, TopicPartition(topic, number), target)
        return None

    async def _move(self, admin: AdminClient, tp: TopicPartition, target: list[int]) -> None:
        key = self._replicas_key(tp)
        if key not in self._possible:
            assignment = self._cluster.topics().get(tp.topic)
            if assignment is None or tp.partition not in assignment.partitions:
                return
            self._possible[key] = {str(list(assignment.partitions[tp.partition]))}

        async def request() -> None:
            (await admin.alter_partition_reassignments({tp: target})).raise_first()

        await self._change(key, str(target), request())

    async def _cancel(self, admin: AdminClient) -> None:
        moves = await admin.list_partition_reassignments()
        for tp, move in moves.items():
            if self._random.random() < 0.5 and self._leaving not in move.replicas:
                key = self._replicas_key(tp)
                origin = [each for each in move.replicas if each not in move.adding]
                self._possible.setdefault(key, set()).add(str(origin))
                self._possible[key].add(str([each for each in move.replicas if each not in move.removing]))
                (await admin.alter_partition_reassignments({tp: None})).raise_first()
                self._note(f"reassignment of {tp} is cancelled")

    async def _elect(self, admin: AdminClient) -> None:
        await admin.elect_preferred_leaders()

    async def _grow(self, admin: AdminClient) -> None:
        count = self._partitions + 1
        if count > PARTITIONS_MAX:
            return
        phase = self._phase

        async def request() -> None:
            (await admin.create_partitions({self.topic: count})).raise_first()

        key = ("number of partitions of", self.topic)
        self._possible.setdefault(key, {str(self._partitions)})
        await self._change(key, str(count), request())
        if phase == self._phase:
            self._partitions = count

    async def _set_topic(self, admin: AdminClient) -> None:
        source = self._random
        name = source.choice(list(TOPIC_SETTINGS))
        value = source.choice(TOPIC_SETTINGS[name])
        if name == "min.insync.replicas":
            self._config_changed_s = self._cluster.loop.now + 10.0
        key = ("topic setting", name)
        self._possible.setdefault(key, {CREATED_WITH.get(name, "")})
        await self._change(key, value, admin.alter_topic_config(self.topic, set_values={name: value}))
        if name == "min.insync.replicas":
            self._config_changed_s = self._cluster.loop.now

    async def _set_broker(self, admin: AdminClient) -> None:
        source = self._random
        name = source.choice(list(BROKER_SETTINGS))
        value = source.choice(BROKER_SETTINGS[name])
        broker_id = source.choice([None, *(each for each in self._cluster.machines if each < 3)])
        key = ("setting", name, "of", "all brokers" if broker_id is None else f"broker {broker_id}")
        self._possible.setdefault(key, {""})
        await self._change(key, value, admin.alter_broker_config(broker_id, set_values={name: value}))

    async def _recreate(self, admin: AdminClient) -> None:
        """Delete the topic and create it again, under the same name."""
        self._phase += 1
        self._note("deletes the topic")
        for key in [key for key in self._possible if self.topic in key or key[0] == "topic setting"]:
            del self._possible[key]
        self._partitions = 1
        deadline = self._cluster.loop.now + RECREATED_S
        while True:
            if self._cluster.loop.now > deadline:
                raise Violation(f"liveness: {self.topic} is not deleted and created in {RECREATED_S:.0f} s")
            try:
                await admin.delete_topic(self.topic)
            except ClientError as problem:
                if problem.name == "UNKNOWN_TOPIC_OR_PARTITION":
                    break
            await asyncio.sleep(0.5)
        while True:
            if self._cluster.loop.now > deadline:
                raise Violation(f"liveness: {self.topic} is not deleted and created in {RECREATED_S:.0f} s")
            try:
                found = await admin.create_topics([NewTopic(self.topic, 2, 3, CREATED_WITH)])
                topic_id = found[self.topic].topic_id
                break
            except ClientError as problem:
                # Another attempt may have created it, without an answer.
                if problem.name == "TOPIC_ALREADY_EXISTS":
                    try:
                        topic_id = (await admin.describe_topics([self.topic]))[self.topic].topic_id
                    except ClientError:
                        continue
                    if topic_id != self._ids[-1]:
                        break
            await asyncio.sleep(0.5)
        if topic_id in self._ids:
            raise Violation(f"topic ids: the re-created {self.topic} has the id of a former one, {topic_id}")
        self._ids.append(topic_id)
        self._partitions = 2
        self._config_changed_s = self._cluster.loop.now
        self._phase += 1
        self._note(f"has re-created the topic, {topic_id}")

    # --- brokers that join and leave ---

    async def _scale(self, admin: AdminClient) -> None:
        cluster = self._cluster
        if not self._joined:
            self._joined = True
            cluster.add_broker()
        elif self._leaving is None and len(cluster.machines) > 3:
            self._leaving = max(cluster.machines)
            self._note(f"broker {self._leaving} is to leave")
        if self._leaving is not None:
            await self._drain(admin)

    async def _drain(self, admin: AdminClient) -> None:
        """Move replicas off the broker that leaves; remove it when it has none."""
        cluster, leaving = self._cluster, self._leaving
        assert leaving is not None
        held = [
            (TopicPartition(topic, number), replicas, assignment.removing.get(number, ()))
            for topic, assignment in cluster.topics().items()
            for number, replicas in assignment.partitions.items()
            if leaving in replicas
        ]
        for tp, replicas, removing in held:
            kept = [each for each in replicas if each not in (leaving, *removing)]
            if leaving in removing:
                continue
            others = [each for each in self._pick_replicas(9, self._random) if each not in replicas]
            missing = len(replicas) - len(removing) - len(kept)
            await self._move(admin, tp, [*kept, *others[:missing]])
        if held:
            return
        machine = cluster.machines[leaving]
        machine.wanted = False
        await _in_simulation(cluster, cluster.stop_broker(leaving))
        # Its session may end later than its process.
        await asyncio.sleep(5.0)
        if any(leaving in r for a in cluster.topics().values() for r in a.partitions.values()):
            # A topic was created meanwhile.
            machine.wanted = True
            if not machine.is_running:
                cluster.start_broker(leaving)
            return
        cluster.remove_broker(leaving)
        self._leaving = None

    # --- records ---

    async def _produce(self) -> None:
        source = self._cluster.random(f"{self.topic}-producer")
        number = 0
        while not self._stopping:
            async with Producer(
                bootstrap_servers=self._cluster.bootstrap,
                delivery_timeout_ms=15_000,
                request_timeout_ms=5_000,
                max_block_ms=5_000,
            ) as producer:
                pending: set[asyncio.Future[Any]] = set()
                for _ in range(100):
                    if self._stopping:
                        break
                    value = f"record {number}"
                    number += 1
                    at = (self._phase, self._cluster.loop.now)
                    try:
                        delivery = await producer.send(
                            self.topic, value.encode(), partition=source.randrange(self._partitions)
                        )
                    except ClientError:
                        await asyncio.sleep(0.5)
                        continue
                    pending.add(delivery)
                    delivery.add_done_callback(pending.discard)
                    delivery.add_done_callback(partial(self._delivered, value, at))
                    await self._cluster.think(source, self._interval_s)
                if pending:
                    await asyncio.wait(pending)

    def _delivered(self, value: str, sent: tuple[int, float], delivery: asyncio.Future[Any]) -> None:
        if delivery.cancelled() or delivery.exception() is not None:
            return
        phase, sent_s = sent
        if phase != self._phase or phase % 2:
            return
        place = delivery.result()
        self._of_incarnation[value] = phase // 2
        self._places[value] = (place.partition, place.offset)
        if sent_s > self._config_changed_s + CONFIG_SPREAD_S:
            check_acknowledged(self._cluster, self.topic, place.partition, place.offset, sent_s=sent_s)

    async def _consume(self) -> None:
        while not self._stopping:
            phase = self._phase
            if phase % 2:
                await asyncio.sleep(0.2)
                continue
            consumer = Consumer(bootstrap_servers=self._cluster.bootstrap, auto_offset_reset="earliest")
            await consumer.start()
            try:
                consumer.assign([(self.topic, number) for number in range(self._partitions)])
                until_s = self._cluster.loop.now + 4.0
                while self._cluster.loop.now < until_s and not self._stopping:
                    for tp, records in (await consumer.poll(0.2)).items():
                        for record in records:
                            self._check_incarnation(record.value.decode(), tp, record.offset, phase // 2)
            except ClientError as problem:
                self._cluster.note(f"{self.topic}-consumer", f"failed: {problem!r}")
                await asyncio.sleep(0.5)
            finally:
                await consumer.stop()

    def _check_incarnation(self, value: str, tp: Any, offset: int, incarnation: int) -> None:
        known = self._of_incarnation.get(value)
        if known is not None and known < incarnation:
            raise Violation(
                f"no records of a deleted topic: offset {offset} of {tp} is {value!r}, which belongs to "
                f"incarnation {known}, before {incarnation}"
            )

    # --- the end ---

    async def finish(self) -> None:
        self._stopping = True
        cluster = self._cluster
        _, pending = await asyncio.wait(self._tasks, timeout=180)
        if pending:
            raise Violation(f"liveness: clients of {self.topic} have not ended: {pending}")
        for task in self._tasks:
            task.result()
        await cluster.admin(self._end)
        cluster.note(
            "simulation",
            f"{self.topic}: {len(self._ids)} incarnations, {len(self._of_incarnation)} acknowledged, "
            f"{len(self._possible)} changed",
        )

    async def _end(self, admin: AdminClient) -> None:
        await self._until(lambda: self._not_left(admin))
        await self._until(lambda: self._not_reassigned(admin))
        await self._until(lambda: self._not_visible(admin))
        await self._check_records()
        await self._change_all(admin)
        await self._recreate(admin)
        await self._until(lambda: self._not_created(admin))
        await self._check_records()

    async def _until(self, lacking: Callable[[], Coroutine[Any, Any, str]]) -> None:
        """Wait until nothing is lacking: brokers learn of a change soon, not at once. Raises Violation."""
        deadline = self._cluster.loop.now + VISIBLE_S
        while True:
            try:
                problem = await lacking()
            except ClientError as error:
                problem = repr(error)
            if not problem:
                return
            if self._cluster.loop.now > deadline:
                raise Violation(f"changes are visible: not after {VISIBLE_S:.0f} s without faults: {problem}")
            await asyncio.sleep(0.5)

    async def _not_left(self, admin: AdminClient) -> str:
        if self._leaving is not None:
            await self._drain(admin)
        return "" if self._leaving is None else f"broker {self._leaving} leaves"

    async def _not_reassigned(self, admin: AdminClient) -> str:
        moves = await admin.list_partition_reassignments()
        return f"reassignments end: {moves}" if moves else ""

    async def _not_created(self, admin: AdminClient) -> str:
        topic = (await admin.describe_topics([self.topic]))[self.topic]
        if topic.topic_id == self._ids[-1]:
            return ""
        return f"{self.topic} has id {topic.topic_id}, and was created as {self._ids[-1]}"

    async def _values(self, admin: AdminClient) -> dict[_Key, str]:
        """What the brokers describe."""
        topics = await admin.describe_topics()
        found: dict[_Key, str] = {
            ("number of partitions of", self.topic): str(len(topics[self.topic].partitions))
        }
        for topic in topics.values():
            for each in topic.partitions:
                found[self._replicas_key(TopicPartition(topic.name, each.partition))] = str(
                    list(each.replicas)
                )
        resources = [ConfigResource(ConfigType.TOPIC, self.topic), ConfigResource(ConfigType.BROKER, "")]
        resources += [ConfigResource(ConfigType.BROKER, str(each)) for each in self._cluster.machines]
        for resource, entries in (await admin.describe_configs(resources)).items():
            for name, entry in entries.items():
                if resource.type is ConfigType.TOPIC:
                    found["topic setting", name] = (entry.value or "") if entry.source == 1 else ""
                elif resource.name == "":
                    found["setting", name, "of", "all brokers"] = entry.value or ""
                else:
                    value = entry.value if entry.source == 2 else ""
                    found["setting", name, "of", f"broker {resource.name}"] = value or ""
        return found

    async def _not_visible(self, admin: AdminClient) -> str:
        found = await self._values(admin)
        topics = self._cluster.topics()
        for key, possible in self._possible.items():
            if key[0] == "replicas of" and key[1] not in topics:
                continue  # another workload has deleted it
            value = found.get(key, "")
            if value not in possible:
                return f"{' '.join(key)} must be one of {sorted(possible)}, and is {value!r}"
        return ""

    async def _change_all(self, admin: AdminClient) -> None:
        """Change everything once more, without faults: each change must be visible."""
        topic = (await admin.describe_topics([self.topic]))[self.topic]
        targets = {
            TopicPartition(self.topic, each.partition): self._pick_replicas(3, self._random)
            for each in topic.partitions
        }
        (await admin.alter_partition_reassignments(targets)).raise_first()
        values = {name: self._random.choice(choice) for name, choice in TOPIC_SETTINGS.items()}
        await admin.alter_topic_config(self.topic, set_values=values)
        await self._until(lambda: self._not_reassigned(admin))

        async def lacking() -> str:
            await admin.elect_preferred_leaders(targets)
            described = (await admin.describe_topics([self.topic]))[self.topic]
            config = (await admin.describe_topic_configs([self.topic]))[self.topic]
            for each in described.partitions:
                target = targets[TopicPartition(self.topic, each.partition)]
                is_as_asked = list(each.replicas) == target and set(each.isr) == set(target)
                if not is_as_asked or each.leader != target[0]:
                    return f"{each} is to have replicas {target}"
            for name, value in values.items():
                if config[name].value != value:
                    return f"{name} is {config[name]}, and {value} was set"
            return self._lacking_in_brokers(values)

        await self._until(lacking)

    def _lacking_in_brokers(self, values: dict[str, str]) -> str:
        """Every broker must use the settings of the topic."""
        wanted = int(values["min.insync.replicas"])
        for machine in self._cluster.machines.values():
            assert machine.broker is not None
            for replica in machine.broker.replication.replicas.partitions():
                used = replica.log.config.min_insync_replicas
                if replica.topic == self.topic and used != wanted:
                    return f"{machine.host} uses min.insync.replicas {used} for {replica!r}, {wanted} is set"
        return ""

    async def _check_records(self) -> None:
        records = await self._cluster.in_process(f"{self.topic}-verifier", self._read_all())
        incarnation = self._phase // 2
        for value, (number, offset) in records.items():
            self._check_incarnation(value, f"{self.topic}-{number}", offset, incarnation)
        for value, of in self._of_incarnation.items():
            if of == incarnation and records.get(value) != self._places[value]:
                raise Violation(
                    f"nothing acknowledged is lost: {value!r} was acknowledged at {self._places[value]} of "
                    f"{self.topic}, and is at {records.get(value)}"
                )

    async def _read_all(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        async with Consumer(
            bootstrap_servers=self._cluster.bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            count = len(self._cluster.topics()[self.topic].partitions)
            partitions = [(self.topic, number) for number in range(count)]
            consumer.assign(partitions)
            ends = await consumer.end_offsets(partitions)
            while [tp for tp, end in ends.items() if await consumer.position(tp) < end]:
                for tp, records in (await consumer.poll(1.0)).items():
                    for record in records:
                        value = record.value.decode()
                        if value in found:
                            raise Violation(
                                f"no duplicates: {value!r} is at {found[value]} and at offset "
                                f"{record.offset} of {tp}"
                            )
                        found[value] = (tp.partition, record.offset)
        return found


async def _in_simulation(cluster: Cluster, work: Coroutine[Any, Any, None]) -> None:
    """Run what belongs to the simulation, and not to the process that runs now."""
    await cluster.loop.create_task(work, context=cluster.network.context)
