"""kopf's event handlers: each event enqueues the cluster that it belongs to, for the controller.

Called by `ottla operator`. All are `on.event` handlers: they add no finalizer, store no annotation and are
not retried. The store sets the operator's own finalizer. One operator works at a time
(`kubernetes.lease`), so there is no peering.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import kopf

from ottla_operator.kubernetes.naming import (
    CLUSTER_LABEL,
    CONNECT_LABEL,
    MANAGED_BY,
    MANAGER,
    connect_key,
)
from ottla_operator.resources import KINDS, BrokerCluster, ConnectCluster, Connector
from ottla_operator.resources.common import GROUP, VERSION

Enqueue = Callable[[str, str], None]
"""(namespace, cluster)"""

# Objects that the operator creates, and their children: watched by label, which the API server filters. A
# Secret with a password that a user supplies is watched when it has the cluster's label; the resync finds it
# otherwise.
_CHILDREN: Final = (
    ("", "v1", "pods"),
    ("", "v1", "configmaps"),
    ("", "v1", "secrets"),
    ("", "v1", "services"),
    ("", "v1", "serviceaccounts"),
    ("apps", "v1", "statefulsets"),
    ("policy", "v1", "poddisruptionbudgets"),
    ("networking.k8s.io", "v1", "networkpolicies"),
)

WATCHED: Final = (
    *((GROUP, VERSION, model.definition.plural) for model in KINDS.values()),
    *_CHILDREN,
)

# A stalled watch raises no error: every watch is started again after this time.
_WATCH_TIMEOUT_S: Final = 300


def registry_for(enqueue: Enqueue) -> kopf.OperatorRegistry:
    """kopf's registry with a handler for each watched kind."""
    registry = kopf.OperatorRegistry()
    kopf.on.login(id="client", registry=registry, errors=kopf.ErrorsMode.PERMANENT)(kopf.login_via_client)

    async def resource_changed(body: Any, namespace: str | None, **_: Any) -> None:
        cluster = cluster_of(body)
        if namespace and cluster:
            enqueue(namespace, cluster)

    async def child_changed(labels: Any, namespace: str | None, **_: Any) -> None:
        connect = labels.get(CONNECT_LABEL)
        cluster = connect_key(connect) if connect else labels.get(CLUSTER_LABEL)
        if namespace and cluster:
            enqueue(namespace, cluster)

    for model in KINDS.values():
        plural = model.definition.plural
        kopf.on.event(GROUP, VERSION, plural, id=plural, registry=registry)(resource_changed)
    for group, version, plural in _CHILDREN:
        labels = {CLUSTER_LABEL: kopf.PRESENT} if plural == "secrets" else {MANAGED_BY: MANAGER}
        kopf.on.event(group, version, plural, id=plural, labels=labels, registry=registry)(child_changed)
    return registry


def cluster_of(body: Any) -> str:
    """The BrokerCluster that a custom resource is, or refers to, or the key of its ConnectCluster; "" when
    there is none."""
    kind, spec = body.get("kind"), body.get("spec") or {}
    if kind == BrokerCluster.definition.kind:
        return str(body["metadata"]["name"])
    if kind == ConnectCluster.definition.kind:
        return connect_key(body["metadata"]["name"])
    if kind == Connector.definition.kind:
        name = (spec.get("connectRef") or {}).get("name")
        return connect_key(name) if name else ""
    reference = spec.get("clusterRef") or {}
    return str(reference.get("name") or "")


def settings() -> kopf.OperatorSettings:
    """kopf's settings: no Events of its own, one operator, label selectors for child objects."""
    chosen = kopf.OperatorSettings()
    chosen.posting.enabled = False
    chosen.peering.standalone = True
    chosen.watching.server_timeout = _WATCH_TIMEOUT_S
    chosen.watching.client_timeout = _WATCH_TIMEOUT_S + 10
    chosen.watching.connect_timeout = 10
    for group, version, plural in _CHILDREN:
        ours = CLUSTER_LABEL if plural == "secrets" else f"{MANAGED_BY}={MANAGER}"
        chosen.watching.label_selectors[group, version, plural] = ours
    return chosen


async def watch(enqueue: Enqueue, namespaces: Sequence[str], stopping: asyncio.Event) -> None:
    """Run kopf until `stopping` is set. No namespaces: all of them."""
    await kopf.operator(
        registry=registry_for(enqueue),
        settings=settings(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=list(namespaces),
        stop_flag=stopping,
    )
