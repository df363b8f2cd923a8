"""The console's eyes on a real Kubernetes: the chart's Role is enough for its pages, and for nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from ottla_console.cluster.kubernetes_api import ApiServer, OnKubernetes
from ottla_console.cluster.resources import Resources
from ottla_console.settings import BrokerClusterName
from tests.e2e.clusters import Cluster
from tests.e2e.installing import ROOT
from tests.e2e.kube import KUBE_VERSION, Kube


async def read(cluster: BrokerClusterName) -> dict[str, Any]:
    """What the console sees of a cluster."""
    resources = Resources(OnKubernetes(ApiServer(), cluster), lambda: 1, time.monotonic)
    found = await resources.state(30)
    await resources.close()
    state = found.value
    return {
        "problems": [str(each) for each in found.problems],
        "ready": state and state.ready and state.ready.reason,
        "brokers": state and [each.pod for each in state.brokers],
        "topics": state and [each.name for each in state.resources if each.kind == "Topic" and each.well],
        "events": state and len(state.events),
    }


def console_objects(kube: Kube, cluster: Cluster, tmp_path: Path) -> list[dict[str, Any]]:
    """What the chart makes for the console of the shared cluster, without its pod."""
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps({"name": cluster.name, "console": {"enabled": True}}))
    text = kube.helm(
        *("template", "x", str(ROOT / "charts/ottla-cluster"), "--kube-version", KUBE_VERSION),
        *("-n", cluster.namespace, "-f", str(file), "-s", "templates/console.yaml"),
    )
    return [each for each in yaml.safe_load_all(text) if each["kind"] != "Deployment"]


def config_of(kube: Kube, cluster: Cluster, account: str, folder: Path) -> Path:
    """A kubeconfig with the token of a service account."""
    config = json.loads(kube.kubectl("config", "view", "--raw", "--minify", "-o", "json"))
    token = kube.kubectl("create", "token", account, "-n", cluster.namespace).strip()
    config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
    file = folder / f"{account}.kubeconfig"
    file.write_text(json.dumps(config))
    return file


def state(config: Path, cluster: Cluster) -> dict[str, Any]:
    """What the console reads with this kubeconfig."""
    command = [sys.executable, "-m", "tests.e2e.test_console", f"{cluster.namespace}/{cluster.name}"]
    environment = os.environ | {"KUBECONFIG": str(config)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_console_reads_the_cluster_with_its_own_role_and_status_has_its_address(
    kube: Kube, cluster: Cluster, ottla: Callable[..., str], tmp_path: Path
) -> None:
    cluster.create_topic("seen")
    objects = console_objects(kube, cluster, tmp_path)
    kube.apply(*objects)
    account = f"{cluster.name}-console"
    try:
        config = config_of(kube, cluster, account, tmp_path)
        found = state(config, cluster)
        assert found["problems"] == []
        assert found["ready"] == "AllBrokersReady"
        assert len(found["brokers"]) == 3
        assert "seen" in found["topics"]
        assert found["events"] > 0
        impersonated = f"--as=system:serviceaccount:{cluster.namespace}:{account}"
        rights = kube.kubectl("auth", "can-i", "--list", impersonated, "-n", cluster.namespace).splitlines()
        of_role = [each.split() for each in rights if ".ottla.dev" in each or each.startswith("events")]
        assert {each[-1] for each in of_role} == {"[get]", "[list]"}
        assert not [each for each in rights if each.startswith(("secrets", "pods", "configmaps", "*"))]
        assert f"console: http://{account}.{cluster.namespace}.svc:8080/" in ottla("status", cluster.name)
        kube.delete("rolebinding", account, cluster.namespace)
        assert "cannot get resource" in state(config, cluster)["problems"][0]
    finally:
        for each in objects:
            kube.delete(
                each["kind"].lower(), each["metadata"]["name"], cluster.namespace, "--ignore-not-found"
            )
        kube.delete("topic.ottla.dev", "seen", cluster.namespace)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(read(BrokerClusterName.parse(sys.argv[1])))))
