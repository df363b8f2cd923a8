"""Random scripts of spec changes and crashes: the operator converges, and no invariant is violated."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla_operator.planning.observed import VolumeLoss
from ottla_operator.planning.throttle import FOLLOWERS, LEADERS
from tests.worlds.operator_simulation import OperatorSimulation

changes = st.one_of(
    st.tuples(st.just("scale"), st.integers(3, 6)),
    st.tuples(st.just("config"), st.integers(1, 3)),
    st.tuples(st.just("crash"), st.integers(0, 5)),
    st.tuples(st.just("grow"), st.integers(0, 4)),
    st.tuples(st.just("factor"), st.sampled_from([2, 3])),
    st.tuples(st.just("stray"), st.integers(0, 5)),
    st.tuples(st.just("time"), st.integers(1, 20)),
    st.tuples(st.sampled_from(["lose", "give up"]), st.integers(0, 5)),
    st.tuples(st.just("empty"), st.integers(0, 5)),
    st.tuples(st.just("rebalance"), st.integers(0, 2)),
    st.tuples(st.just("throttle"), st.integers(0, 2)),
)


@pytest.mark.budget(5)  # 40 scripts of Hypothesis, each until the cluster converges
@settings(max_examples=40, deadline=None)
@given(st.lists(changes, max_size=12))
def test_any_script_of_changes_and_crashes_converges_without_a_violation(
    script: list[tuple[str, int]],
) -> None:
    sim, cluster = OperatorSimulation(), None
    cluster = sim.cluster
    size, threads, partitions, factor, strays = 3, 1, 4, 3, 0
    request: dict[str, object] = {}
    rebalance: dict[str, object] = {}

    def ask() -> None:
        annotations = {"reassign": json.dumps(request)} if request else {}
        spec = {"replicas": size, "config": {"queued.max.requests": str(threads)}, "rebalance": rebalance}
        sim.apply("BrokerCluster", "demo", spec, **annotations)
        sim.apply_topic("t", partitions=partitions, replicas=factor, config={"min.insync.replicas": 2})

    ask()
    sim.reconcile_until_ready()
    for what, value in script:
        live = sorted(broker for broker in cluster.live() if cluster.brokers[broker].state == "Running")
        if what == "scale":
            size = value
        elif what == "config":
            threads = value
        elif what == "grow":
            partitions += value
        elif what == "factor":
            factor = value
        elif what == "crash" and value in live and len(live) > 2:
            cluster.crash(value)
        elif what == "lose" and value in live and len(live) > 2:
            # The broker and its disk fail.
            cluster.losses[value] = VolumeLoss("Gone", "why")
            cluster.crash(value)
        elif what == "give up" and value in cluster.brokers:
            cluster.losses.setdefault(value, VolumeLoss("Requested", "why"))
        elif what == "empty":
            request = {"id": f"empty-{value}", "empty": [value]}
        elif what == "rebalance":
            request = {"id": f"rebalance-{value}"} if value else {}
        elif what == "throttle":
            rebalance = {"replicationThrottle": f"{value}Mi"} if value else {}
        elif what == "stray" and value in live and len(live) > 1:
            # Another tool creates a topic, perhaps on a broker that is draining.
            strays += 1
            other = next(broker for broker in live if broker != value)
            cluster.create_topic(f"stray{strays}", 1, 2, assignment={0: [value, other]})
        elif what == "time":
            for _ in range(value):
                sim.reconcile()
        ask()
        sim.reconcile()
    if request.get("empty"):
        # Emptied brokers may leave too few for the replication factor.
        request = {}
        ask()
    sim.reconcile_until_ready(reconciles_max=1500)
    for _ in range(20):
        sim.reconcile()

    assert not cluster.violations
    assert sorted(cluster.brokers) == list(range(size))
    assert len({broker.launch.config_hash for broker in cluster.brokers.values()}) == 1
    assert not cluster.losses.keys() & cluster.brokers.keys()
    assert not cluster.settings
    assert not any({LEADERS, FOLLOWERS} & set(found.config) for found in cluster.topics.values())
    topic = cluster.topics["t"]
    assert len(topic.partitions) == partitions
    assert all(len(partition.replicas) == factor for partition in topic.partitions)
    for found in cluster.topics.values():
        for partition in found.partitions:
            assert len(set(partition.replicas)) == len(partition.replicas)
            assert set(partition.replicas) <= set(range(size))
            assert sorted(partition.isr) == sorted(partition.replicas)
            assert partition.leader == partition.replicas[0]
    assert sim.reconcile() == []
