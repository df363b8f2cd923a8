"""Connects to a Kubernetes, loads the image and installs the operator from its chart.

Used by the tests' fixtures and by `measure`.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests import last_release
from tests.e2e.clusters import CONNECT_IMAGE, IMAGE, NAMESPACE, SPARK_IMAGE, SYSTEM
from tests.e2e.kube import Kube

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/ottla"
WHY_NOT = "needs OTTLA_KUBE, the path of kube.sh, or a KUBECONFIG"
_BASE = "localhost/python:3.12-slim"
OLDER_COMMIT = "9397bb6b4c76deab95c45cd3f28114dd2f3c223f"
"""The last version whose secured clusters have no TLS to ZooKeeper."""


def connect() -> Kube | None:
    """A reachable cluster with the image; None without one. OTTLA_E2E_IMAGE=keep: the image is already
    loaded."""
    script = os.environ.get("OTTLA_KUBE")
    if not script:
        return Kube(None) if os.environ.get("KUBECONFIG") else None
    subprocess.run([script, "up"], check=True, timeout=1500)
    if os.environ.get("OTTLA_E2E_IMAGE") != "keep":
        subprocess.run([script, "base-image", _BASE], check=True, timeout=900)
        build = [script, "load-image", str(ROOT), IMAGE, f"BASE_IMAGE={_BASE}"]
        subprocess.run(build, check=True, timeout=1500)
    return Kube(Path(script))


def load_spark_image() -> None:
    """The image of pipelines' drivers and executors, for the tests that need it; it takes minutes."""
    _load_image(SPARK_IMAGE, "spark")


def load_connect_image() -> None:
    """The image of Kafka Connect's workers, for the tests that need it; it takes minutes."""
    _load_image(CONNECT_IMAGE, "connect")


def _load_image(name: str, flavour: str) -> None:
    script = os.environ.get("OTTLA_KUBE")
    if script and os.environ.get("OTTLA_E2E_IMAGE") != "keep":
        arguments = [f"BASE_IMAGE={_BASE}", f"FLAVOUR={flavour}"]
        subprocess.run([script, "load-image", str(ROOT), name, *arguments], check=True, timeout=1500)


class Older(NamedTuple):
    """The version of OLDER_COMMIT."""

    image: str
    chart: Path


def load_older(folder: Path) -> Older | None:
    """The version of OLDER_COMMIT, from this checkout into `folder`; its image is the one that
    OTTLA_E2E_OLDER_IMAGE names, or built. None without the commit, or without a way to load the image."""
    given, script = os.environ.get("OTTLA_E2E_OLDER_IMAGE"), os.environ.get("OTTLA_KUBE")
    if not (given or script):
        return None
    tree = folder / "older"
    try:
        last_release.export(tree, OLDER_COMMIT)
    except LookupError:
        return None
    name = given or f"ottla:older-{OLDER_COMMIT[:7]}"
    if script and not given:
        build = [script, "load-image", str(tree), name, f"BASE_IMAGE={_BASE}"]
        subprocess.run(build, check=True, timeout=1500)
    return Older(name, tree / "charts/ottla")


def install_operator(kube: Kube) -> None:
    """Installs the chart."""
    _install(kube, CHART, IMAGE, *_only_these_namespaces(kube))


def install_older_operator(kube: Kube, older: Older, namespace: str) -> None:
    """Installs the chart of an older version, with its CustomResourceDefinitions, for one namespace."""
    _install(kube, older.chart, older.image, "--set", f"watchNamespaces={{{namespace}}}")


def _install(kube: Kube, chart: Path, image: str, *more: str) -> None:
    repository, tag = image.split(":")
    kube.helm(
        *("upgrade", "--install", "ottla", str(chart), "-n", SYSTEM, "--create-namespace"),
        *("--set", f"image.repository={repository}", "--set", f"image.tag={tag}"),
        *("--set", "resources.requests.cpu=10m", "--take-ownership", "--wait", "--timeout", "3m"),
        *more,
    )


def _only_these_namespaces(kube: Kube) -> list[str]:
    """OTTLA_E2E_NAMESPACED: the cluster is shared with other operators."""
    if not os.environ.get("OTTLA_E2E_NAMESPACED"):
        return []
    names = [
        NAMESPACE,
        f"{NAMESPACE}-access",
        f"{NAMESPACE}-backup",
        f"{NAMESPACE}-connect",
        f"{NAMESPACE}-gone",
        f"{NAMESPACE}-outside",
        f"{NAMESPACE}-secured",
        f"{NAMESPACE}-upgraded",
        f"{NAMESPACE}-pipelines",
        f"{NAMESPACE}-certificates",
        f"{NAMESPACE}-admission",
    ]
    for name in names:
        kube.ensure_namespace(name)
    return ["--set", f"watchNamespaces={{{','.join(names)}}}"]


def uninstall_operator(kube: Kube) -> None:
    kube.helm("uninstall", "ottla", "-n", SYSTEM, "--wait")
