"""How far a secured cluster's own ZooKeeper is on its way to mutual TLS, and what is next.

Pure, and level-triggered: called at the start of every pass with what was observed. A new cluster begins with
TLS alone. One that an earlier version made gets there while it runs, as in Kafka's and ZooKeeper's own
procedures; a stage begins when all servers, or all brokers, are on the one before:

1. ADD_TLS: servers get a TLS port beside the plain one, and take both on the ports between them;
2. QUORUM_TLS: servers connect to each other by TLS;
3. brokers are rolled to connect by TLS, then once more to create nodes with ACLs;
4. the nodes that exist get their ACLs;
5. TLS: servers have no plain port any more.

Nothing goes back: a stage is read off the StatefulSet's template and off the brokers' settings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from ottla_operator.kubernetes import naming, observing
from ottla_operator.kubernetes.observing import Listed, Object, annotations_of
from ottla_operator.kubernetes.zookeeper_roll import stale_members
from ottla_operator.resources import BrokerCluster

SET_ACL: Final = "zookeeper.set.acl"


class ServerStage(IntEnum):
    """What ZooKeeper's servers serve."""

    PLAIN = 0
    ADD_TLS = 1
    QUORUM_TLS = 2
    TLS = 3


class BrokerStage(IntEnum):
    """How brokers use ZooKeeper."""

    PLAIN = 0
    TLS = 1
    ACLS = 2


@dataclass(frozen=True, slots=True)
class ZooKeeperSecurity:
    servers: ServerStage = ServerStage.PLAIN
    brokers: BrokerStage = BrokerStage.PLAIN
    sets_acls: bool = False
    """Existing nodes are to get their ACLs now; then the servers go on to TLS."""

    @classmethod
    def of_new(cls, cluster: BrokerCluster) -> ZooKeeperSecurity:
        """Of a cluster that has nothing yet."""
        if not is_secured(cluster):
            return cls()
        return cls(ServerStage.TLS, BrokerStage.ACLS)


def is_secured(cluster: BrokerCluster) -> bool:
    """Whether the operator runs a ZooKeeper with TLS for it."""
    return cluster.spec.is_secured and cluster.spec.zookeeper.connect is None


def stage_of(template: Object) -> ServerStage:
    """Of a pod, or of a StatefulSet's template; pods of earlier versions have no such annotation."""
    name = annotations_of(template).get(naming.ZOOKEEPER_STAGE_ANNOTATION, "")
    return ServerStage[name] if name in ServerStage.__members__ else ServerStage.PLAIN


def plan_security(
    cluster: BrokerCluster, listed: Listed, members: int, brokers: Collection[Mapping[str, str]], secure: str
) -> ZooKeeperSecurity:
    """`brokers`: what each broker's process runs with; `secure`: their zookeeper.connect with TLS."""
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
        # Servers that all start together may begin anywhere; the brokers must reach them.
        stage = ServerStage.TLS if all(by_tls) else ServerStage.QUORUM_TLS
    complete = stateful_set is not None and _are_complete(stateful_set, pods, members, stage)
    if stage == ServerStage.TLS:
        return new
    begun = any(by_tls) or (stage == ServerStage.QUORUM_TLS and complete)
    if not begun:
        further = complete or stage == ServerStage.PLAIN
        return ZooKeeperSecurity(ServerStage(stage + 1) if further else stage)
    brokers_stage = BrokerStage.ACLS if all(by_tls) or any(by_acl) else BrokerStage.TLS
    # Servers lost with their set come back with both ports, whatever they had before.
    stage = max(stage, ServerStage.ADD_TLS)
    if stage < ServerStage.QUORUM_TLS:
        return ZooKeeperSecurity(ServerStage.QUORUM_TLS if complete else stage, brokers_stage)
    return ZooKeeperSecurity(stage, brokers_stage, sets_acls=complete and all(by_tls) and all(by_acl))


def _are_complete(stateful_set: Object, pods: Mapping[int, Object], members: int, stage: ServerStage) -> bool:
    """Whether all servers run with the set's template, and serve."""
    status = stateful_set.get("status") or {}
    return (
        status.get("observedGeneration") == stateful_set["metadata"].get("generation")
        and not stale_members(stateful_set, pods)
        and set(range(members)) <= set(pods)
        and all(observing.is_ready(pod) and stage_of(pod) == stage for pod in pods.values())
    )
