"""Writes manifests/operator.yaml: the operator as plain YAML, for those who have no helm.

`OTTLA_KUBE=…/kube.sh python -m tests.e2e.generate`, or with helm on the PATH. The tests hold the file against
what the chart renders. The CustomResourceDefinitions are in manifests/crds.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.e2e.kube import KUBE_VERSION, Kube

_ROOT = Path(__file__).parents[2]
MANIFEST = _ROOT / "manifests/operator.yaml"
_NAMESPACE = "ottla-system"
_HEADER = f"""\
# The operator, for `kubectl apply -f manifests/crds -f manifests/operator.yaml`.
# Generated from charts/ottla by `python -m tests.e2e.generate`; edit the chart, not this file.
apiVersion: v1
kind: Namespace
metadata:
  name: {_NAMESPACE}
"""


def rendered(kube: Kube) -> str:
    text = kube.helm(
        *("template", "ottla", str(_ROOT / "charts/ottla"), "-n", _NAMESPACE),
        *("--kube-version", KUBE_VERSION, "--set", "crds.install=false", "--no-hooks"),
    )
    return _HEADER + text.replace("managed-by: Helm", "managed-by: kubectl")


def main() -> None:
    script = os.environ.get("OTTLA_KUBE")
    MANIFEST.write_text(rendered(Kube(Path(script) if script else None)))


if __name__ == "__main__":
    main()
