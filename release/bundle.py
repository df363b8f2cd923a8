"""The operator's bundle for the Operator Lifecycle Manager: `python -m release.bundle [FOLDER]`.

It is made of manifests/operator.yaml, manifests/crds and manifests/samples. The ClusterServiceVersion has the
Deployment, and the rules of the roles that its service account is bound to. Beside it are manifests of what
it cannot hold: Services, and roles of users and of Spark's drivers.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from charts.metadata import custom_resources
from release.version import ROOT, current, semantic

FOLDER: Final = ROOT / "build/bundle"
Json = dict[str, Any]
_CHANNEL: Final = "alpha"
_ANNOTATIONS: Final = {
    "operators.operatorframework.io.bundle.mediatype.v1": "registry+v1",
    "operators.operatorframework.io.bundle.manifests.v1": "manifests/",
    "operators.operatorframework.io.bundle.metadata.v1": "metadata/",
    "operators.operatorframework.io.bundle.package.v1": "ottla",
    "operators.operatorframework.io.bundle.channels.v1": _CHANNEL,
    "operators.operatorframework.io.bundle.channel.default.v1": _CHANNEL,
}
_OF_OLM: Final = ("Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRoleBinding", "Deployment")
"""What OLM makes itself, of the ClusterServiceVersion."""
_TEXT: Final = """\
Ottla does Apache Kafka's job in Python. Its operator runs clusters of brokers that speak the protocol of
Kafka 3.9, with their ZooKeeper, topics, users, quotas, consumer groups, Kafka Connect, and jobs on Spark that
land topics in a lake. Rolls never go below `min.insync.replicas`; certificates, volumes, rebalancing by load
and backups of metadata are part of it.
"""


def files() -> dict[str, str]:
    """The files of the bundle by their paths in it."""
    objects = [found for found in yaml.load_all(_read("manifests/operator.yaml"), yaml.CSafeLoader) if found]
    found = {f"manifests/ottla.ottla.dev_{path.name}": path.read_text() for path in _crds()}
    found["manifests/ottla.clusterserviceversion.yaml"] = _dump(service_version(objects))
    for each in objects:
        bound = _bound(objects, "ClusterRole", "ClusterRoleBinding")
        if each["kind"] not in _OF_OLM and each["metadata"]["name"] not in bound:
            each["metadata"].pop("namespace", None)
            found[f"manifests/{each['metadata']['name']}_{each['kind'].lower()}.yaml"] = _dump(each)
    found["metadata/annotations.yaml"] = _dump({"annotations": _ANNOTATIONS})
    return found


def service_version(objects: list[Json]) -> Json:
    version = current()
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    images = {item["value"] for item in container["env"] if item["name"].endswith("_IMAGE")}
    icon = (ROOT / "docs/assets/logo.svg").read_bytes()
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    return {
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": f"ottla.v{semantic(version)}",
            "annotations": {
                "alm-examples": json.dumps(_samples()),
                "capabilities": "Deep Insights",
                "categories": "Streaming & Messaging",
                "containerImage": container["image"],
                "description": "Kafka-compatible clusters of brokers in Python",
            },
        },
        "spec": {
            "displayName": "Ottla",
            "description": _TEXT,
            "version": semantic(version),
            "maturity": "alpha",
            "minKubeVersion": "1.27.0",
            "keywords": ["kafka", "streaming", "messaging", "spark"],
            "maintainers": [{"name": "The authors of Ottla", "email": "maintainers@example.org"}],
            "provider": {"name": "The authors of Ottla"},
            "icon": [{"base64data": base64.b64encode(icon).decode(), "mediatype": "image/svg+xml"}],
            "installModes": [
                {"type": "OwnNamespace", "supported": False},
                {"type": "SingleNamespace", "supported": False},
                {"type": "MultiNamespace", "supported": False},
                {"type": "AllNamespaces", "supported": True},
            ],
            "install": {
                "strategy": "deployment",
                "spec": {
                    "clusterPermissions": _rules(objects, account, "ClusterRole", "ClusterRoleBinding"),
                    "permissions": _rules(objects, account, "Role", "RoleBinding"),
                    "deployments": [
                        {
                            "name": deployment["metadata"]["name"],
                            "label": deployment["metadata"]["labels"],
                            "spec": deployment["spec"],
                        }
                    ],
                },
            },
            "customresourcedefinitions": {"owned": yaml.safe_load(custom_resources())},
            "relatedImages": [{"name": image.partition(":")[0], "image": image} for image in sorted(images)],
        },
    }


def _samples() -> list[Json]:
    """A sample of each kind: the first of manifests/samples, those of its own folder before those below."""
    found: dict[str, Json] = {}
    for path in sorted(
        (ROOT / "manifests/samples").rglob("*.yaml"), key=lambda path: (len(path.parts), path)
    ):
        for each in yaml.load_all(path.read_text(), yaml.CSafeLoader):
            if each and each["apiVersion"].startswith("ottla.dev/"):
                found.setdefault(each["kind"], each)
    return list(found.values())


def _rules(objects: list[Json], account: str, role: str, binding: str) -> list[Json]:
    names = _bound(objects, role, binding)
    return [
        {"serviceAccountName": account, "rules": each["rules"]}
        for each in objects
        if each["kind"] == role and each["metadata"]["name"] in names
    ]


def _bound(objects: list[Json], role: str, binding: str) -> set[str]:
    return {
        each["roleRef"]["name"]
        for each in objects
        if each["kind"] == binding and each["roleRef"]["kind"] == role
    }


def _crds() -> list[Path]:
    return sorted((ROOT / "manifests/crds").glob("*.yaml"))


def _read(path: str) -> str:
    return (ROOT / path).read_text()


def _dump(content: Json) -> str:
    return yaml.safe_dump(content, sort_keys=False, width=1000, allow_unicode=True)


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0]) if arguments else FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
