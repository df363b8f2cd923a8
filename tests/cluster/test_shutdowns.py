"""Controlled shutdowns take little time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ottla.local.cluster import LocalCluster

SOON_S = 28
"""Less than Kubernetes waits before it kills, 30 s; the controlled shutdown's own time-outs are longer."""


@pytest.mark.timeout(420)
def test_brokers_without_a_zookeeper_stop_within_the_grace_of_a_pod(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        cluster.create_topic("t", partitions=6)
        controller = cluster.brokers[cluster.controller()]
        other = next(broker for broker in cluster.brokers.values() if broker is not controller)
        cluster.zookeeper.kill()
        controller.kill()
        began = time.monotonic()
        other.terminate()
        other.stop(timeout_s=SOON_S)
        assert time.monotonic() - began < SOON_S, other.log_tail()
        assert other.exit_code == 0, other.log_tail()
