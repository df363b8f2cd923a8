"""Plans the operator's ZooKeeper: its migration to mutual TLS, and its rolling restart.

Pure and level-triggered: called by the platform in every reconciliation with the observed state.

Mutual TLS is for a secured cluster. A new cluster begins with stage TLS. A cluster of an earlier version is
migrated while it runs, as in the procedures of Kafka and ZooKeeper; a stage begins when all servers, or all
brokers, have completed the one before:

1. ADD_TLS: servers get a TLS port besides the plain one, and accept both on the quorum ports;
2. QUORUM_TLS: servers connect to each other over TLS;
3. a roll lets brokers connect over TLS, a second one lets them create nodes with ACLs;
4. existing nodes get their ACLs;
5. TLS: servers have no plain port.

A stage never goes back: it is read from the StatefulSet's template and from the brokers' settings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from ottla_operator.kubernetes import naming, observing
from ottla_operator.kubernetes.observing import Listed, Object, annotations_of
from ottla_operator.resources import BrokerCluster

SET_ACL: Final = "zookeeper.set.acl"


class ServerStage(IntEnum):
    """The ports and protocols of the servers."""

    PLAIN = 0
    ADD_TLS = 1
    QUORUM_TLS = 2
    TLS = 3


class BrokerStage(IntEnum):
    """How brokers connect to ZooKeeper."""

    PLAIN = 0
    TLS = 1
    ACLS = 2


@dataclass(frozen=True, slots=True)
class ZooKeeperSecurity:
    """The stages to apply now."""

    servers: ServerStage = ServerStage.PLAIN
    brokers: BrokerStage = BrokerStage.PLAIN
    sets_acls: bool = False
    """Existing nodes must get their ACLs now; then the servers proceed to TLS."""

    @classmethod
    def of_new(cls, cluster: BrokerCluster) -> ZooKeeperSecurity:
        """The stages of a new cluster."""
        if not is_secured(cluster):
            return cls()
        return cls(ServerStage.TLS, BrokerStage.ACLS)


def is_secured(cluster: BrokerCluster) -> bool:
    """Whether the operator runs a ZooKeeper with TLS for the cluster."""
    return cluster.spec.is_secured and cluster.spec.zookeeper.connect is None


def stage_of(template: Object) -> ServerStage:
    """The stage of a pod or of a StatefulSet's template; PLAIN without the annotation, as in earlier
    versions."""
    name = annotations_of(template).get(naming.ZOOKEEPER_STAGE_ANNOTATION, "")
    return ServerStage[name] if name in ServerStage.__members__ else ServerStage.PLAIN


def plan_security(
    cluster: BrokerCluster, listed: Listed, members: int, brokers: Collection[Mapping[str, str]], secure: str
) -> ZooKeeperSecurity:
    """`brokers`: the current settings of each broker; `secure`: their zookeeper.connect with TLS."""
    new = ZooKeeperSecurity.of_new(cluster)
    if not is_secured(cluster):
        return new
    stateful_set = listed.find("StatefulSet", naming.zookeeper_name(cluster.metadata.name))
    pods = observing.zookeeper_pods(listed, cluster.metadata.name)
    by_tls = [settings.get("zookeeper.connect") == secure for settings in brokers]
    by_acl = [settings.get(SET_ACL) == "true" for settings in brokers]
    if stateful_set is not None:
        stage = stage_of(stateful_set["spec"]["template"])
    elif pods:
        stage = min(stage_of(pod) for pod in pods.values())
    else:
        # Without servers, any stage is possible that the brokers' settings can connect to.
        stage = ServerStage.TLS if all(by_tls) else ServerStage.QUORUM_TLS
    complete = stateful_set is not None and _are_complete(stateful_set, pods, members, stage)
    if stage == ServerStage.TLS:
        return new
    begun = any(by_tls) or (stage == ServerStage.QUORUM_TLS and complete)
    if not begun:
        further = complete or stage == ServerStage.PLAIN
        return ZooKeeperSecurity(ServerStage(stage + 1) if further else stage)
    brokers_stage = BrokerStage.ACLS if all(by_tls) or any(by_acl) else BrokerStage.TLS
    # Servers that are created again with their StatefulSet have both ports.
    stage = max(stage, ServerStage.ADD_TLS)
    if stage < ServerStage.QUORUM_TLS:
        return ZooKeeperSecurity(ServerStage.QUORUM_TLS if complete else stage, brokers_stage)
    return ZooKeeperSecurity(stage, brokers_stage, sets_acls=complete and all(by_tls) and all(by_acl))


def _are_complete(stateful_set: Object, pods: Mapping[int, Object], members: int, stage: ServerStage) -> bool:
    """Whether all servers have the StatefulSet's template and are ready."""
    status = stateful_set.get("status") or {}
    return (
        status.get("observedGeneration") == stateful_set["metadata"].get("generation")
        and not stale_members(stateful_set, pods)
        and set(range(members)) <= set(pods)
        and all(observing.is_ready(pod) and stage_of(pod) == stage for pod in pods.values())
    )


# ---- rolling restart
#
# One server is replaced at a time, while all others serve; the leader last, so that there is one election
# only. A server that cannot start on its old revision is replaced at once.

_REVISION_LABEL = "controller-revision-hash"


def stale_members(stateful_set: Object, pods: Mapping[int, Object]) -> list[int]:
    """Members with an older revision; none before the StatefulSet controller has observed the newest
    template."""
    status = stateful_set.get("status") or {}
    if status.get("observedGeneration") != stateful_set["metadata"].get("generation"):
        return []
    newest = status.get("updateRevision")
    return [
        member
        for member, pod in sorted(pods.items())
        if (pod["metadata"].get("labels") or {}).get(_REVISION_LABEL) != newest
    ]


def next_to_replace(
    stateful_set: Object, pods: Mapping[int, Object], members: int, leader: int | None
) -> int | None:
    """The member to replace now; None when there is none or another one is not ready."""
    stale = stale_members(stateful_set, pods)
    if not stale or any(pod["metadata"].get("deletionTimestamp") for pod in pods.values()):
        return None
    unready = [
        member for member in range(members) if member not in pods or not observing.is_ready(pods[member])
    ]
    if unready:
        return next((member for member in stale if unready == [member]), None)
    followers = [member for member in stale if member != leader]
    return followers[0] if followers else stale[0]
