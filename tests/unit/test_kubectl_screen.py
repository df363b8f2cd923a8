"""The output of `kubectl ottla status`, from the cluster's objects alone."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from ottla_operator.conditions import parse_iso_time
from ottla_operator.kubectl.screen import overview, screen

_NOW_MS = parse_iso_time("2026-01-01T00:01:30Z")


def _condition(type_: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }


def _cluster(**status: Any) -> dict[str, Any]:
    return {
        "kind": "BrokerCluster",
        "metadata": {"name": "demo", "namespace": "shop", "generation": 1},
        "spec": {"replicas": 3},
        "status": {"observedGeneration": 1, "readyReplicas": 3, "controllerId": 1, **status},
    }


def _broker(id_: int, **more: Any) -> dict[str, Any]:
    return {
        "id": id_,
        "podName": f"demo-brokers-{id_}",
        "state": "Running",
        "ready": True,
        "configHash": "old",
        **more,
    }


_READY = _condition("Ready", "True", "AllBrokersReady", "3 brokers are ready")


def test_the_status_of_a_healthy_cluster_is_short() -> None:
    cluster = _cluster(
        conditions=[_READY, _condition("Rolling", "False", "NotRolling")],
        bootstrapServers="demo-bootstrap.shop.svc:9092",
        brokers=[_broker(0), _broker(1)],
    )
    lines = screen(cluster, [], _NOW_MS).splitlines()
    assert lines[0] == "shop/demo: Ready (3 brokers are ready)"
    assert (
        lines[1].strip() == "3 of 3 brokers are ready, broker 1 is the controller, all partitions are in sync"
    )
    assert "demo-bootstrap.shop.svc:9092" in lines[2]
    assert [line.split()[0] for line in lines[4:]] == ["BROKER", "0", "1*"]
    assert "Rolling" not in "".join(lines)


def test_the_status_of_a_cluster_that_hibernates_says_nothing_of_partitions() -> None:
    hibernates = _condition("Ready", "False", "Hibernated", "all brokers are stopped")
    cluster = _cluster(conditions=[hibernates], readyReplicas=0, controllerId=-1)
    lines = [line.strip() for line in screen(cluster, [], _NOW_MS).splitlines()]
    assert lines[:2] == ["shop/demo: not Ready (all brokers are stopped)", "0 of 3 brokers are ready"]


def test_further_listeners_are_shown_with_their_bootstrap_servers() -> None:
    servers = {"plain": "demo-bootstrap.shop.svc:9092", "web": "kafka.example.org:443", "lb": ""}
    cluster = _cluster(
        conditions=[_READY],
        bootstrapServers=servers["plain"],
        listeners=[{"name": name, "bootstrapServers": text} for name, text in servers.items()],
    )
    lines = [line.strip() for line in screen(cluster, [], _NOW_MS).splitlines()]
    assert [line for line in lines if line.startswith("listener ")] == [
        "listener web: kafka.example.org:443",
        "listener lb: no address yet",
    ]


def test_a_roll_is_shown_with_progress_and_waiting_brokers() -> None:
    cluster = _cluster(
        conditions=[
            _condition("Ready", "False", "Rolling", "1 of 3 brokers are updated"),
            _condition("Rolling", "True", "Rolling", "bouncing broker 1"),
        ],
        underReplicatedPartitions=4,
        rollout={"targetHash": "new", "updated": 1, "total": 3, "startedAt": "2026-01-01T00:00:00Z"},
        brokers=[
            _broker(0, configHash="new"),
            _broker(
                1,
                restartReasons=["replica.lag.time.max.ms has changed"],
                waitingFor="broker 0 to rejoin the ISR of a-0",
            ),
        ],
    )
    text = screen(cluster, [], _NOW_MS)
    assert "shop/demo: not Ready (1 of 3 brokers are updated)" in text
    assert "partitions: 4 under-replicated" in text
    assert "rolling to revision new: 1 of 3, for 90 s" in text
    assert "Rolling: Rolling (bouncing broker 1)" in text
    assert (
        "restart due: replica.lag.time.max.ms has changed; waiting for broker 0 to rejoin the ISR of a-0"
        in text
    )


def test_a_roll_that_waits_for_a_window_is_not_shown_as_rolling() -> None:
    cluster = _cluster(
        conditions=[_READY, _condition("Rolling", "False", "WaitingForWindow", "0 of 3 brokers are updated")],
        rollout={"targetHash": "new", "updated": 0, "total": 3, "startedAt": "2026-01-01T00:00:00Z"},
    )
    assert "has to roll to revision new: 0 of 3, for 90 s" in screen(cluster, [], _NOW_MS)


def test_ready_resources_are_counted_and_others_are_listed() -> None:
    def topic(name: str, *conditions: dict[str, Any]) -> dict[str, Any]:
        return {"kind": "Topic", "metadata": {"name": name}, "spec": {}, "status": {"conditions": conditions}}

    waiting = topic("late", _condition("Ready", "False", "ResourceConflict", "older one wins"))
    text = screen(_cluster(conditions=[_READY]), [topic("a", _READY), topic("b", _READY), waiting], _NOW_MS)
    assert "Topic/late" in text
    assert "ResourceConflict   older one wins" in text
    assert "Topic/a" not in text
    assert "ready: Topic 2" in text


def test_warnings_are_shown_beside_the_state() -> None:
    topic = {
        "kind": "Topic",
        "metadata": {"name": "orders"},
        "spec": {},
        "status": {"conditions": [_READY], "warnings": ["no write with acks=all can succeed"]},
    }
    text = screen(_cluster(conditions=[_READY], warnings=["unknown setting a.b"]), [topic], _NOW_MS)
    assert "   warning: unknown setting a.b" in text
    assert "warning: Topic/orders: no write with acks=all can succeed" in text


def test_a_cluster_without_a_status_is_shown_as_such() -> None:
    cluster = _cluster()
    cluster["metadata"]["generation"] = 2
    del cluster["status"]
    text = screen(cluster, [], _NOW_MS)
    assert "check that the operator runs" in text
    assert "has not reconciled the newest spec" in text
    assert "no brokers" in text


def test_several_clusters_get_a_line_each() -> None:
    lines = overview([_cluster(conditions=[_READY]), _cluster()]).splitlines()
    assert lines[1].split()[:4] == ["shop", "demo", "True", "3/3"]
    assert lines[2].split()[2] == "Unknown"


def test_a_message_of_several_lines_is_shortened_to_one() -> None:
    ready = _condition("Ready", "False", "RollStalled", "first\nsecond " + "x" * 500)
    lines = screen(_cluster(conditions=[ready]), [], _NOW_MS).splitlines()
    assert lines[0].startswith("shop/demo: not Ready (first second xxx")
    assert len(lines[0]) < 200


def test_a_requested_reassignment_is_shown_until_it_is_complete() -> None:
    asked = {"id": "a", "phase": "Waiting", "message": "for the roll to end"}
    assert "requested reassignment: Waiting (for the roll to end)" in screen(
        _cluster(reassignRequest=asked), [], _NOW_MS
    )
    done = {"id": "a", "phase": "Completed", "message": ""}
    assert "asked to reassign" not in screen(_cluster(reassignRequest=done), [], _NOW_MS)


def test_upgrades_and_throttled_moves_are_shown() -> None:
    move = {"id": "m", "reason": "Empty", "moved": 2, "total": 9, "startedAt": "2026-01-01T00:01:00Z"}
    text = screen(
        _cluster(
            reassignment=move,
            throttle={"rate": 1000, "topics": ["a"]},
            upgrade={"fromVersion": "3.8", "toVersion": "3.9", "phase": "Binaries"},
        ),
        [],
        _NOW_MS,
    )
    assert "moving replicas (Empty): 2 of 9, for 30 s, throttled to 1000 bytes/s per broker" in text
    assert "upgrading from 3.8 to 3.9: binaries" in text


def test_pipelines_are_shown_with_lag_and_last_batch() -> None:
    ready = [_condition("Ready", "True", "Running")]
    batch = {"id": 7, "records": 120, "durationMs": 80, "endedAt": "2026-01-01T00:00:00Z"}
    status = {"conditions": ready, "lag": 3, "lastBatch": batch, "applicationId": "spark-1"}
    lake = {"kind": "Pipeline", "metadata": {"name": "lake"}, "spec": {"job": "lake"}, "status": status}
    new = {"kind": "Pipeline", "metadata": {"name": "new"}, "spec": {"job": "audit"}}
    lines = screen(_cluster(conditions=[_READY]), [lake, new], _NOW_MS).splitlines()
    rows = [line.split() for line in lines if line.startswith(("PIPELINE", "lake", "new"))]
    assert rows[1] == ["lake", "lake", "Running", "3", "7:", "120", "records", "spark-1"]
    assert rows[2] == ["new", "audit", "-", "-", "-"]


def test_zookeeper_is_shown_with_its_leader_and_what_servers_wait_for() -> None:
    servers = [
        {"id": 0, "ready": False, "role": ""},
        {"id": 1, "ready": True, "role": "follower", "waitingFor": "server 0, which is not ready"},
        {"id": 2, "ready": True, "role": "leader"},
    ]
    zookeeper = {"targetHash": "new", "updated": 2, "total": 3, "servers": servers}
    lines = [line.strip() for line in screen(_cluster(zookeeper=zookeeper), [], _NOW_MS).splitlines()]
    assert "ZooKeeper: 2 of 3 servers are ready, server 2 leads" in lines
    assert "ZooKeeper server 1 waits for server 0, which is not ready" in lines
    assert sum(line.startswith("ZooKeeper") for line in lines) == 2


def test_pools_are_listed_and_their_brokers_named() -> None:
    brokers = [_broker(0), _broker(1000, pool="fast", podName="demo-broker-1000-0")]
    cluster = _cluster(conditions=[_READY], brokers=brokers, desiredBrokers=5)
    pool = {
        "kind": "BrokerPool",
        "metadata": {"name": "fast"},
        "spec": {"replicas": 2, "rack": "east"},
        "status": {"readyReplicas": 1, "brokerIds": [1000, 1002], "leavingBrokerIds": [1001]},
    }
    lines = [line.split() for line in screen(cluster, [pool], _NOW_MS).splitlines()]
    assert next(line[:3] for line in lines if line[:1] == ["BROKER"]) == ["BROKER", "POOL", "POD"]
    assert ["0", "-", "demo-brokers-0"] in [line[:3] for line in lines]
    assert ["1000", "fast", "demo-broker-1000-0"] in [line[:3] for line in lines]
    assert ["fast", "1/2", "east", "1000,1002", "1001"] in lines
    assert lines[1][:3] == ["3", "of", "5"]
    assert "3/5" in overview([cluster])


@pytest.mark.parametrize(("protocol", "scheme"), [({}, "http"), ({"appProtocol": "https"}, "https")])
def test_the_address_of_the_console_is_shown_with_the_way_there(
    protocol: dict[str, str], scheme: str
) -> None:
    service = {
        "metadata": {"name": "demo-console", "namespace": "kafka"},
        "spec": {"ports": [{"port": 8080, **protocol}]},
    }
    line = f"console: {scheme}://demo-console.kafka.svc:8080/"
    forward = "(kubectl port-forward -n kafka service/demo-console 8080)"
    assert f"{line} {forward}" in screen(_cluster(conditions=[_READY]), [], _NOW_MS, service)
    assert "console" not in screen(_cluster(conditions=[_READY]), [], _NOW_MS)


@pytest.mark.budget(3)  # a process
def test_a_command_starts_without_the_operators_libraries() -> None:
    script = (
        "import ottla_operator.kubectl.command, sys; "
        "print(*{'kopf', 'aiohttp', 'kubernetes', 'kazoo'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
