"""cert-manager for the tests: one that the cluster has, or its programs beside the cluster.

OTTLA_E2E_CERT_MANAGER is a folder with cert-manager's `controller` and `cainjector` (`go build` in its
cmd/controller and cmd/cainjector) and its CustomResourceDefinitions in `crds` (its deploy/crds). They run on
this machine, since a cluster without registries cannot pull their images.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.kube import Kube, Object, wait_for

_CRD: Final = "certificates.cert-manager.io"
# Without those of ACME and of other issuers.
_CONTROLLERS: Final = (
    "issuers", "certificates-issuing", "certificates-key-manager", "certificates-readiness",
    "certificates-request-manager", "certificates-revision-manager", "certificates-trigger",
    "certificaterequests-approver", "certificaterequests-issuer-ca", "certificaterequests-issuer-selfsigned",
)  # fmt: skip


@contextmanager
def cert_manager(kube: Kube, folder: Path) -> Iterator[None]:
    """Runs cert-manager; skips the test without one. `folder` gets its logs."""
    given = os.environ.get("OTTLA_E2E_CERT_MANAGER")
    if not given:
        if not kube.kubectl("get", "crd", _CRD, "--ignore-not-found", "-o", "name").strip():
            pytest.skip("needs cert-manager in the cluster, or OTTLA_E2E_CERT_MANAGER (cert_manager.py)")
        yield
        return
    kube.kubectl("apply", "--server-side", "-f", str(Path(given, "crds").resolve()))
    access = folder / "kubeconfig"
    access.touch(mode=0o600)
    access.write_text(kube.kubectl("config", "view", "--raw", "--flatten"))
    shared = (f"--kubeconfig={access}", "--leader-elect=false")
    with ExitStack() as running:
        for command in (
            ("controller", *shared, f"--controllers={','.join(_CONTROLLERS)}"),
            ("cainjector", *shared, "--metrics-listen-address=0"),  # Its default port is the controller's.
        ):
            log = running.enter_context((folder / f"{command[0]}.log").open("wb"))
            process = subprocess.Popen(
                [str(Path(given, command[0])), *command[1:]],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "KUBECONFIG": str(access)},
            )
            running.callback(process.wait)
            running.callback(process.kill)
        yield


def apply_issuer(kube: Kube, name: str, namespace: str) -> None:
    """An Issuer with an authority of its own, Ready."""

    def item(kind: str, name: str, spec: Object) -> Object:
        metadata = {"name": name, "namespace": namespace}
        return {"apiVersion": "cert-manager.io/v1", "kind": kind, "metadata": metadata, "spec": spec}

    root = {
        "isCA": True,
        "commonName": "root of the test",
        "secretName": f"{name}-root",
        "privateKey": {"algorithm": "ECDSA", "size": 256},
        "issuerRef": {"name": f"{name}-self"},
    }
    kube.apply(
        item("Issuer", f"{name}-self", {"selfSigned": {}}),
        item("Certificate", f"{name}-root", root),
        item("Issuer", name, {"ca": {"secretName": f"{name}-root"}}),
    )

    def ready() -> bool:
        found = kube.get("issuers.cert-manager.io", name, namespace) or {}
        conditions = (found.get("status") or {}).get("conditions") or ()
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    wait_for(f"the Issuer {name} is Ready", ready, 60)
