"""KIP-903 with ZooKeeper: a registration of a broker was in sync, and the next may have no log."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ottla.protocol.errors import ErrorCode
from ottla.replication.alter_partition import build_request
from ottla.replication.follower import Retry
from tests.worlds.replication_brokers import Brokers, until
from tests.worlds.replication_cluster import Cluster
from tests.worlds.simulated_controller import T0, SimulatedController


def out_of_sync(path: Path) -> Cluster:
    """Follower 3, of registration 30, has left the ISR."""
    cluster = Cluster(path)
    cluster.broker_epochs = {1: 10, 2: 20, 3: 30}
    cluster.produce("a")
    cluster.elect(1, isr=[1, 2])
    return cluster


def test_a_follower_joins_the_isr_with_the_broker_epoch_that_caught_up(tmp_path: Path) -> None:
    cluster = out_of_sync(tmp_path)
    cluster.replicate()
    [(partition, change)] = cluster.proposals
    assert change.proposed == {1, 2, 3}
    # It comes back before the request goes out, and fetches from the start.
    cluster.kill(3)
    cluster.broker_epochs[3] = 31
    cluster.start(3)
    cluster.leader_and_isr(3)
    cluster.fetch(3)
    request = build_request(1, 10, {partition.key: (partition, change)})
    [row] = request.topics[0].partitions
    assert {member.broker_id: member.broker_epoch for member in row.new_isr_with_epochs} == {
        1: -1,
        2: 20,
        3: 30,
    }


def test_a_follower_with_an_old_fetch_version_joins_without_a_broker_epoch(tmp_path: Path) -> None:
    cluster = out_of_sync(tmp_path)
    cluster.broker_epochs[3] = -1
    cluster.replicate()
    [(_, change)] = cluster.proposals
    assert change.broker_epochs[3] == -1


def test_a_fetch_with_a_stale_broker_epoch_is_refused_and_has_no_effect(tmp_path: Path) -> None:
    cluster = out_of_sync(tmp_path)
    cluster.replicate(2)
    cluster.broker_epochs[3] = 31
    cluster.fetch(3)
    follower = cluster.leader.follower(3)
    assert follower is not None
    end = follower.log_end_offset
    cluster.fetch(3)
    cluster.broker_epochs[3] = 30
    step = cluster.fetch(3)
    assert step == Retry(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert follower.broker_epoch == 31
    assert follower.log_end_offset >= end


def test_a_new_leader_epoch_forgets_registrations(tmp_path: Path) -> None:
    """The controller has seen the broker leave and return; a rebuilt ZooKeeper restarts epochs."""
    cluster = out_of_sync(tmp_path)
    cluster.replicate()
    cluster.broker_epochs[3] = 5
    cluster.elect(1)
    cluster.replicate()
    follower = cluster.leader.follower(3)
    assert follower is not None
    assert follower.broker_epoch == 5


def test_the_controller_refuses_a_former_registration_and_the_leader_asks_again(tmp_path: Path) -> None:
    cluster = out_of_sync(tmp_path)
    cluster.replicate()
    [(partition, change)] = cluster.proposals
    cluster.proposals = []
    simulation = SimulatedController()
    simulation.create({0: (1, 2, 3)})
    simulation.alive(1, 2)
    simulation.alive(1, 2, 3, bounced=[3])
    answer = simulation.ask_isr([1, 2, 3], member_epochs={2: 102, 3: 103})
    [row] = answer.topics[0].partitions
    assert row.error_code == ErrorCode.INELIGIBLE_REPLICA
    assert simulation.lead(T0).isr == (1, 2)
    partition.isr_change_failed(change, ErrorCode.INELIGIBLE_REPLICA, cluster.now_ms)
    cluster.broker_epochs[3] = 1103
    cluster.fetch(3)
    [(_, change)] = cluster.proposals
    assert change.broker_epochs[3] == 1103
    answer = simulation.ask_isr([1, 2, 3], member_epochs=dict(change.broker_epochs) | {2: -1})
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE


def test_a_member_of_the_isr_that_has_lost_records_leaves_it_with_its_first_fetch(tmp_path: Path) -> None:
    """And not after replica.lag.time.max.ms: it might be elected until then."""
    cluster = Cluster(tmp_path)
    cluster.produce("a")
    cluster.produce("b", "c")
    cluster.replicate()
    assert cluster.leader.high_watermark == 3
    node = cluster.nodes[3]
    node.log.truncate_to(1)
    cluster.fetch(3)
    [(_, change)] = cluster.proposals
    assert change.proposed == {1, 2}
    cluster.decide_proposals()
    cluster.replicate()
    cluster.decide_proposals()
    assert cluster.leader.isr == {1, 2, 3}
    assert cluster.leader.high_watermark == 3


def test_followers_send_their_broker_epoch_and_leaders_forward_it(tmp_path: Path) -> None:
    async def run() -> None:
        brokers = Brokers(tmp_path, 2)
        try:
            brokers[2].manager.broker_epoch = 77
            brokers.leader_and_isr(leader=1, epoch=0, isr=[1])
            await until(lambda: bool(brokers.alterations), brokers)
            [row] = brokers.alterations[0].topics[0].partitions
            assert [(m.broker_id, m.broker_epoch) for m in row.new_isr_with_epochs] == [(1, -1), (2, 77)]
        finally:
            await brokers.stop()

    asyncio.run(run())
