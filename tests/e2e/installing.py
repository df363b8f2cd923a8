"""A Kubernetes for the taking, with the image in it and the operator installed from its chart.

Used by the tests' fixtures and by `measure`.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.e2e.clusters import IMAGE, NAMESPACE, SPARK_IMAGE, SYSTEM
from tests.e2e.kube import Kube

ROOT = Path(__file__).parents[2]
WHY_NOT = "needs OTTLA_KUBE, the path of kube.sh, or a KUBECONFIG"
_BASE = "localhost/python:3.12-slim"


def connect() -> Kube | None:
    """A cluster that answers, with the image in it; None where there is none.

    OTTLA_E2E_IMAGE=keep: the image is there already.
    """
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
    script = os.environ.get("OTTLA_KUBE")
    if script and os.environ.get("OTTLA_E2E_IMAGE") != "keep":
        arguments = [f"BASE_IMAGE={_BASE}", "FLAVOUR=spark"]
        subprocess.run([script, "load-image", str(ROOT), SPARK_IMAGE, *arguments], check=True, timeout=1500)


def install_operator(kube: Kube) -> None:
    repository, tag = IMAGE.split(":")
    kube.helm(
        *("upgrade", "--install", "ottla", str(ROOT / "charts/ottla"), "-n", SYSTEM, "--create-namespace"),
        *("--set", f"image.repository={repository}", "--set", f"image.tag={tag}"),
        *("--set", "resources.requests.cpu=10m", "--take-ownership", "--wait", "--timeout", "3m"),
        *_only_these_namespaces(kube),
    )


def _only_these_namespaces(kube: Kube) -> list[str]:
    """OTTLA_E2E_NAMESPACED: where others share the cluster, with operators of their own."""
    if not os.environ.get("OTTLA_E2E_NAMESPACED"):
        return []
    names = [
        NAMESPACE,
        f"{NAMESPACE}-gone",
        f"{NAMESPACE}-outside",
        f"{NAMESPACE}-secured",
        f"{NAMESPACE}-pipelines",
    ]
    for name in names:
        kube.ensure_namespace(name)
    return ["--set", f"watchNamespaces={{{','.join(names)}}}"]


def uninstall_operator(kube: Kube) -> None:
    kube.helm("uninstall", "ottla", "-n", SYSTEM, "--wait")
