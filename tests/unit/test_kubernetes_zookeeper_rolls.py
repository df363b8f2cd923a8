"""ZooKeeper servers are restarted one by one, the leader last, only in sync, and only when it is approved."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ottla_operator.conditions import Condition, parse_iso_time
from ottla_operator.kubernetes import naming
from ottla_operator.kubernetes.zookeeper_client import _role
from ottla_operator.kubernetes.zookeeper_planning import ServerRole, is_held, plan_roll
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.loading import parse_resource
from tests.worlds.kubernetes_simulation import Item, KubernetesSimulation

READY_AT = "2026-01-01T10:00:09Z"
NOW_MS = parse_iso_time(READY_AT)
FOLLOWER, LEADER = ServerRole("follower"), ServerRole("leader", 2)
ROLES = {0: LEADER, 1: FOLLOWER, 2: FOLLOWER}
STATES = ("ready", "running", "waiting", "deleting", "missing")


def a_cluster(strategy: str = "Auto", approved: str = "") -> BrokerCluster:
    metadata = {"name": "demo", "annotations": {"ottla.dev/approve-rollout": approved}}
    spec = {"replicas": 3, "rollingUpdate": {"strategy": strategy}}
    cluster, problems = parse_resource("BrokerCluster", metadata, spec)
    assert isinstance(cluster, BrokerCluster), problems
    return cluster


def a_set(revision: str, newest: str = "new") -> dict[str, Any]:
    return {
        "metadata": {"generation": 2},
        "spec": {"template": {"metadata": {"annotations": {naming.HASH_ANNOTATION: revision}}}},
        "status": {"observedGeneration": 2, "updateRevision": newest},
    }


def a_pod(revision: str, state: str = "ready", label: str | None = None) -> dict[str, Any]:
    """`label`: the StatefulSet's revision of its template, if it is not the operator's revision."""
    metadata: dict[str, Any] = {
        "name": "demo-zookeeper-0",
        "creationTimestamp": READY_AT,
        "annotations": {naming.HASH_ANNOTATION: revision},
        "labels": {"controller-revision-hash": label or revision},
    }
    if state == "deleting":
        metadata["deletionTimestamp"] = READY_AT
    ready = {"type": "Ready", "status": str(state == "ready"), "lastTransitionTime": READY_AT}
    seen = {"name": "zookeeper", "state": {"waiting": {}} if state == "waiting" else {"running": {}}}
    return {"metadata": metadata, "status": {"conditions": [ready], "containerStatuses": [seen]}}


def pods_of(*servers: str) -> dict[int, Any]:
    """Servers as `old`, `new running`, …"""
    found = {n: server.split() for n, server in enumerate(servers)}
    return {n: a_pod(*words) for n, words in found.items() if words[1:] != ["missing"]}


def next_of(*servers: str, roles: Mapping[int, ServerRole] = ROLES) -> int | None:
    wanted = a_set("new")
    return plan_roll(a_cluster(), wanted, wanted, pods_of(*servers), len(servers), roles, NOW_MS).replace


@pytest.mark.parametrize(
    ("servers", "replaced"),
    [
        # The leader is the last one.
        (("old", "old", "old"), 1),
        (("old", "new", "old"), 2),
        (("old", "new", "new"), 0),
        (("new", "new", "new"), None),
        # None while another is not ready.
        (("old", "new running", "old"), None),
        (("old", "new waiting", "old"), None),
        (("old", "old", "old deleting"), None),
        (("old", "old", "old missing"), None),
        # One that does not serve on the old revision comes first, unless the new one has proved bad.
        (("old", "old", "old running"), 2),
        (("old", "old", "old waiting"), 2),
        (("old", "old waiting", "new waiting"), None),
        # Without a quorum none can be ready: their processes must run.
        (("old waiting", "old waiting", "old waiting"), 0),
        (("new waiting", "old waiting", "old waiting"), None),
        (("new running", "old waiting", "old waiting"), 1),
        (("new running", "new running", "old waiting"), 2),
        (("new running", "new running", "old"), None),
        # An ensemble of one.
        (("old",), 0),
        (("old waiting",), 0),
        (("new waiting",), None),
    ],
)
def test_the_next_server_to_replace(servers: tuple[str, ...], replaced: int | None) -> None:
    alone = {0: ServerRole("leader", 0)}
    assert next_of(*servers, roles=ROLES if len(servers) == 3 else alone) == replaced


@pytest.mark.parametrize(
    ("roles", "reason"),
    [
        ({0: LEADER, 1: FOLLOWER}, "server 2 to answer"),
        ({**ROLES, 1: ServerRole()}, "server 1 to answer"),
        ({**ROLES, 0: FOLLOWER}, "a leader to be elected"),
        ({**ROLES, 1: LEADER}, "a leader to be elected"),
        (
            {**ROLES, 0: ServerRole("leader", 1)},
            "all followers to be in sync: 1 of 2 are",
        ),
    ],
)
def test_servers_wait_until_the_ensemble_is_in_sync(roles: Mapping[int, ServerRole], reason: str) -> None:
    wanted = a_set("new")
    roll = plan_roll(a_cluster(), wanted, wanted, pods_of("old", "new", "old"), 3, roles, NOW_MS)
    assert roll.replace is None
    assert roll.waiting == {0: reason, 2: reason}


@pytest.mark.parametrize("server", ["old", "old deleting"])
def test_servers_wait_for_the_one_that_is_being_restarted(server: str) -> None:
    wanted = a_set("new")
    roll = plan_roll(a_cluster(), wanted, wanted, pods_of("old", server, "new"), 3, ROLES, NOW_MS)
    assert roll.waiting == {0: "server 1, which is being restarted", 1: "its restart"}


def test_a_step_makes_at_most_one_server_unavailable_and_none_without_a_whole_ensemble() -> None:
    each = {f"{rev} {state}": a_pod(rev, state) for rev in ("old", "new") for state in STATES}
    cluster, wanted = a_cluster(), a_set("new")
    for servers in itertools.product(each, repeat=3):
        pods = {n: each[server] for n, server in enumerate(servers) if not server.endswith("missing")}
        chosen = plan_roll(cluster, wanted, wanted, pods, 3, ROLES, NOW_MS).replace
        if chosen is None:
            continue
        assert servers[chosen].startswith("old"), servers
        assert not any("deleting" in server for server in servers), servers
        if servers[chosen] == "old ready":
            assert all("ready" in server for server in servers), servers


def test_a_roll_goes_on_whenever_all_servers_serve() -> None:
    for servers in itertools.product(("old", "new"), repeat=3):
        assert (next_of(*servers) is None) == (set(servers) == {"new"})


def test_a_template_that_is_not_observed_yet_replaces_no_server() -> None:
    unseen = {**a_set("new"), "metadata": {"generation": 3}}
    assert (
        plan_roll(a_cluster(), unseen, unseen, pods_of("old", "old", "old"), 3, ROLES, NOW_MS).replace is None
    )


@pytest.mark.parametrize(
    ("approved", "present", "servers", "held", "replaced"),
    [
        ("", "old", ("old", "old", "old"), True, None),
        ("new", "old", ("old", "old", "old"), False, None),
        ("brokers,new", "new", ("old", "old", "old"), False, 1),
        # The StatefulSet was created again around its pods.
        ("", "new", ("old", "old", "old"), False, None),
        # No pod would be restarted by going back.
        ("", "middle", ("new", "new", "new"), False, None),
        # A roll to a revision that is no longer wanted stops.
        ("middle", "middle", ("old", "middle", "old"), True, None),
    ],
)
def test_a_new_revision_waits_for_its_approval(
    approved: str, present: str, servers: tuple[str, ...], held: bool, replaced: int | None
) -> None:
    cluster, wanted, live = a_cluster("OnApproval", approved), a_set("new"), a_set(present, present)
    pods = pods_of(*servers)
    assert is_held(cluster, live, wanted, pods) is held
    roll = plan_roll(cluster, live, wanted, pods, 3, ROLES, NOW_MS)
    assert roll.replace == replaced
    waits = "new" not in approved.split(",")
    waiting = {n for n, reason in roll.waiting.items() if reason == "approval of the rollout"}
    assert waiting == ({n for n, server in enumerate(servers) if server != "new"} if waits else set())


def test_a_server_that_does_not_come_up_in_time_stalls_the_roll() -> None:
    wanted, pods = a_set("new"), pods_of("new running", "old", "old")
    for late_ms, stalled in ((600_000, False), (600_001, True)):
        roll = plan_roll(a_cluster(), wanted, wanted, pods, 3, ROLES, NOW_MS + late_ms)
        assert bool(roll.stalled) is stalled


@pytest.mark.parametrize(
    ("servers", "present", "restarting"),
    [
        (("new", "new", "new"), "new", set()),
        (("old", "old", "old"), "old", {0, 1, 2}),  # The template is applied later in this reconciliation.
        (("new", "old", "old"), "new", {1, 2}),
        (("new running", "new", "new"), "new", {0}),
        (("new", "new", "new missing"), "new", {2}),
    ],
)
def test_restarts_of_brokers_wait_for_servers_that_restart(
    servers: tuple[str, ...], present: str, restarting: set[int]
) -> None:
    live, wanted = a_set(present, present), a_set("new")
    roll = plan_roll(a_cluster(), live, wanted, pods_of(*servers), 3, ROLES, NOW_MS)
    assert roll.restarting == restarting


def test_restarts_of_brokers_wait_for_no_server_that_may_never_restart() -> None:
    live, wanted, pods = a_set("old", "old"), a_set("new"), pods_of("old", "old", "old")
    held = plan_roll(a_cluster("OnApproval"), live, wanted, pods, 3, ROLES, NOW_MS)
    assert held.restarting == set()
    held = plan_roll(a_cluster(), wanted, wanted, pods, 3, ROLES, NOW_MS, hold=True)
    assert held.restarting == set()
    unready = pods_of("new running", "old", "old")
    late = plan_roll(a_cluster(), wanted, wanted, unready, 3, ROLES, NOW_MS + 600_001)
    assert late.restarting == set()
    for reason, restarting in (("ApplyFailed", set[int]()), ("BrokersNotReady", {0, 1, 2})):
        cluster = a_cluster()
        failed = Condition(type="Ready", status="False", reason=reason, last_transition_time=READY_AT)
        cluster.status.conditions.append(failed)
        assert plan_roll(cluster, live, wanted, pods, 3, ROLES, NOW_MS).restarting == restarting


def test_servers_that_serve_wait_for_a_broker_that_stops() -> None:
    wanted = a_set("new")
    for pods, replaced in ((pods_of("old", "old", "old"), None), (pods_of("old running", "old", "old"), 0)):
        roll = plan_roll(a_cluster(), wanted, wanted, pods, 3, ROLES, NOW_MS, stopping=[2])
        assert roll.replace == replaced
    serving = plan_roll(
        a_cluster(), wanted, wanted, pods_of("old", "new", "new"), 3, ROLES, NOW_MS, stopping=[2]
    )
    assert serving.waiting == {0: "broker 2, which is stopping"}


def test_new_certificates_and_requested_restarts_need_no_approval() -> None:
    pods = {n: a_pod("old", label="before") for n in range(3)}
    for wanted in ("old", "new"):
        live = a_set("old", "after")
        roll = plan_roll(a_cluster("OnApproval"), live, a_set(wanted), pods, 3, ROLES, NOW_MS)
        assert roll.replace == 1


def test_the_answer_to_mntr_tells_the_role() -> None:
    leader = "zk_version\t3.9.2\nzk_server_state\tleader\nzk_synced_followers\t2\n"
    assert _role(leader) == ServerRole("leader", 2)
    assert _role("zk_server_state\tfollower\n") == ServerRole("follower")
    assert _role("This ZooKeeper instance is not currently serving requests\n") == ServerRole()
    assert _role("") == ServerRole()


# ---- over the simulated API server


@pytest.fixture
def sim() -> KubernetesSimulation:
    sim = KubernetesSimulation()
    sim.apply_cluster()
    sim.reconcile_until_ready()
    return sim


def servers(sim: KubernetesSimulation) -> dict[str, str]:
    names = [name for name in sim.api.names("Pod") if name.startswith("demo-zookeeper-")]
    return {name: sim.api.items["Pod", name]["metadata"]["uid"] for name in names}


def container(sim: KubernetesSimulation, member: int = 0) -> Item:
    found: Item = sim.api.items["Pod", f"demo-zookeeper-{member}"]["spec"]["containers"][0]
    return found


def rolled(sim: KubernetesSimulation, before: dict[str, str]) -> list[int]:
    """The servers in the order in which they are replaced, all of them."""
    order: list[int] = []
    for _ in range(60):
        old = {name for name, uid in servers(sim).items() if uid == before[name]}
        sim.reconcile()
        now = servers(sim)
        gone = [int(name[-1]) for name in old if now.get(name) != before[name]]
        assert len(gone) <= 1
        order += gone
        if len(order) == len(before) and sim.ready() and sim.condition("Rolling")[0] == "False":
            return order
    raise AssertionError(f"replaced {order}: {sim.status()}")


def test_fields_of_the_servers_roll_them_one_by_one_and_the_leader_last(sim: KubernetesSimulation) -> None:
    before, brokers = servers(sim), sim.status()["brokers"]
    pod = {
        "metadata": {"labels": {"team": "data"}},
        "spec": {
            "tolerations": [{"key": "zk", "operator": "Exists"}],
            "priorityClassName": "high",
            "imagePullSecrets": [{"name": "of-the-registry"}],
            "serviceAccountName": "mine",
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}},
            "containers": [{"name": "zookeeper", "env": [{"name": "TZ", "value": "UTC"}]}],
        },
    }
    limits = {"limits": {"memory": "1Gi"}}
    managed = {"image": "mine:1", "resources": limits, "heap": "512m", "template": {"pod": pod}}
    sim.apply_cluster(zookeeper={"managed": managed})
    assert rolled(sim, before) == [0, 2, 1]
    assert sim.status()["brokers"] == brokers
    spec = sim.api.items["Pod", "demo-zookeeper-0"]["spec"]
    assert container(sim)["image"] == "mine:1"
    assert container(sim)["resources"] == limits
    assert container(sim)["args"][-2:] == ["--heap", "512m"]
    assert container(sim)["env"] == [{"name": "TZ", "value": "UTC"}]
    assert {name: spec[name] for name in pod["spec"] if name != "containers"} == {
        name: value for name, value in pod["spec"].items() if name != "containers"
    }
    assert spec["automountServiceAccountToken"] is False
    sim.reconcile()
    status = sim.status()["zookeeper"]
    assert (status["updated"], status["total"]) == (3, 3)
    assert {server["configHash"] for server in status["servers"]} == {status["targetHash"]}
    assert sorted(server["role"] for server in status["servers"]) == ["follower", "follower", "leader"]


def test_a_follower_behind_holds_the_roll_and_the_status_says_so(sim: KubernetesSimulation) -> None:
    before = servers(sim)
    sim.lagging_followers = 1
    sim.apply_cluster(zookeeper={"managed": {"heap": "512m"}})
    for _ in range(5):
        sim.reconcile()
    assert servers(sim) == before
    waiting = {server["waitingFor"] for server in sim.status()["zookeeper"]["servers"]}
    assert waiting == {"all followers to be in sync: 1 of 2 are"}
    assert sim.condition("Rolling") == ("True", "Rolling")
    assert sim.condition("ConfigApplied") == ("False", "Outdated")
    assert not sim.reconcile_once().converged, "it must look again without an event"
    sim.lagging_followers = 0
    assert len(rolled(sim, before)) == 3


def on_approval(sim: KubernetesSimulation, approved: str = "", **spec: Any) -> None:
    strategy = {"minReadySeconds": 0, "strategy": "OnApproval"}
    sim.apply_cluster(rollingUpdate=strategy, annotations={"approve_rollout": approved}, **spec)


def test_an_operator_upgrade_replaces_no_server_without_approval(sim: KubernetesSimulation) -> None:
    on_approval(sim)
    sim.reconcile_until_ready()
    before = servers(sim)
    sim.images = replace(sim.images, broker="ottla:2", zookeeper="ottla:2")
    for _ in range(10):
        sim.reconcile()
    assert servers(sim) == before
    status = sim.status()
    assert {each["waitingFor"] for each in status["zookeeper"]["servers"]} == {"approval of the rollout"}
    # One that dies comes back as it was.
    sim.api.delete_resource("Pod", "demo-zookeeper-2")
    sim.reconcile_until(
        lambda: len(servers(sim)) == 3 and sim.api.is_ready(sim.api.items["Pod", "demo-zookeeper-2"])
    )
    assert container(sim, 2)["image"] == "ottla:1"
    before = servers(sim)
    on_approval(sim, f"{status['rollout']['targetHash']},{status['zookeeper']['targetHash']}")
    assert sorted(rolled(sim, before)) == [0, 1, 2]
    assert container(sim)["image"] == "ottla:2"
    sim.reconcile_until_ready()


def test_held_servers_take_new_certificates(sim: KubernetesSimulation) -> None:
    sim = KubernetesSimulation()
    listeners = [{"name": "secure", "port": 9093, "tls": True}]
    on_approval(sim, listeners=listeners)
    sim.reconcile_until_ready()
    before = servers(sim)
    sim.images = replace(sim.images, zookeeper="ottla:2")
    sim.reconcile()
    sim.api.now_ms += 340 * 86_400_000
    sim.reconcile_until(
        lambda: len(servers(sim)) == 3 and not set(servers(sim).values()) & set(before.values())
    )
    assert {container(sim, n)["image"] for n in range(3)} == {"ottla:1"}
    after = servers(sim)
    for _ in range(5):
        sim.reconcile()
    assert servers(sim) == after


def test_an_image_that_cannot_be_had_stops_the_roll_and_taking_it_back_heals(
    sim: KubernetesSimulation,
) -> None:
    before = servers(sim)
    sim.api.unpullable_images.add("missing:1")
    sim.apply_cluster(zookeeper={"managed": {"image": "missing:1"}})
    for _ in range(10):
        sim.reconcile()
    assert len(set(servers(sim).values()) & set(before.values())) == 2
    assert sim.condition() == ("False", "RollStalled")
    assert sim.condition("Rolling") == ("False", "Stalled")
    why = "the image  cannot be pulled"
    message = next(c["message"] for c in sim.status()["conditions"] if c["type"] == "Ready")
    assert (
        message
        == f"demo-zookeeper-0 does not come up on revision {sim.status()['zookeeper']['targetHash']}: {why}"
    )
    assert sim.status()["zookeeper"]["servers"][1]["waitingFor"] == f"server 0, which is not ready: {why}"
    sim.apply_cluster()
    sim.reconcile_until(lambda: sim.ready() and sim.condition("ConfigApplied")[0] == "True")
    assert {container(sim, n)["image"] for n in range(3)} == {"ottla:1"}
    assert len(set(servers(sim).values()) & set(before.values())) == 2


def test_a_new_cluster_with_an_image_that_cannot_be_had_heals() -> None:
    sim = KubernetesSimulation()
    sim.api.unpullable_images.add("missing:1")
    sim.apply_cluster(zookeeper={"managed": {"image": "missing:1"}})
    for _ in range(5):
        sim.reconcile()
    assert sim.condition() == ("False", "ZooKeeperNotReady")
    sim.apply_cluster()
    sim.reconcile_until_ready()


def test_rollout_restart_rolls_the_servers_and_survives_repair(sim: KubernetesSimulation) -> None:
    before, brokers = servers(sim), sim.status()["brokers"]
    key, item = naming.RESTARTED_AT_ANNOTATION, sim.api.items["StatefulSet", "demo-zookeeper"]
    item["spec"]["template"]["metadata"].setdefault("annotations", {})[key] = "2026-11-27T10:00:00Z"
    item["metadata"]["resourceVersion"] += "0"
    assert rolled(sim, before) == [0, 2, 1]
    assert sim.status()["brokers"] == brokers
    after = servers(sim)
    sim.api.delete_resource("StatefulSet", "demo-zookeeper", "Orphan")
    for _ in range(10):
        sim.reconcile()
    template = sim.api.items["StatefulSet", "demo-zookeeper"]["spec"]["template"]
    assert template["metadata"]["annotations"][key] == "2026-11-27T10:00:00Z"
    assert servers(sim) == after
    template["metadata"]["annotations"].pop(key)
    sim.api.tick()
    for _ in range(10):
        sim.reconcile()
    assert servers(sim) == after, "its removal restarts nothing"


@pytest.mark.parametrize("number", range(1, 8))
def test_an_operator_killed_at_any_write_replaces_each_server_once(
    sim: KubernetesSimulation, number: int
) -> None:
    before = servers(sim)
    sim.fail_write(number)
    item = sim.api.items["StatefulSet", "demo-zookeeper"]
    annotations = item["spec"]["template"]["metadata"].setdefault("annotations", {})
    annotations[naming.RESTARTED_AT_ANNOTATION] = "2026-11-27T10:00:00Z"
    sim.apply_cluster(zookeeper={"managed": {"heap": "512m"}})
    seen: dict[str, set[str]] = {name: set() for name in before}
    for _ in range(40):
        sim.reconcile()
        for name, uid in servers(sim).items():
            seen[name].add(uid)
    assert sim.ready()
    assert all(len(uids - {before[name]}) <= 2 for name, uids in seen.items()), (
        "once, or once for each change"
    )
    args = [container(sim, n)["args"] for n in range(3)]
    assert all(each[-2:] == ["--heap", "512m"] for each in args)
