"""What applying files would change: the resources before and after, as `kubectl apply` leaves them.

Called by `kubectl ottla plan` and `ottla up --plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ottla_operator.conditions import iso_time
from ottla_operator.rehearsal.report import Change, changed_paths
from ottla_operator.resources import AnyResource, BrokerCluster, ConnectCluster, Connector, Problem
from ottla_operator.resources.common import PAUSE_ANNOTATION
from ottla_operator.resources.loading import Document, Loaded, parse_resource

_OF_CONNECT = (ConnectCluster.definition.kind, Connector.definition.kind)


class Refused(Exception):
    """Files that cannot be planned: an apply would refuse them, or they are of no one cluster."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """The resources of one cluster, before and after."""

    cluster: BrokerCluster
    """After the change."""
    old_cluster: BrokerCluster | None
    before: Sequence[AnyResource]
    after: Sequence[AnyResource]
    changes: Sequence[Change]
    notes: Sequence[str]


def changed_resources(
    existing: Sequence[AnyResource],
    loaded: Loaded,
    problems_of: Callable[[AnyResource], Iterable[Problem]] = lambda resource: (),
    *,
    complete: bool = False,
    now_ms: int = 0,
) -> ChangeSet:
    """`problems_of`: errors of a spec on this platform; `complete`: resources that are not in the files are
    deleted. Raises Refused."""
    problems = list(loaded.errors)
    for document in loaded.documents:
        problems += [f"{document.key}: {problem}" for problem in document.problems]
    if problems:
        raise Refused(problems)
    documents = [document for document in loaded.documents if document.kind not in _OF_CONNECT]
    name = _cluster_of(documents)
    by_key = {each.key: each for each in existing}
    members = {key: each for key, each in by_key.items() if _belongs(each, name)}
    after: dict[str, AnyResource] = dict(members)
    changes: list[Change] = []
    notes = [
        f"{document.key} restarts no broker, and is not rehearsed"
        for document in loaded.documents
        if document.kind in _OF_CONNECT
    ]
    for document in documents:
        old = by_key.get(document.key)
        new = _applied(document, old)
        found = [*problems_of(new), *(new.transition_problems(old) if old is not None else ())]
        problems += [f"{document.key}: {problem}" for problem in found]
        after[new.key] = new
        paths = changed_paths(old, new)
        if old is not None and not paths:
            after[new.key] = old
            continue
        changes.append(Change(new.key, old is None, paths=paths))
    if problems:
        raise Refused(problems)
    named = {document.key for document in documents}
    for key, old in members.items() if complete else ():
        if key not in named:
            metadata = old.metadata.model_copy(update={"deletion_timestamp": iso_time(now_ms)})
            after[key] = old.model_copy(update={"metadata": metadata})
            changes.append(Change(key, deleted=True))
    cluster = after.get(f"BrokerCluster/{name}")
    if not isinstance(cluster, BrokerCluster):
        raise Refused([f"BrokerCluster {name} does not exist, and is not in the files"])
    old_cluster = members.get(cluster.key)
    recovery = cluster.spec.bootstrap.recovery
    if old_cluster is None and recovery is not None:
        notes.append(f"the backup at {recovery.source} is not read: Topics that it has are not created")
    if cluster.metadata.paused:
        notes.append(f"{PAUSE_ANNOTATION} pauses reconciliation: the operator would do nothing")
    return ChangeSet(
        cluster,
        old_cluster if isinstance(old_cluster, BrokerCluster) else None,
        list(members.values()),
        list(after.values()),
        changes,
        notes,
    )


def _cluster_of(documents: Sequence[Document]) -> str:
    """The one cluster that the documents are of. Raises Refused."""
    names = {d.name if d.kind == "BrokerCluster" else str(_reference(d.spec)) for d in documents}
    if len(names) != 1:
        found = ", ".join(sorted(names)) or "none"
        raise Refused([f"the files must be of one cluster; they are of: {found}"])
    return names.pop()


def _reference(spec: Mapping[str, object]) -> object:
    reference = spec.get("clusterRef")
    return reference.get("name") if isinstance(reference, dict) else None


def _belongs(resource: AnyResource, cluster: str) -> bool:
    if isinstance(resource, BrokerCluster):
        return resource.metadata.name == cluster
    if isinstance(resource, ConnectCluster | Connector):
        return False
    return resource.spec.cluster_ref.name == cluster


def _applied(document: Document, old: AnyResource | None) -> AnyResource:
    """The resource as an apply leaves it: annotations that the file does not have are kept."""
    if old is None:
        metadata = {
            **document.metadata,
            "uid": f"planned-{document.key}",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        }
        resource, problems = parse_resource(document.kind, metadata, document.spec)
        assert resource is not None, problems
        return resource
    annotations = {**old.metadata.annotations, **(document.metadata.get("annotations") or {})}
    resource, problems = parse_resource(
        document.kind,
        {**document.metadata, "annotations": annotations},
        document.spec,
    )
    assert resource is not None, problems
    same = resource.spec == old.spec
    kept = old.metadata.model_copy(
        update={"annotations": annotations, "generation": old.metadata.generation + (0 if same else 1)}
    )
    return resource.model_copy(update={"metadata": kept, "status": old.status})
