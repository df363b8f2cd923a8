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

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from ottla_operator.conditions import find
from ottla_operator.kubernetes import naming, observing
from ottla_operator.kubernetes.observing import Listed, Object, annotations_of
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.common import parse_duration_ms

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
# The rules, in the order in which they apply:
#
# 1. One server at a time: none is replaced while a pod is being deleted.
# 2. While there is a quorum, nothing happens until servers on the newest revision serve. Without a quorum
#    they cannot serve; then their process must run at least: a revision that cannot start stops the roll.
# 3. A server on an older revision that does not serve is replaced: this makes nothing unavailable.
# 4. Then those that serve, while all answer, all followers are in sync with the leader and no broker shuts
#    down; the leader last, so that there is one election only.
#
# The rolling restart of brokers waits for that of the servers (`planning.rolling`).
#
# A change that has no approval and needs one (`is_held`) stays out of the StatefulSet as well: a pod that is
# replaced for another reason comes back as it was.

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


@dataclass(frozen=True, slots=True)
class ServerRole:
    """What a server answers about itself."""

    name: str = ""
    """leader or follower; "" when it does not answer or does not serve."""
    synced_followers: int = 0
    """Of a leader: how many followers are in sync with it."""


@dataclass(frozen=True, slots=True)
class ServerRoll:
    """The decision of one reconciliation."""

    replace: int | None = None
    waiting: Mapping[int, str] = field(default_factory=dict)
    """What each server waits for that still has to be restarted."""
    stalled: str = ""
    """Why the roll has stopped: a restarted server does not come up, or not within the timeout."""
    urgent: frozenset[int] = frozenset()
    """The servers whose restart waits for no maintenance window and for no other cluster, or has begun."""
    restarting: frozenset[int] = frozenset()
    """The servers for which the restarts of brokers wait: those that are coming up, and those that will be
    replaced. None when one has not been ready for longer than the timeout: it may never come up; and none
    that the API server refuses to replace."""


def revision_of(template: Object) -> str:
    """The revision of a server's pod or of a StatefulSet's template."""
    return annotations_of(template).get(naming.HASH_ANNOTATION, "")


def is_held(
    cluster: BrokerCluster,
    stateful_set: Object | None,
    wanted: Object,
    pods: Mapping[int, Object],
    *,
    hold: bool = False,
) -> bool:
    """Whether the template of `wanted` has to wait, so that no pod may have it: for an approval, or (`hold`)
    until restarts may begin and unless a server cannot come up without it."""
    revision = revision_of(wanted["spec"]["template"])
    if stateful_set is None or revision_of(stateful_set["spec"]["template"]) == revision:
        return False
    if hold and pods and not any(_is_failing(pod) for pod in pods.values()):
        return True
    return bool(_unapproved(cluster, revision, pods))


def _is_failing(pod: Object) -> bool:
    return observing.is_failing(pod, observing.container_of(pod, "zookeeper"))


def _unapproved(cluster: BrokerCluster, revision: str, pods: Mapping[int, Object]) -> list[int]:
    if cluster.may_roll_to(revision):
        return []
    return [member for member, pod in sorted(pods.items()) if revision_of(pod) != revision]


def plan_roll(
    cluster: BrokerCluster,
    stateful_set: Object,
    wanted: Object,
    pods: Mapping[int, Object],
    members: int,
    roles: Mapping[int, ServerRole],
    now_ms: int,
    *,
    hold: bool = False,
    stopping: Collection[int] = (),
) -> ServerRoll:
    """Which server to replace now. `wanted`: the manifest of the StatefulSet. `hold`: only urgent restarts
    may begin. `stopping`: the brokers that are shutting down, for which ZooKeeper must serve."""
    present = revision_of(stateful_set["spec"]["template"])
    revision = revision_of(wanted["spec"]["template"])
    allowed = present == revision and cluster.may_roll_to(revision)
    # A pod of the template's own revision has other certificates, or is to be restarted by request.
    going = [
        member
        for member in stale_members(stateful_set, pods)
        if allowed or revision_of(pods[member]) == present
    ]
    urgent = frozenset(member for member in going if _is_urgent(pods[member], stateful_set))
    held = [member for member in going if hold and member not in urgent]
    going = [member for member in going if member not in held]
    replace, reason = _next(going, pods, members, roles, stopping) if going else (None, "")
    outdated = [member for member, pod in sorted(pods.items()) if revision_of(pod) != revision]
    waiting = dict.fromkeys(outdated, "the pod template of its revision")
    unapproved = _unapproved(cluster, revision, pods)
    waiting |= dict.fromkeys(unapproved, "approval of the rollout")
    waiting |= dict.fromkeys(held, "the end of the hold")
    waiting |= dict.fromkeys(going, reason)
    if replace is not None:
        waiting |= dict.fromkeys(going, f"server {replace}, which is being restarted")
    for member in going:
        if member == replace or pods[member]["metadata"].get("deletionTimestamp"):
            waiting[member] = "its restart"
    begun = [pod for pod in pods.values() if revision_of(pod) == revision] if waiting else []
    timeout_ms = parse_duration_ms(cluster.spec.rolling_update.timeout)
    stalled = next(filter(None, (_stalled(pod, now_ms, timeout_ms) for pod in begun)), "")
    due = ({*outdated} - {*unapproved} | {*going}) - {*held}
    restarting = _restarting(cluster, due, pods, members, now_ms)
    return ServerRoll(replace, waiting, stalled, urgent, restarting)


def _restarting(
    cluster: BrokerCluster, due: Collection[int], pods: Mapping[int, Object], members: int, now_ms: int
) -> frozenset[int]:
    """`due`: the servers that will be replaced."""
    unready = [each for each in range(members) if each not in pods or not observing.is_ready(pods[each])]
    timeout_ms = parse_duration_ms(cluster.spec.rolling_update.timeout)
    if any(_is_late(pods[member], now_ms, timeout_ms) for member in unready if member in pods):
        return frozenset()
    ready = find(cluster.status.conditions, "Ready")
    # What the API server refused may be the StatefulSet or the next pod.
    refused = ready is not None and ready.reason in ("ApplyFailed", "PodRefused")
    return frozenset(unready if refused else {*due, *unready})


def _is_urgent(pod: Object, stateful_set: Object) -> bool:
    """Whether the restart of the server waits for no maintenance window: it was requested, has begun, or the
    server cannot come up without it."""
    requested = observing.restarted_at(stateful_set)
    return (
        bool(pod["metadata"].get("deletionTimestamp"))
        or _is_failing(pod)
        or (requested != "" and annotations_of(pod).get(naming.RESTARTED_AT_ANNOTATION, "") != requested)
    )


def _stalled(pod: Object, now_ms: int, timeout_ms: int) -> str:
    """Why the restarted server does not come up; "" while it may still do so."""
    if observing.is_ready(pod) or not (_is_late(pod, now_ms, timeout_ms) or _is_failing(pod)):
        return ""
    return f"{observing.name_of(pod)} does not come up on revision {revision_of(pod)}{why_not_ready(pod)}"


def _is_late(pod: Object, now_ms: int, timeout_ms: int) -> bool:
    return now_ms - observing.created_at(pod) > timeout_ms


def why_not_ready(pod: Object) -> str:
    """`: ` and why the server is not ready; "" when it is, or nothing is known."""
    _, message = observing.pod_state(pod, observing.container_of(pod, "zookeeper"))
    return f": {message}" if message else ""


def _next(
    stale: Sequence[int],
    pods: Mapping[int, Object],
    members: int,
    roles: Mapping[int, ServerRole],
    stopping: Collection[int],
) -> tuple[int | None, str]:
    """(the member to replace, or None; what all wait for)."""
    for member, pod in pods.items():
        if pod["metadata"].get("deletionTimestamp"):
            return None, f"server {member}, which is being restarted"
    unready = [each for each in range(members) if each not in pods or not observing.is_ready(pods[each])]
    has_quorum = members - len(unready) > members // 2
    for member in unready:
        if member not in stale and (has_quorum or not _runs(pods.get(member))):
            why = why_not_ready(pods[member]) if member in pods else ""
            return None, f"server {member}, which is not ready{why}"
    if unready:
        first = next((member for member in unready if member in stale), None)
        return first, f"server {unready[0]}, which is not ready"
    silent = [member for member in range(members) if not roles.get(member, ServerRole()).name]
    if silent:
        return None, f"server {silent[0]} to answer"
    leaders = [member for member, role in roles.items() if role.name == "leader"]
    if len(leaders) != 1:
        return None, "a leader to be elected"
    synced = roles[leaders[0]].synced_followers
    if synced < members - 1:
        return None, f"all followers to be in sync: {synced} of {members - 1} are"
    if stopping:
        return None, f"broker {min(stopping)}, which is stopping"
    return min(stale, key=lambda member: (member == leaders[0], member)), ""


def _runs(pod: Object | None) -> bool:
    """Whether the server's process runs, although it may not serve."""
    return pod is not None and "running" in (observing.container_of(pod, "zookeeper").get("state") or {})
