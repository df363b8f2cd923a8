"""`kubectl ottla report`: what support needs to see of a cluster, in one archive, without its secrets.

The objects are listed with the caller's permissions; what may not be read is named in the archive. Secrets
keep their keys and sizes. Values that are secret elsewhere (passwords, keys, JAAS logins, tokens) are
redacted in objects and logs.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import click
import yaml

from ottla_operator.kubernetes.naming import CLUSTER_LABEL
from ottla_operator.resources import KINDS
from ottla_operator.resources.common import GROUP

REDACTED: Final = "(redacted)"
_LOG_LINES: Final = 5000
_CHILDREN: Final = (
    "statefulsets", "pods", "services", "configmaps", "secrets", "serviceaccounts", "persistentvolumeclaims",
    "poddisruptionbudgets", "networkpolicies", "ingresses",
)  # fmt: skip
# Of products that a Kubernetes cluster need not have.
_OPTIONAL: Final = ("tlsroutes.gateway.networking.k8s.io", "certificates.cert-manager.io")
_NO_SUCH_KIND: Final = "doesn't have a resource type"
_OPERATOR_LABEL: Final = "app.kubernetes.io/name=ottla-operator"

_SECRET_NAME = re.compile(
    r"(password|passphrase|secret|token|credential|jaas|keystore\.key|private.?key|api.?key)$", re.IGNORECASE
)
# In texts: name=value and name: value up to the end of the value, logins in JAAS form, and keys in PEM.
_IN_TEXT: Final = (
    (
        re.compile(
            r"(?P<name>[\w.\-]*(?:password|passphrase|secret|token|credential)[\"']?\s*[=:]\s*)"
            r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s,;}\])]+)",
            re.IGNORECASE,
        ),
        rf"\g<name>{REDACTED}",
    ),
    (re.compile(r"(?P<name>[\w.\-]*jaas\.config\s*=).*", re.IGNORECASE), rf"\g<name>{REDACTED}"),
    (
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL),
        REDACTED,
    ),
)


@dataclass(frozen=True, slots=True)
class Part:
    """A file of the archive."""

    path: str
    text: str


def redacted_text(text: str) -> str:
    """The text without values that are secret by their name, and without private keys."""
    for pattern, replacement in _IN_TEXT:
        text = pattern.sub(replacement, text)
    return text


def redacted(item: Any) -> Any:
    """The object without secret values and without managedFields."""
    if isinstance(item, dict) and item.get("kind") == "Secret":
        return _without_data(item)
    return _redacted(item, "")


def _without_data(secret: Mapping[str, Any]) -> dict[str, Any]:
    data = {name: f"{REDACTED}, {len(text)} characters in base64" for name, text in _texts(secret)}
    kept = {name: value for name, value in secret.items() if name not in ("data", "stringData")}
    metadata = {name: value for name, value in kept["metadata"].items() if name != "annotations"}
    return {**_redacted({**kept, "metadata": metadata}, ""), "data": data}


def _texts(secret: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for field in ("data", "stringData"):
        yield from (secret.get(field) or {}).items()


def _redacted(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        # A container's environment: the name of a value is beside it.
        named = value.get("name") if isinstance(value.get("value"), str) else None
        return {
            key: _redacted(each, str(named) if key == "value" and named else str(key))
            for key, each in value.items()
            if key not in ("managedFields", "kubectl.kubernetes.io/last-applied-configuration")
        }
    if isinstance(value, list):
        return [_redacted(each, name) for each in value]
    if isinstance(value, str):
        return REDACTED if value and _SECRET_NAME.search(name) else redacted_text(value)
    return value


class Report:
    """Collects the parts of a report. `run` is a kubectl command; it raises ClickException."""

    def __init__(self, run: Callable[..., str], cluster: str, operator_namespace: str) -> None:
        self._run = run
        self._cluster = cluster
        self._operator_namespace = operator_namespace
        self._problems: list[str] = []

    def parts(self) -> Iterator[Part]:
        """All files, those that need the most permissions last."""
        workers: set[str] = set()
        for kind, model in KINDS.items():
            plural = model.definition.plural
            items = self._list(f"resources/{plural}", f"{plural}.{GROUP}")
            found = [item for item in items if self._belongs(item, workers)]
            if kind == "ConnectCluster":
                workers = {item["metadata"]["name"] for item in found}
            yield from _objects(f"resources/{plural}", found)
        of_cluster = ("-l", f"{CLUSTER_LABEL}={self._cluster}")
        kinds = (*_CHILDREN, *_OPTIONAL)
        children = {name: self._list(f"objects/{_plural(name)}", name, *of_cluster) for name in kinds}
        for name, items in children.items():
            yield from _objects(f"objects/{_plural(name)}", items)
        yield from self._logs("logs", children["pods"])
        yield from _objects("events", self._list("events", "events"))
        of_operator = ("-n", self._operator_namespace)
        pods = self._list("operator/pods", "pods", *of_operator, "-l", _OPERATOR_LABEL)
        yield from _objects("operator/pods", pods)
        deployments = self._list("operator/deployments", "deployments", *of_operator, "-l", _OPERATOR_LABEL)
        yield from _objects("operator/deployments", deployments)
        yield from _objects("operator/leases", self._list("operator/leases", "leases", *of_operator))
        yield from self._logs("operator/logs", pods)
        for plural in ("nodes", "storageclasses"):
            yield from _objects(plural, self._list(plural, plural))
        yield from self._text("version", "version", "-o", "yaml")
        if self._problems:
            yield Part("not-read.txt", "\n".join(self._problems) + "\n")

    def _belongs(self, item: Mapping[str, Any], workers: Collection[str]) -> bool:
        """Whether a resource is of the cluster. `workers`: the names of its ConnectClusters."""
        spec = item["spec"]
        if item["kind"] == "BrokerCluster":
            return bool(item["metadata"]["name"] == self._cluster)
        if "connectRef" in spec:
            return spec["connectRef"]["name"] in workers
        return bool(spec.get("clusterRef", {}).get("name") == self._cluster)

    def _list(self, path: str, plural: str, *arguments: str) -> list[dict[str, Any]]:
        """The objects of a kind; none, with a note of the problem, when they cannot be read."""
        try:
            return list(json.loads(self._run("get", plural, "-o", "json", *arguments))["items"])
        except click.ClickException as error:
            if plural not in _OPTIONAL or _NO_SUCH_KIND not in error.message:
                self._problems.append(f"{path}: {error.message}")
            return []

    def _logs(self, path: str, pods: Iterable[Mapping[str, Any]]) -> Iterator[Part]:
        """The logs of each container, and those before its last restart."""
        for pod in pods:
            metadata, statuses = pod["metadata"], (pod.get("status") or {}).get("containerStatuses") or ()
            for status in statuses:
                of = (metadata["name"], "-n", metadata["namespace"], "-c", status["name"])
                asked = ("logs", *of, f"--tail={_LOG_LINES}", "--timestamps")
                name = f"{path}/{metadata['name']}.{status['name']}"
                yield from self._text(name, *asked)
                if status.get("restartCount"):
                    yield from self._text(f"{name}.previous", *asked, "--previous")

    def _text(self, path: str, *arguments: str) -> Iterator[Part]:
        try:
            text = self._run(*arguments)
        except click.ClickException as error:
            self._problems.append(f"{path}: {error.message}")
            return
        yield Part(f"{path}.txt", redacted_text(text))


def _plural(name: str) -> str:
    """The plural of a kind that may be named with its group."""
    return name.partition(".")[0]


def _objects(path: str, items: Iterable[Mapping[str, Any]]) -> Iterator[Part]:
    shown = [redacted(item) for item in items]
    if shown:
        yield Part(f"{path}.yaml", yaml.safe_dump_all(shown, sort_keys=False, allow_unicode=True))


def archive(folder: str, parts: Iterator[Part], now_s: float) -> bytes:
    """The parts as files of `folder`, in a tar archive with gzip."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for part in parts:
            content = part.text.encode()
            info = tarfile.TarInfo(f"{folder}/{part.path}")
            info.size, info.mtime, info.mode = len(content), int(now_s), 0o644
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
