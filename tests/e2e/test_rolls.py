"""Rolls on a real cluster: one by one, for what needs it alone, stopped by what cannot start, never lossy."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import pytest

from tests.e2e.clients import Traffic
from tests.e2e.clusters import Cluster
from tests.e2e.conftest import Plugin
from tests.e2e.kills import KilledAtEachStep
from tests.e2e.kube import Kube, wait_for

_ROLL_S = 300


class PodsDown:
    """Looks again and again how many of a cluster's brokers are down: the most at once.

    Down until a pod has been ready: one whose probe comes too late on a busy machine was not taken down.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.most = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(30)

    def _look(self) -> None:
        been_ready: set[str] = set()
        while not self._stop.wait(0.5):
            try:
                stages = self._cluster.stages_by_uid()
            except (AssertionError, subprocess.TimeoutExpired) as error:
                print(f"looking failed: {error}")
                continue
            been_ready |= {uid for uid, stage in stages.items() if stage == "ready"}
            up = [uid for uid, stage in stages.items() if stage != "stopping" and uid in been_ready]
            self.most = max(self.most, 3 - len(up))


@pytest.fixture
def settings(cluster: Cluster) -> Iterator[Cluster]:
    """The spec is as before afterwards."""
    yield cluster
    cluster.as_in_the_chart()
    cluster.wait_ready(_ROLL_S)


def test_a_static_setting_rolls_one_by_one_and_loses_nothing(settings: Cluster) -> None:
    before, zookeepers = settings.brokers(), settings.zookeepers()
    with Traffic(settings, "events") as traffic, PodsDown(settings) as down:
        settings.patch({"config": {"queued.max.requests": 300}})
        length_s = settings.wait_rolled(before, _ROLL_S)
        traffic.wait_for_more(200)
        traffic.assert_lost_nothing()
        print(f"roll of three: {length_s:.0f} s, pauses {traffic.summary['produce_pause_s']} s")
    assert down.most == 1
    assert settings.zookeepers() == zookeepers
    properties = settings.in_pod("sh", "-c", "cat /etc/ottla/*/server.properties")
    assert "queued.max.requests=300" in properties


def test_a_dynamic_setting_restarts_no_broker(settings: Cluster) -> None:
    before = settings.brokers()
    # The threads in steps, since a broker accepts twice as many at most.
    settings.patch({"config": {"log.retention.ms": 86400000, "num.io.threads": 77}})
    address = settings.status["bootstrapServers"]

    def altered() -> bool:
        text = settings.in_pod("ottla", "configs", "describe", "broker", "0", "-b", address)
        return "86400000" in text and "77" in text

    settings.wait_ready()
    wait_for("brokers have the setting", altered, 60)
    assert settings.brokers() == before


def test_rollout_restart_and_the_plugin_roll_once_and_lose_nothing(settings: Cluster, ottla: Plugin) -> None:
    zookeepers = settings.zookeepers()
    with Traffic(settings, "events") as traffic:
        for restart in (
            lambda: settings.kube.kubectl(
                "rollout", "restart", "statefulset", "demo-brokers", "-n", settings.namespace
            ),
            lambda: ottla("roll", "demo"),
        ):
            before = settings.brokers()
            with PodsDown(settings) as down:
                restart()
                settings.wait_rolled(before, _ROLL_S)
            assert down.most == 1
        after = settings.brokers()
        settings.annotate("ottla.dev/restart-requested-at", None)
        settings.kube.delete("service", "demo-bootstrap", settings.namespace)
        traffic.wait_for_more(200)
        traffic.assert_lost_nothing()
    settings.wait_ready()
    assert settings.brokers() == after
    assert settings.zookeepers() == zookeepers


def test_a_volume_of_the_pod_template_rolls(settings: Cluster) -> None:
    before = settings.brokers()
    settings.patch({"template": {"pod": {"spec": {"volumes": [{"name": "more", "emptyDir": {}}]}}}})
    settings.wait_rolled(before, _ROLL_S)


def test_zookeeper_waits_for_approval_and_rolls_one_by_one_with_the_leader_last(
    settings: Cluster, ottla: Plugin
) -> None:
    settings.patch({"rollingUpdate": {"strategy": "OnApproval"}})
    settings.wait_ready()
    before, brokers = settings.zookeepers(), settings.brokers()

    def servers() -> dict[str, dict[str, str]]:
        found = settings.status["zookeeper"]["servers"]
        return {server["podName"]: server for server in found}

    def held() -> bool:
        return {server["waitingFor"] for server in servers().values()} == {"approval of the rollout"}

    settings.patch({"zookeeper": {"managed": {"heap": "200m"}}})
    wait_for("the servers wait for approval", held, 60)
    assert settings.zookeepers() == before
    (leader,) = [name for name, server in servers().items() if server["role"] == "leader"]
    order: list[str] = []
    with Traffic(settings, "events") as traffic:
        assert "ZooKeeper to revision" in ottla("roll", "demo")

        def replaced() -> bool:
            now = settings.zookeepers()
            new = [name for name in before if now.get(name) != before[name] and name not in order]
            assert len(new) <= 1
            order.extend(new)
            return len(order) == 3 and settings.condition("Rolling").get("status") == "False"

        wait_for("every server is a new one", replaced, _ROLL_S)
        traffic.wait_for_more(200)
        traffic.assert_lost_nothing()
    assert order[-1] == leader
    assert settings.brokers() == brokers


def test_an_image_that_cannot_be_had_stops_the_roll_and_taking_it_back_heals(settings: Cluster) -> None:
    before = settings.brokers()
    with Traffic(settings, "events") as traffic:
        settings.patch({"image": "ottla:no-such-tag"})

        def stalled() -> bool:
            ready = settings.condition("Ready")
            return ready.get("status") == "False" and "no-such-tag" in json.dumps(settings.status)

        wait_for("the status names the image", stalled, 180)
        traffic.wait_for_more(200)
        # One was tried; the others run as they did.
        kept = set(settings.brokers().values()) & set(before.values())
        assert len(kept) == 2
        assert settings.condition("Available").get("status") == "True"
        settings.patch({"image": None})
        settings.wait_ready(_ROLL_S)
        traffic.wait_for_more(200)
        traffic.assert_lost_nothing()
    assert set(settings.brokers().values()) >= kept


def test_memory_that_no_node_has_stops_the_roll_and_taking_it_back_heals(settings: Cluster) -> None:
    before = settings.brokers()
    usual = settings.spec["resources"]
    try:
        with Traffic(settings, "events") as traffic:
            settings.patch({"resources": {"requests": {"memory": "900Gi"}}})

            def explained() -> bool:
                return "Insufficient memory" in json.dumps(settings.status.get("brokers"))

            wait_for("the status says what there is too little of", explained, 180)
            traffic.wait_for_more(200)
            kept = set(settings.brokers().values()) & set(before.values())
            assert len(kept) == 2
            assert settings.condition("Available").get("status") == "True"
            settings.patch({"resources": usual})
            settings.wait_ready(_ROLL_S)
            traffic.wait_for_more(200)
            traffic.assert_lost_nothing()
    finally:
        settings.patch({"resources": usual})
    assert set(settings.brokers().values()) >= kept


def test_an_impossible_setting_changes_nothing(settings: Cluster) -> None:
    before = settings.brokers()
    settings.patch({"config": {"num.io.threads": "many"}})

    def refused() -> bool:
        ready = settings.condition("Ready")
        return ready.get("status") == "False" and "num.io.threads" in ready.get("message", "")

    wait_for("the status names the setting", refused, 60)
    assert settings.brokers() == before


def test_the_operator_killed_at_each_step_of_a_roll_goes_on_with_it(kube: Kube, settings: Cluster) -> None:
    before = settings.brokers()

    def step() -> dict[str, str]:
        new = {pod for pod, uid in settings.brokers().items() if uid != before[pod]}
        stages = settings.stages()
        return {pod: f"{'new' if pod in new else 'old'}, {stages.get(pod, 'gone')}" for pod in before}

    with Traffic(settings, "events") as traffic, PodsDown(settings) as down:
        with KilledAtEachStep(kube, step) as killed:
            settings.patch({"config": {"queued.max.requests": 500}})
            settings.wait_rolled(before, _ROLL_S)
        traffic.wait_for_more(200)
        traffic.assert_lost_nothing()
    # Once at least for each broker.
    assert len(killed.at) >= 3
    assert down.most == 1
