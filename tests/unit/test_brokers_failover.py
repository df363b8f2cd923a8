"""Brokers are paused, killed and cut off from ZooKeeper: who may lead, and what is acknowledged meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from ottla.client import Producer
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import CreateTopicsRequest, MetadataRequest, ProduceRequest
from ottla.protocol.records import Record, build_batch
from ottla.simulation.cluster import PORT, Cluster
from ottla.simulation.ensemble import HOST
from ottla.storage.log_validator import INLINE_RECORDS_MAX
from ottla.wire.connection import BrokerConnection, ConnectionLost
from tests.worlds.simulated_brokers import (
    Load,
    broker_epoch,
    call,
    controller,
    create,
    end_session,
    in_sync,
    produce,
    produce_request,
    read,
    restart,
    run,
    serving,
    state_of,
    until,
)


def test_a_paused_controller_is_fenced() -> None:
    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "topic")
        load = Load(cluster, "topic")
        await load.more()
        zombie = controller(cluster)
        row = CreateTopicsRequest.CreatableTopic(name="by-a-zombie", num_partitions=1, replication_factor=3)

        async def ask() -> Any:
            """By a connection from before."""
            connection = await BrokerConnection.open(cluster.machines[zombie].host, PORT, timeout_s=30)
            cluster.pause(zombie)
            try:
                return await connection.request(
                    CreateTopicsRequest(topics=[row], timeout_ms=20_000), timeout_s=60
                )
            except ConnectionLost:
                return None
            finally:
                connection.close()

        asking = cluster.client("stubborn").create_task(ask())
        await until(lambda: controller(cluster) not in (zombie, -1), "another controller")
        await load.more()
        cluster.resume(zombie)
        answer = await asking
        assert answer is None or answer.topics[0].error_code == ErrorCode.NOT_CONTROLLER
        await until(lambda: in_sync(cluster, "topic") == {0, 1, 2}, "the zombie to be in sync again")
        found = {broker.replication.cache.controller_id for broker in serving(cluster)}
        assert found == {controller(cluster)}, "the zombie, too, knows whom to obey"
        assert "by-a-zombie" not in cluster.topics()
        await create(cluster, "by-its-successor")
        await load.more()
        await load.check()

    run(scenario)


@pytest.mark.parametrize("is_paused", [True, False], ids=["paused", "cut off from its leader"])
def test_a_follower_that_does_not_fetch_leaves_the_isr_and_rejoins(is_paused: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "topic")
        load = Load(cluster, "topic")
        await load.more()
        leader = state_of(cluster, "topic").leader
        follower = max(set(cluster.machines) - {leader, controller(cluster)})
        hosts = [cluster.machines[broker].host for broker in (leader, follower)]
        if is_paused:
            cluster.pause(follower)
            end = partial(cluster.resume, follower)
        else:
            end = cluster.isolate(hosts[:1], hosts[1:])
        await until(lambda: follower not in in_sync(cluster, "topic"), "it to leave the ISR", timeout_s=4.0)
        assert broker_epoch(cluster, follower) >= 0, "for its lag, and not for the end of its session"
        await load.more()
        end()
        await until(lambda: follower in in_sync(cluster, "topic"), "it to be in sync again")
        await load.check()

    run(scenario, settings={"zookeeper.session.timeout.ms": "9000", "replica.lag.time.max.ms": "2000"})


@pytest.mark.parametrize("is_controller", [True, False], ids=["controller", "leader"])
@pytest.mark.parametrize("is_cut", [True, False], ids=["cut off from ZooKeeper", "session ended"])
def test_a_broker_without_its_session_is_superseded_and_registers_again(
    is_controller: bool, is_cut: bool
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "topic", {n: (n % 3, (n + 1) % 3, (n + 2) % 3) for n in range(3)})
        load = Load(cluster, "topic", 3)
        await load.more()
        elected = controller(cluster)
        gone = elected if is_controller else max(set(cluster.machines) - {elected})
        before = state_of(cluster, "topic", gone)
        assert before.leader == gone
        registration = broker_epoch(cluster, gone)
        if is_cut:
            restore = cluster.isolate([cluster.machines[gone].host], [HOST])
            await until(lambda: state_of(cluster, "topic", gone).leader not in (gone, -1), "another leader")
            await load.more()
            restore()
        else:
            end_session(cluster, gone)
        await until(lambda: broker_epoch(cluster, gone) > registration, "it to register again")
        await load.more()
        await until(lambda: all(in_sync(cluster, "topic", n) == {0, 1, 2} for n in range(3)), "full ISRs")
        assert state_of(cluster, "topic", gone).leader_epoch > before.leader_epoch
        assert controller(cluster) in cluster.machines
        assert cluster.machines[gone].starts == 1
        await load.more()
        await load.check()

    run(scenario)


def test_records_are_acknowledged_without_a_zookeeper() -> None:
    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "topic")
        load = Load(cluster, "topic")
        await load.more()
        cluster.ensemble.set_available(False)
        await load.more(500)  # no decision is needed for these, which take 10 s
        assert load.longest_s < 1.0
        cluster.ensemble.set_available(True)
        await create(cluster, "after-zookeeper")
        assert {machine.starts for machine in cluster.machines.values()} == {1}
        victim = state_of(cluster, "topic").leader
        cluster.kill(victim)
        await until(lambda: state_of(cluster, "topic").leader not in (victim, -1), "a new leader")
        await load.more()
        await restart(cluster)
        await load.check()

    run(scenario)


def test_acks_all_below_min_insync_replicas_is_rejected() -> None:
    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "topic")
        leader = state_of(cluster, "topic").leader

        async def send(value: str, acks: int) -> ErrorCode:
            answer = await call(cluster, leader, produce_request("topic", [value], acks=acks))
            return ErrorCode.of(answer.responses[0].partition_responses[0].error_code)

        assert await send("three", -1) == ErrorCode.NONE
        for broker in set(cluster.machines) - {leader}:
            cluster.kill(broker)
        await until(lambda: in_sync(cluster, "topic") == {leader}, "the ISR to shrink")
        assert await send("refused", -1) == ErrorCode.NOT_ENOUGH_REPLICAS
        assert await send("one", 1) == ErrorCode.NONE
        await restart(cluster)
        assert await send("three again", -1) == ErrorCode.NONE
        assert await read(cluster, "topic") == [["three", "one", "three again"]]

    run(scenario)


def test_a_leader_that_restarts_at_once_waits_until_the_others_lead() -> None:
    """It starts before its session ends, and no controller might notice that it was away (KIP-966)."""

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "topic", {n: (n % 3, (n + 1) % 3, (n + 2) % 3) for n in range(3)})
        load = Load(cluster, "topic", 3)
        await load.more()
        victim = controller(cluster)
        before, registration = state_of(cluster, "topic", victim), broker_epoch(cluster, victim)
        assert before.leader == victim
        for broker in set(cluster.machines) - {victim}:
            # The others notice late what happens in ZooKeeper.
            cluster.network.link(HOST, cluster.machines[broker].host).delay_s = 0.2
        cluster.kill(victim)
        cluster.start_broker(victim)
        await until(lambda: broker_epoch(cluster, victim) > registration, "it to register again")
        after = state_of(cluster, "topic", victim)
        assert after.leader != victim
        assert after.leader_epoch > before.leader_epoch
        assert victim not in in_sync(cluster, "topic", victim)
        await restart(cluster)
        await load.more()
        await load.check()

    run(scenario)


def test_a_broker_that_restarts_waits_for_the_successor_of_a_dead_controller() -> None:
    """The controller hangs, and dies when the broker has waited for most of a session time-out."""

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "topic", {n: (n % 3, (n + 1) % 3, (n + 2) % 3) for n in range(3)})
        dead = controller(cluster)
        victim = (dead + 1) % 3
        registration = broker_epoch(cluster, victim)
        link = cluster.network.link(HOST, cluster.machines[dead].host)
        delay_s, link.delay_s = link.delay_s, 2.0
        cluster.kill(victim)
        cluster.start_broker(victim)
        await asyncio.sleep(1.5)
        cluster.kill(dead)
        await until(lambda: broker_epoch(cluster, victim) > registration, "it to register again")
        link.delay_s = delay_s
        assert {state_of(cluster, "topic", n).leader for n in range(3)} == {(dead + 2) % 3}
        await restart(cluster)

    run(scenario)


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_no_producer_waits_for_a_follower_that_shuts_down(seed: int) -> None:
    """One request at a time: no later one makes a fetch that moves the high watermark past who left."""

    async def scenario(cluster: Cluster) -> None:
        partitions = 6
        placed = {n: (n % 3, (n + 1) % 3, (n + 2) % 3) for n in range(partitions)}
        await create(cluster, "topic", placed, min_insync_replicas="1")
        longest_s = 0.0

        async def write(stopping: asyncio.Task[None]) -> None:
            nonlocal longest_s
            async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=0) as producer:
                while not stopping.done():
                    for partition in range(partitions):
                        began_s = cluster.loop.now
                        await producer.send_and_wait("topic", b"x", partition=partition)
                        longest_s = max(longest_s, cluster.loop.now - began_s)

        for broker in cluster.machines:
            stopping = asyncio.ensure_future(cluster.stop_broker(broker))
            await cluster.in_process("writer", write(stopping))
            await restart(cluster)
        assert 0.0 < longest_s < 2.0

    run(scenario, settings={"replica.lag.time.max.ms": "30000"}, seed=seed)


def test_a_broker_that_stops_does_not_refuse_what_it_validates() -> None:
    """A producer sends what has no response again. It gives up what has UNKNOWN_SERVER_ERROR."""
    records = [Record(n, 1_700_000_000_000, None, b"x", []) for n in range(2 * INLINE_RECORDS_MAX)]
    data = ProduceRequest.PartitionProduceData(index=0, records=build_batch(records, codec=Codec.GZIP))
    topic = ProduceRequest.TopicProduceData(name="topic", partition_data=[data])
    request = ProduceRequest(acks=1, timeout_ms=10_000, topic_data=[topic])

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "topic", {0: [0, 1, 2]})
        answers: list[ErrorCode] = []

        async def send() -> None:
            with suppress(ConnectionLost, OSError):
                response = await call(cluster, 0, request)
                answers.append(ErrorCode(response.responses[0].partition_responses[0].error_code))

        stopping = asyncio.ensure_future(cluster.stop_broker(0))
        calls = []
        while not stopping.done():
            calls.append(asyncio.ensure_future(send()))
            await asyncio.sleep(0.0005)
        await asyncio.gather(*calls)
        assert set(answers) <= {ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER}
        assert answers
        await restart(cluster)

    run(scenario)


def test_a_produce_is_answered_that_was_replicated_while_its_other_batch_was_validated() -> None:
    """The first batch is appended at once, the second one after a validation in a worker."""
    large = [Record(n, 1_700_000_000_000, None, b"x") for n in range(3000)]
    batches = [build_batch([Record(0, 1_700_000_000_000, None, b"y")]), build_batch(large, codec=Codec.GZIP)]
    parts = [ProduceRequest.PartitionProduceData(index=n, records=batch) for n, batch in enumerate(batches)]
    topic = ProduceRequest.TopicProduceData(name="topic", partition_data=parts)
    request = ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[topic])

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "topic", {0: (0, 1, 2), 1: (0, 1, 2)})
        cluster.slow_disks[cluster.machines[0].host] = 3.0
        began_s = cluster.loop.now
        response = await call(cluster, 0, request)
        assert [part.error_code for part in response.responses[0].partition_responses] == [0, 0]
        assert cluster.loop.now - began_s < 5.0

    run(scenario)


def test_a_broker_that_starts_while_the_controller_hangs_serves_the_metadata_of_zookeeper() -> None:
    """Clients drop a topic that is missing in the metadata, with the records that they have queued for it."""

    async def scenario(cluster: Cluster) -> None:
        stopped = controller(cluster)
        leader, restarted = sorted(set(cluster.machines) - {stopped})
        await create(cluster, "kept", {0: [leader]}, min_insync_replicas="1")
        cluster.pause(stopped)
        cluster.kill(leader)
        cluster.kill(restarted)
        cluster.start_broker(restarted)
        await until(lambda: cluster.machines[restarted].is_serving, "it to serve")
        named = [MetadataRequest.MetadataRequestTopic(name="kept")]
        for topics in (None, named, None):  # None: all topics
            answer = await call(cluster, restarted, MetadataRequest(topics=topics))
            assert answer.controller_id == stopped
            [topic] = answer.topics
            assert (topic.name, topic.error_code) == ("kept", ErrorCode.NONE)
            assert topic.topic_id == cluster.topics()["kept"].topic_id
            assert [list(each.replica_nodes) for each in topic.partitions] == [[leader]]
        assert controller(cluster) == stopped, "the controller was replaced: the test shows nothing"
        cluster.resume(stopped)
        await restart(cluster)
        await produce(cluster, "kept", ["first"])
        assert await read(cluster, "kept") == [["first"]]

    run(scenario, settings={"zookeeper.session.timeout.ms": "40000"})


def test_brokers_without_a_zookeeper_stop_within_the_grace_of_a_pod() -> None:
    """Kubernetes kills after 30 s; the controlled shutdown's own time-outs are longer."""

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "topic", {n: (n % 3, (n + 1) % 3, (n + 2) % 3) for n in range(6)})
        elected = controller(cluster)
        other = min(set(cluster.machines) - {elected})
        cluster.ensemble.set_available(False)
        cluster.kill(elected)
        began = cluster.loop.now
        await cluster.stop_broker(other)
        assert cluster.loop.now - began < 28

    run(scenario)
