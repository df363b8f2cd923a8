"""Groups under random faults: they become stable, and the log has their state."""

from __future__ import annotations

import asyncio
import random

import pytest

from ottla.coordinators.group import GroupState
from ottla.protocol.errors import ErrorCode
from tests.unit.test_coordinators_rewind import rewind
from tests.worlds.simulated_coordinators import REBALANCE_MS, Client, SimulatedGroups, run_until_idle

ASK_AGAIN = {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
START_AFRESH = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}


class Consumer:
    """A consumer: joins, syncs, sends heartbeats every 3 seconds, and rejoins on errors."""

    def __init__(
        self, simulation: SimulatedGroups, name: str, *, static: bool, rebalance_ms: int = REBALANCE_MS
    ) -> None:
        self.name = name
        self.static = static
        self.client = simulation.client(
            name, instance_id=f"i-{name}" if static else None, rebalance_ms=rebalance_ms
        )
        self.stable = False
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.stable = False
        self.task = asyncio.get_running_loop().create_task(self._run())

    def crash(self) -> None:
        assert self.task is not None
        self.task.cancel()
        self.client = self.client.restarted()

    async def _run(self) -> None:
        client = self.client
        while True:
            self.stable = False
            join = await client.joining()
            if join.error_code != ErrorCode.NONE:
                assert join.error_code in ASK_AGAIN | START_AFRESH, ErrorCode(join.error_code).name
                if join.error_code in START_AFRESH:
                    client.member_id = ""
                await self._pause()
                continue
            client.took(join)
            shares = {member.member_id: member.member_id.encode() for member in join.members}
            sync = await client.syncing(shares)
            if sync.error_code != ErrorCode.NONE:
                assert sync.error_code in ASK_AGAIN | START_AFRESH, ErrorCode(sync.error_code).name
                continue
            client.assignment = sync.assignment
            await self._consume(client)

    async def _consume(self, client: Client) -> None:
        self.stable = True
        while True:
            await self._pause()
            error = await client.heartbeat()
            if error is not ErrorCode.NONE:
                assert error in ASK_AGAIN | START_AFRESH, error.name
                if error in START_AFRESH:
                    client.member_id = ""
                return
            committed = await client.commit(1)
            assert committed in ASK_AGAIN | START_AFRESH | {ErrorCode.NONE}, committed.name

    async def _pause(self) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.client.simulation.time.call_later(3_000, lambda: wake(done))
        await done


def wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


async def simulate(seed: int) -> None:
    chance = random.Random(seed)
    simulation = await SimulatedGroups(group_initial_rebalance_delay_ms=3_000).started()
    consumers = [Consumer(simulation, f"c{n}", static=chance.random() < 0.4) for n in range(6)]
    running: set[Consumer] = set()
    for _ in range(40):
        consumer = chance.choice(consumers)
        if consumer not in running:
            running.add(consumer)
            consumer.start()
        elif chance.random() < 0.5:
            running.remove(consumer)
            leaver = consumer.client
            consumer.crash()
            await run_until_idle()
            if chance.random() < 0.5 and leaver.member_id:
                await leaver.leave()
        if chance.random() < 0.1:
            assert await rewind(simulation) == {("t", 0): ErrorCode.NONE}
        await simulation.time.advance(chance.choice([0, 10, 1_000, 5_000, 20_000]))

    await simulation.time.advance(4 * REBALANCE_MS)
    for consumer in running:
        assert consumer.task is not None
        assert not consumer.task.done(), consumer.task.exception()
        assert consumer.stable, f"{consumer.name} has no assignment"
    described = await simulation.describe()
    assert {member.member_id for member in described.members} == {c.client.member_id for c in running}
    assert described.group_state in (("Stable",) if running else ("Empty", "Dead"))
    # Each has the share that was made for it, or for its predecessor under the same instance id.
    for consumer in running:
        share = consumer.client.assignment.decode()
        assert share == consumer.client.member_id or (consumer.static and share.startswith("i-")), share
    assert len({c.client.assignment for c in running}) == len(running)

    other = await simulation.elsewhere()
    assert sorted_members(await other.describe()) == sorted_members(described)
    for consumer in running:
        assert consumer.task is not None
        consumer.task.cancel()


class HeartbeatOnlyMember(Consumer):
    """Joins once, and then only sends heartbeats, regardless of the responses."""

    async def _consume(self, client: Client) -> None:
        while True:
            await self._pause()
            error = await client.heartbeat()
            if error is ErrorCode.FENCED_INSTANCE_ID or error in START_AFRESH:
                client.member_id = ""
                return


async def simulate_heartbeat_only_members(seed: int) -> None:
    """A rebalance takes no longer than the longest rebalance timeout of the members at its start.

    The one exception is Kafka's: without any member that joined, silent static members are waited for. So one
    consumer behaves well all the time.
    """
    chance = random.Random(seed)
    initial_delay_ms = chance.choice([0, 3_000])
    simulation = await SimulatedGroups(group_initial_rebalance_delay_ms=initial_delay_ms).started()
    timeouts_ms = [chance.choice([5_000, 20_000, REBALANCE_MS]) for _ in range(8)]
    kinds = [Consumer, *(chance.choice([Consumer, HeartbeatOnlyMember]) for _ in timeouts_ms[1:])]
    consumers = [
        kind(simulation, f"c{n}", static=chance.random() < 0.3, rebalance_ms=timeout_ms)
        for n, (kind, timeout_ms) in enumerate(zip(kinds, timeouts_ms, strict=True))
    ]
    steady, *others = consumers
    steady.start()
    running: set[Consumer] = set()
    begun_ms: set[int] = set()
    longest_ms = 0
    for _ in range(900):
        consumer = chance.choice(others)
        event = chance.random()
        if event < 0.02:
            # Asks for a member id, and does not come back with it.
            visitor = simulation.client("visitor", rebalance_ms=REBALANCE_MS)
            pending = await visitor.join_once()
            assert pending.error_code == ErrorCode.MEMBER_ID_REQUIRED
        elif event < 0.06 and consumer not in running:
            running.add(consumer)
            consumer.start()
        elif event < 0.08 and consumer in running:
            running.remove(consumer)
            leaver = consumer.client
            consumer.crash()
            await run_until_idle()
            if chance.random() < 0.5 and leaver.member_id:
                await leaver.leave()
        await simulation.time.advance(500)
        group = simulation.coordinator._manager.find("g")
        if group is not None and group.state is GroupState.PREPARING_REBALANCE:
            assert group.state_since_ms is not None
            begun_ms.add(group.state_since_ms)
            longest_ms = max(longest_ms, simulation.time.wall_ms() - group.state_since_ms)
        assert longest_ms <= max(timeouts_ms) + initial_delay_ms, f"{longest_ms} ms in PreparingRebalance"
    assert len(begun_ms) > 2, "nothing was tested"
    for consumer in [steady, *running]:
        assert consumer.task is not None
        assert not consumer.task.done(), consumer.task.exception()
        consumer.task.cancel()


@pytest.mark.parametrize("seed", range(20))
def test_members_that_only_send_heartbeats_do_not_prolong_a_rebalance(seed: int) -> None:
    asyncio.run(simulate_heartbeat_only_members(seed))


def sorted_members(described: object) -> object:
    members = getattr(described, "members", [])
    members.sort(key=lambda member: member.member_id)
    return described


@pytest.mark.parametrize("seed", range(25))
def test_groups_become_stable_after_any_faults(seed: int) -> None:
    asyncio.run(simulate(seed))
