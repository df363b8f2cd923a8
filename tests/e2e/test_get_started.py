"""docs/get-started/kubernetes.md and docs/tutorials/secured.md, followed literally."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.clusters import SYSTEM, TAG
from tests.e2e.installing import ROOT, install_operator, uninstall_operator
from tests.e2e.kube import Kube
from tests.pages import BIN, DOCS, INSTALLED, Page, Reader

pytestmark = pytest.mark.skipif(
    (SYSTEM, TAG) != ("ottla-system", "dev"),
    reason="the pages name the namespace ottla-system and the tag dev",
)
NAMESPACE = "demo"


@pytest.fixture
def reader(kube: Kube, tmp_path: Path) -> Iterator[Reader]:
    """With kubectl and helm for this cluster, which has no operator and no namespace of the pages."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("kubectl", "helm"):
        # kube.sh gives kubectl a flag of its own, and then kubectl looks for no plugin.
        plugin = '[ "$1" = ottla ] && shift && exec kubectl-ottla "$@"\n' if tool == "kubectl" else ""
        (tools / tool).write_text(f'#!/bin/sh\n{plugin}exec {" ".join(kube.command(tool))} "$@"\n')
        (tools / tool).chmod(0o755)
    given = {name: os.environ[name] for name in ("KUBECONFIG",) if name in os.environ}
    installed = "ottla" in kube.helm("list", "-n", SYSTEM, "-q").split()
    if installed:
        uninstall_operator(kube)
    try:
        environment = {**INSTALLED, **given}
        with Reader(tmp_path / "home", folder=ROOT, environment=environment, path=[tools, BIN]) as following:
            yield following
    finally:
        if "ottla" in kube.helm("list", "-n", SYSTEM, "-q").split():
            kube.helm("uninstall", "ottla", "-n", SYSTEM, "--wait")
        kube.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
        if installed:
            install_operator(kube)


def test_the_quickstart(reader: Reader) -> None:
    reader.follow(Page(DOCS / "get-started/kubernetes.md"))


def test_a_secured_cluster_with_monitoring(reader: Reader) -> None:
    reader.follow(Page(DOCS / "tutorials/secured.md"))
