"""Topic resources for topics that no resource manages: `kubectl ottla adopt`.

Pure. A resource states everything that the topic has, so that its creation changes nothing in Kafka, except
for settings of the cluster's topicDefaults that the topic does not have; these are named.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ottla_operator.resources import API_VERSION
from ottla_operator.resources.common import config_texts
from ottla_operator.resources.settings import THROTTLED_REPLICAS

_NAME_MAX: Final = 253
_DIGEST_CHARS: Final = 8
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9.]+")
_NEAR_DOTS: Final = re.compile(r"-*\.[-.]*")


@dataclass(frozen=True, slots=True)
class ExistingTopic:
    """A topic in Kafka; `settings` are its own."""

    name: str
    partitions: int
    replicas: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Adoption:
    """`manifests`: resources to create; `left_out`: why a topic gets none, by its name; `changed`: settings
    that the cluster's topicDefaults add to a topic, by its name."""

    manifests: Sequence[Mapping[str, Any]]
    left_out: Mapping[str, str]
    changed: Mapping[str, Mapping[str, str]]


def plan_adoption(
    cluster: Mapping[str, Any],
    existing: Iterable[ExistingTopic],
    resources: Iterable[Mapping[str, Any]],
    *,
    hidden: bool,
    reclaim_policy: str,
) -> Adoption:
    """Plan the resources for `existing` topics of `cluster`. `resources`: all Topics of its namespace."""
    name, namespace = cluster["metadata"]["name"], cluster["metadata"]["namespace"]
    topics = [dict(item) for item in resources]
    of_cluster = [item for item in topics if item["spec"].get("clusterRef", {}).get("name") == name]
    managed = {item["spec"].get("topicName") or item["metadata"]["name"]: item for item in of_cluster}
    taken = {str(item["metadata"]["name"]) for item in topics}
    defaults = config_texts((cluster["spec"].get("topicDefaults") or {}).get("config") or {})
    manifests, left_out, changed = [], {}, {}
    for topic in sorted(existing, key=lambda each: each.name):
        if topic.name in managed:
            left_out[topic.name] = f"Topic/{managed[topic.name]['metadata']['name']} manages it"
        elif topic.name.startswith("__"):
            left_out[topic.name] = "internal"
        elif topic.name.startswith(("_", ".")) and not hidden:
            left_out[topic.name] = "hidden; --hidden includes it"
        else:
            settings = {n: v for n, v in sorted(topic.settings.items()) if n not in THROTTLED_REPLICAS}
            added = {n: v for n, v in defaults.items() if n not in settings}
            resource_name = _resource_name(topic.name, taken)
            taken.add(resource_name)
            spec: dict[str, Any] = {"clusterRef": {"name": name}}
            if resource_name != topic.name:
                spec["topicName"] = topic.name
            spec |= {"partitions": topic.partitions, "replicas": topic.replicas}
            if settings:
                spec["config"] = settings
            spec["reclaimPolicy"] = reclaim_policy
            if added:
                # The spec and the topic differ, which is else a ResourceConflict.
                spec["adopt"] = True
                changed[topic.name] = added
            manifests.append(
                {
                    "apiVersion": API_VERSION,
                    "kind": "Topic",
                    "metadata": {"name": resource_name, "namespace": namespace},
                    "spec": spec,
                }
            )
    return Adoption(manifests, left_out, changed)


def _resource_name(topic: str, taken: Collection[str]) -> str:
    """A name that Kubernetes allows: the topic's, or one derived from it, always the same one."""
    derived = _NEAR_DOTS.sub(".", _NOT_IN_NAMES.sub("-", topic.lower())).strip("-.")
    if derived == topic and len(topic) <= _NAME_MAX and topic not in taken:
        return topic
    digest = hashlib.sha256(topic.encode()).hexdigest()[:_DIGEST_CHARS]
    return "-".join(part for part in (derived[: _NAME_MAX - _DIGEST_CHARS - 1].rstrip("-."), digest) if part)
