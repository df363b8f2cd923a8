"""Consumer groups in the classic protocol: members are killed, paused, slow, join and leave, and static
members are replaced, while a producer appends.

Each group has an assignor (eager or cooperative), dynamic or static members or both, and manual or automatic
commits, by the seed. `group_history` has what is checked while it runs. At the end, within a bounded time:
each group is stable with all its members, has processed and committed every record; a static member that
restarts within its session gets its partitions back without a rebalance (KIP-345); members that leave leave
an empty group with its offsets. Beside them an administrator changes the offsets of groups without members
(`administered_offsets`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from ottla.client import AdminClient, Consumer, Producer
from ottla.client.admin import NewTopic
from ottla.client.core.types import TopicPartition
from ottla.client.errors import ClientError, FencedInstanceIdError
from ottla.protocol.topics import OFFSETS_TOPIC
from ottla.simulation.cluster import Cluster, Violation
from ottla.simulation.loop import Process
from ottla.simulation.workloads.administered_offsets import administer_offsets
from ottla.simulation.workloads.clients import has_former_coordinator
from ottla.simulation.workloads.group_history import Coordinator, GroupHistory, MemberHistory

SESSION_S: Final = 6.0
"""The least that brokers allow by default (group.min.session.timeout.ms)."""
MAX_POLL_S: Final = 8.0
CONVERGED_S: Final = 90.0
"""Within this time after the last fault a group is stable and without lag."""
STRATEGIES: Final = (
    ("range",),
    ("roundrobin",),
    ("sticky",),
    ("cooperative-sticky",),
    ("cooperative-sticky",),
    ("range", "cooperative-sticky"),
)


@dataclass(eq=False)
class Member:
    """A process with one consumer after the other."""

    name: str
    instance: str | None
    process: Process
    predecessors: tuple[str, ...]
    """Member ids that had the instance id when this process was started."""
    history: MemberHistory
    task: asyncio.Task[None] | None = None
    leaving: bool = False
    slow_s: float = 0.0
    """How long it takes for the next record."""
    pace_s: float = 0.0
    """How long it takes for each record: after a pause it commits while it still has records to process."""
    uncommitted: bool = False


@dataclass
class Group:
    """A group with its settings, and the process that each of its places has now."""

    name: str
    strategy: tuple[str, ...]
    is_static: tuple[bool, ...]
    """By place."""
    auto_commit: bool
    history: GroupHistory
    places: list[Member] = field(default_factory=list)
    former: list[Member] = field(default_factory=list)
    """Static members that were replaced while they lived."""


class Groups:
    """See the module."""

    def __init__(
        self,
        *,
        topic: str = "groups",
        partitions: int = 4,
        groups: int = 2,
        members: int = 3,
        rate: float = 20.0,
    ) -> None:
        """`rate` is the number of records in a second."""
        self.topic = topic
        self._partitions = partitions
        self._members = members
        self._interval_s = 1 / rate
        self._numbers = range(groups)
        self._groups: list[Group] = []
        self._disturbing: list[asyncio.Task[None]] = []
        self._working: list[asyncio.Task[None]] = []
        self._incarnations = 0
        self._stopping = False

    async def prepare(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._source = source = cluster.random(self.topic)
        for number in self._numbers:
            name = f"{self.topic}-{number}"
            static = source.choice(((0.0,), (0.0, 1.0), (1.0,)))
            self._groups.append(
                Group(
                    name,
                    source.choice(STRATEGIES),
                    tuple(source.choice(static) > 0 for _ in range(self._members)),
                    source.random() < 0.4,
                    GroupHistory(name, self.topic, self._coordinators),
                )
            )
            group = self._groups[-1]
            cluster.note(
                "simulation",
                f"group {name}: {group.strategy}, static {group.is_static}, auto {group.auto_commit}",
            )
        await cluster.admin(self._create)

    async def _create(self, admin: AdminClient) -> None:
        await admin.create_topics([NewTopic(self.topic, self._partitions, 3)])

    async def run(self) -> None:
        cluster = self._cluster
        producer = cluster.client(f"{self.topic}-producer")
        self._working.append(producer.create_task(self._produce()))
        administrator = cluster.client(f"{self.topic}-administrator")
        work = administer_offsets(cluster, self.topic, self._partitions, lambda: self._stopping)
        self._working.append(administrator.create_task(work))
        for group in self._groups:
            for place in range(self._members):
                group.places.append(self._start(group, place))
            observer = cluster.client(f"{group.name}-observer")
            self._working.append(observer.create_task(self._observe(group)))
            self._disturbing.append(asyncio.ensure_future(self._disturb(group)))
        for task in (*self._working, *self._disturbing):
            task.add_done_callback(cluster.watch)

    # --- the producer and the observer ---

    async def _produce(self) -> None:
        number = 0
        async with Producer(
            bootstrap_servers=self._cluster.bootstrap, delivery_timeout_ms=120_000, request_timeout_ms=5_000
        ) as producer:
            while not self._stopping:
                try:
                    delivery = await producer.send(
                        self.topic, str(number).encode(), partition=self._source.randrange(self._partitions)
                    )
                    # A record that fails is in the topic or not: members process those that are.
                    delivery.add_done_callback(lambda done: done.cancelled() or done.exception())
                except ClientError:
                    await asyncio.sleep(0.5)
                number += 1
                await self._cluster.think(self._source, self._interval_s)

    async def _observe(self, group: Group) -> None:
        async with AdminClient(
            bootstrap_servers=self._cluster.bootstrap, request_timeout_ms=5_000, default_api_timeout_ms=10_000
        ) as admin:
            while not self._stopping:
                await asyncio.sleep(0.7)
                await self._observe_once(group, admin)

    async def _observe_once(self, group: Group, admin: AdminClient) -> dict[int, int] | None:
        """The committed offsets by partition; None if they cannot be read."""
        history = group.history
        before, rewinds, coordinators = dict(history.acknowledged), history.rewinds, self._coordinators()
        is_stale = has_former_coordinator(self._cluster)
        try:
            offsets = await admin.group_offsets(group.name)
        except ClientError:
            return None
        found = {tp.partition: offset for tp, offset in offsets.items()}
        if not is_stale and history.rewinds == rewinds:
            history.observe(before, found, (coordinators, self._coordinators()))
        return found

    def _coordinators(self) -> tuple[Coordinator, ...]:
        """Those of the partitions of committed offsets."""
        machines = self._cluster.machines
        return tuple(
            Coordinator(
                state.leader,
                state.leader_epoch,
                machines[state.leader].starts if state.leader in machines else 0,
            )
            for (topic, _), state in self._cluster.partition_states()
            if topic == OFFSETS_TOPIC
        )

    # --- members ---

    def _start(self, group: Group, place: int, predecessors: tuple[str, ...] = ()) -> Member:
        """Start a process in a place of the group."""
        self._incarnations += 1
        name = f"{group.name}-{place}-{self._incarnations}"
        instance = f"{group.name}-{place}" if group.is_static[place] else None
        member = Member(name, instance, self._cluster.client(name), predecessors, MemberHistory(name))
        member.task = member.process.create_task(self._live(group, member))
        member.task.add_done_callback(self._cluster.watch)
        return member

    async def _live(self, group: Group, member: Member) -> None:
        source = self._cluster.random(member.name)
        while not member.leaving:
            member.history = MemberHistory(member.name)
            records_max, member.pace_s = source.choice(((1, 0.05), (5, 0.05), (5, 0.0), (500, 0.0)))
            consumer = Consumer(
                bootstrap_servers=self._cluster.bootstrap,
                client_id=member.name,
                group_id=group.name,
                group_instance_id=member.instance,
                partition_assignment_strategy=group.strategy,
                session_timeout_ms=int(SESSION_S * 1000),
                heartbeat_interval_ms=1_500,
                max_poll_interval_ms=int(MAX_POLL_S * 1000),
                max_poll_records=records_max,
                request_timeout_ms=5_000,
                default_api_timeout_ms=10_000,
                enable_auto_commit=group.auto_commit,
                auto_commit_interval_ms=source.choice((100, 1_000)),
                auto_offset_reset="earliest",
                interceptors=(Acknowledgements(group.history),) if group.auto_commit else (),
            )
            await consumer.start()
            on_removed = partial(self._removed, group, member, consumer)
            consumer.subscribe(
                [self.topic],
                on_assigned=partial(self._assigned, group, member, consumer),
                on_revoked=partial(on_removed, lost=False),
                on_lost=partial(on_removed, lost=True),
            )
            try:
                while not member.leaving:
                    await self._turn(group, member, consumer)
            except FencedInstanceIdError:
                self._cluster.note(member.name, "is fenced")
                if member not in group.places:
                    member.leaving = True  # replaced
            except ClientError as problem:
                self._cluster.note(member.name, f"consumer failed: {problem!r}")
                await asyncio.sleep(0.5)
            finally:
                await consumer.stop()

    async def _turn(self, group: Group, member: Member, consumer: Consumer) -> None:
        polled = await consumer.poll(0.2)
        for tp, records in polled.items():
            for record in records:
                delay_s, member.slow_s = member.slow_s or member.pace_s, 0.0
                if delay_s:
                    await asyncio.sleep(delay_s)
                group.history.process(member.history, tp.partition, record.offset, record.value)
                member.uncommitted = True
        if polled:
            group.history.request(member.history.known_positions)
        if member.uncommitted and not group.auto_commit:
            await self._commit(group, member, consumer)

    async def _commit(self, group: Group, member: Member, consumer: Consumer) -> None:
        positions = member.history.known_positions
        try:
            commit = group.history.begin_commit(consumer.group_metadata())
            await consumer.commit({(self.topic, each): offset for each, offset in positions.items()})
        except ClientError:
            group.history.refused += 1
            return
        member.uncommitted = False
        group.history.accepted(member.history, commit, positions)

    def _assigned(
        self, group: Group, member: Member, consumer: Consumer, added: list[TopicPartition]
    ) -> None:
        group.history.assigned(
            member.history,
            consumer.group_metadata(),
            sorted(tp.partition for tp in consumer.assignment()),
            [tp.partition for tp in added],
            member.predecessors,
            is_stale=has_former_coordinator(self._cluster),
        )

    async def _removed(
        self,
        group: Group,
        member: Member,
        consumer: Consumer,
        partitions: list[TopicPartition],
        *,
        lost: bool,
    ) -> None:
        try:
            if member.uncommitted and not lost and not group.auto_commit:
                await self._commit(group, member, consumer)
        finally:
            group.history.removed(member.history, [tp.partition for tp in partitions], lost=lost)

    # --- what happens to members ---

    async def _disturb(self, group: Group) -> None:
        source = self._cluster.random(f"{group.name} members")
        while True:
            await asyncio.sleep(source.expovariate(0.4))
            place = source.randrange(self._members)
            member = group.places[place]
            what = source.choice(("kill", "kill", "pause", "slow", "leave", "replace"))
            duration_s = source.choice((0.2, 2.0, SESSION_S * 1.5)) * (0.5 + source.random())
            self._cluster.note(member.name, f"{what}, {duration_s:.1f} s")
            if what == "slow":
                member.slow_s = duration_s
            elif what == "pause":
                member.process.pause()
                await asyncio.sleep(duration_s)
                member.process.resume()
            elif what == "replace" and member.instance is not None:
                await self._replace(group, place, source, duration_s)
            else:
                if what == "leave":
                    await self._leave(member)
                else:
                    self._kill(member)
                await asyncio.sleep(duration_s)
                group.places[place] = self._start(group, place)

    def _kill(self, member: Member) -> None:
        member.process.kill()
        self._cluster.network.process_died(member.process)

    async def _leave(self, member: Member) -> None:
        member.leaving = True
        assert member.task is not None
        await asyncio.wait([member.task], timeout=60)
        if not member.task.done():
            raise Violation(f"liveness: {member.name} has not ended 60 s after it began to leave")

    async def _replace(self, group: Group, place: int, source: random.Random, duration_s: float) -> None:
        """Start another process with the same instance id: it fences the member, which may be paused."""
        member = group.places[place]
        if source.random() < 0.7:
            member.process.pause()
        known = member.history.metadata.member_id
        group.former.append(member)
        group.places[place] = self._start(group, place, (known,) if known else ())
        await asyncio.sleep(duration_s)
        member.process.resume()
        await asyncio.sleep(duration_s)
        self._end_former(group)

    def _end_former(self, group: Group) -> None:
        for member in group.former:
            self._kill(member)
        group.former.clear()

    # --- the end ---

    async def finish(self) -> None:
        self._stopping = True
        for disturbing in self._disturbing:
            disturbing.cancel()
        for group in self._groups:
            self._end_former(group)
            for place, member in enumerate(group.places):
                member.process.resume()
                member.slow_s = 0.0
                if not member.process.alive or member.leaving:
                    group.places[place] = self._start(group, place)
        await self._wait_for(self._working, 180.0)
        await self._cluster.in_process(f"{self.topic}-verifier", self._verify())

    async def _wait_for(self, tasks: Iterable[asyncio.Task[None]], timeout_s: float) -> None:
        done, pending = await asyncio.wait(list(tasks), timeout=timeout_s)
        if pending:
            raise Violation(f"liveness: clients of {self.topic} have not ended: {pending}")
        for task in done:
            task.result()

    async def _verify(self) -> None:
        partitions = [(self.topic, partition) for partition in range(self._partitions)]
        async with AdminClient(bootstrap_servers=self._cluster.bootstrap) as admin:
            ends = {tp.partition: end for tp, end in (await admin.end_offsets(partitions)).items()}
            for group in self._groups:
                await self._until(partial(self._not_stable, admin, group, ends))
                await self._restart_static(group)
                members = [member.task for member in group.places if member.task is not None]
                for member in group.places:
                    member.leaving = True
                await self._wait_for(members, 60.0)
                await self._until(partial(self._not_left, admin, group, ends))
                self._cluster.note(
                    "simulation",
                    f"{group.name}: {group.history.commits} commits, {group.history.refused} refused, "
                    f"{group.history.rewinds} rewinds, "
                    f"generation {group.history.generation}",
                )

    async def _until(self, lacking: Callable[[], Coroutine[Any, Any, str]]) -> None:
        """Wait until nothing lacks. Raises Violation."""
        deadline = self._cluster.loop.now + CONVERGED_S
        while text := await lacking():
            if self._cluster.loop.now > deadline:
                raise Violation(f"liveness: after {CONVERGED_S:.0f} s {text}")
            await asyncio.sleep(0.5)

    async def _not_stable(self, admin: AdminClient, group: Group, ends: Mapping[int, int]) -> str:
        if problem := await self._lag(admin, group, ends):
            return problem
        description = await admin.describe_group(group.name)
        if description.state != "Stable" or len(description.members) != self._members:
            return f"group {group.name} is {description.state} with {len(description.members)} members"
        if not all(member.history.rebalances for member in group.places):
            return f"members of group {group.name} have no assignment"
        return ""

    async def _lag(self, admin: AdminClient, group: Group, ends: Mapping[int, int]) -> str:
        committed = await self._observe_once(group, admin)
        if committed is None:
            return f"the offsets of group {group.name} cannot be read"
        for partition, end in ends.items():
            found = committed.get(partition, 0)
            is_processed = group.history.processed.get(partition, 0) == end
            if found != end and not (is_processed and group.history.may_be_late(partition, found)):
                return (
                    f"group {group.name} has committed offset {committed.get(partition)} of "
                    f"{self.topic}-{partition}, processed {group.history.processed.get(partition)}, of {end}"
                )
        return ""

    async def _restart_static(self, group: Group) -> None:
        """A static member restarts within its session, and nothing else happens."""
        place = next((place for place, static in enumerate(group.is_static) if static), None)
        if place is None:
            return
        await self._until(partial(self._unsteady, group))
        before = group.places[place]
        generation = group.history.generation
        self._kill(before)
        after = group.places[place] = self._start(group, place)
        deadline = self._cluster.loop.now + SESSION_S
        while not after.history.rebalances:
            if self._cluster.loop.now > deadline:
                raise Violation(f"static membership: {after.name} has no assignment after {SESSION_S:.0f} s")
            await asyncio.sleep(0.1)
        await asyncio.sleep(3.0)
        if group.history.generation != generation:
            raise Violation(
                f"static membership: {after.name} restarted within its session, and group {group.name} went "
                f"from generation {generation} to {group.history.generation}"
            )
        if after.history.positions.keys() != before.history.positions.keys():
            raise Violation(
                f"static membership: {after.name} had partitions {sorted(before.history.positions)} before "
                f"its restart, and {sorted(after.history.positions)} after it"
            )

    async def _unsteady(self, group: Group) -> str:
        generation = group.history.generation
        await asyncio.sleep(5.0)
        current = {member.history.metadata.generation_id for member in group.places}
        if current == {generation} and group.history.generation == generation:
            return ""
        return f"group {group.name} still rebalances"

    async def _not_left(self, admin: AdminClient, group: Group, ends: Mapping[int, int]) -> str:
        description = await admin.describe_group(group.name)
        expected = sum(group.is_static)
        if len(description.members) > expected or (not expected and description.state != "Empty"):
            return f"group {group.name} is {description.state} with {len(description.members)} members"
        return await self._lag(admin, group, ends)


class Acknowledgements:
    """A consumer interceptor that reports automatic commits."""

    def __init__(self, history: GroupHistory) -> None:
        self._history = history

    def on_consume(self, records: Any) -> Any:
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, Any]) -> None:
        self._history.acknowledge({tp.partition: committed.offset for tp, committed in offsets.items()})

    def close(self) -> None:
        """Nothing is open."""
