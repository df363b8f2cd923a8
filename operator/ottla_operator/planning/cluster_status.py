"""A BrokerCluster's status: counts, brokers and what they wait for, progress, conditions.

Called by `planning.cluster` with its decisions; makes none itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ottla_operator.conditions import Finding, iso_time, no, unknown, yes
from ottla_operator.planning.fencing import Fencing
from ottla_operator.planning.holds import NO_HOLDS, Holds, broker_cause, server_cause
from ottla_operator.planning.observed import Observed, ZooKeeperState
from ottla_operator.planning.reassign_requests import ReassignRequest
from ottla_operator.planning.rebalance_run import LOAD_REBALANCE
from ottla_operator.planning.replacement import Replacement
from ottla_operator.planning.revision import (
    PerBroker,
    Revision,
    Upgrade,
    combined_hash,
    restart_reasons,
    version_of,
)
from ottla_operator.planning.rolling import Roll
from ottla_operator.planning.scaling import SCALE_UP, Members, Scaling
from ottla_operator.planning.steps import ClusterStep
from ottla_operator.planning.volumes import volume_statuses, volumes_of
from ottla_operator.resources import BrokerCluster, BrokerClusterStatus
from ottla_operator.resources.cluster_status import (
    BrokerStatus,
    ReassignmentStatus,
    RolloutStatus,
    VolumeStatus,
    ZooKeeperServerStatus,
    ZooKeeperStatus,
)
from ottla_operator.resources.pool import FIRST_ID


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions of one reconciliation about the brokers."""

    members: Members
    targets: PerBroker[Revision]
    roll: Roll
    scaling: Scaling
    replacement: Replacement
    fencing: Fencing
    settings: Sequence[ClusterStep]
    """The changes of dynamic settings."""
    upgrade: Upgrade
    request: ReassignRequest | None = None
    """The reassignment that the annotation requests."""
    holds: Holds = NO_HOLDS


def hibernation_status(
    cluster: BrokerCluster, observed: Observed, restarts: Sequence[str]
) -> BrokerClusterStatus:
    """The status of a cluster that hibernates: it keeps what was known, besides counts and states."""
    versions = {broker.id: broker.version for broker in cluster.status.brokers}
    zookeeper = cluster.status.zookeeper
    if zookeeper is not None and not observed.zookeeper.running:
        stopped = {"ready": False, "role": "", "waiting_for": ""}
        servers = [server.model_copy(update=stopped) for server in zookeeper.servers]
        zookeeper = zookeeper.model_copy(update={"servers": servers})
    changes = {
        "zookeeper": zookeeper,
        "replicas": _own_brokers(observed),
        "ready_replicas": sum(observed.in_service(broker) for broker in observed.brokers),
        "controller_id": observed.kafka.controller_id,
        "brokers": [
            BrokerStatus(
                id=broker,
                pod_name=instance.name,
                ready=observed.in_service(broker),
                state=instance.state,
                config_hash=instance.config_hash,
                version=versions.get(broker, ""),
                pool=instance.pool,
            )
            for broker, instance in sorted(observed.brokers.items())
        ],
        "handled_restarts": list(restarts),
    }
    return cluster.status.model_copy(update=changes)


def _own_brokers(observed: Observed) -> int:
    """The number of existing brokers of the cluster's own pool."""
    return sum(broker < FIRST_ID for broker in observed.brokers)


def _under_min_isr(observed: Observed) -> int:
    return sum(
        len(partition.isr) < min(topic.min_isr, len(partition.target_replicas))
        for topic, partition in observed.kafka.with_topic()
    )


def status_of(cluster: BrokerCluster, observed: Observed, decided: Decisions) -> BrokerClusterStatus:
    """The new status, without conditions."""
    members, roll, scaling = decided.members, decided.roll, decided.scaling
    target_hash = combined_hash(decided.targets)
    kafka, before = observed.kafka, cluster.status
    now = iso_time(observed.now_ms)
    ready = [broker for broker in members.desired if observed.in_service(broker)]
    rollout = None
    if not roll.done:
        old = before.rollout if before.rollout and before.rollout.target_hash == target_hash else None
        rollout = RolloutStatus(
            id=old.id if old else f"roll-{target_hash}-{observed.now_ms // 1000}",
            target_hash=target_hash,
            updated=roll.updated,
            total=roll.total,
            started_at=old.started_at if old else now,
            cause=broker_cause(cluster, observed, decided.targets),
        )
    reassignment = None
    if scaling.reason and scaling.remaining:
        running = before.reassignment
        old_move = running if running and running.reason == scaling.reason else None
        total = max(old_move.total if old_move else 0, scaling.remaining)
        reassignment = ReassignmentStatus(
            id=old_move.id if old_move else f"{scaling.reason.lower()}-{observed.now_ms // 1000}",
            reason=scaling.reason,
            moved=total - scaling.remaining,
            total=total,
            started_at=old_move.started_at if old_move else now,
        )
    elif (
        before.reassignment is not None
        and (before.reassignment.reason == SCALE_UP or _is_asked(decided.request, before.reassignment))
        and (not kafka.has_controller or not roll.rests or len(ready) < len(members.desired))
    ):
        # It cannot continue now. Without its status it would not be resumed later.
        reassignment = before.reassignment
    return BrokerClusterStatus(
        replicas=_own_brokers(observed),
        desired_brokers=len(members.desired),
        ready_replicas=len(ready),
        selector=f"ottla.dev/cluster={cluster.metadata.name},ottla.dev/component=broker,!ottla.dev/pool",
        cluster_id=kafka.cluster_id or before.cluster_id,
        controller_id=kafka.controller_id,
        version=decided.upgrade.running or before.version,
        upgrade=decided.upgrade.status,
        bootstrap_servers=before.bootstrap_servers,
        under_replicated_partitions=sum(partition.under_replicated for partition in kafka.partitions()),
        under_min_isr_partitions=_under_min_isr(observed),
        offline_partitions=sum(partition.leader < 0 for partition in kafka.partitions()),
        brokers=_broker_statuses(cluster, observed, decided),
        zookeeper=_zookeeper_status(cluster, observed.zookeeper),
        rollout=rollout,
        reassignment=reassignment,
    )


def _is_asked(request: ReassignRequest | None, moving: ReassignmentStatus) -> bool:
    return request is not None and not request.problem and request.reason == moving.reason


def _zookeeper_status(cluster: BrokerCluster, zookeeper: ZooKeeperState) -> ZooKeeperStatus | None:
    if not zookeeper.servers:
        return None
    return ZooKeeperStatus(
        target_hash=zookeeper.revision,
        updated=len(zookeeper.servers) - len(zookeeper.outdated),
        total=len(zookeeper.servers),
        cause=server_cause(cluster, zookeeper),
        servers=[
            ZooKeeperServerStatus(
                id=server.id,
                pod_name=server.name,
                ready=server.ready,
                role=server.role,
                config_hash=server.revision,
                waiting_for=server.waiting_for,
            )
            for server in zookeeper.servers
        ],
    )


def _broker_statuses(cluster: BrokerCluster, observed: Observed, decided: Decisions) -> list[BrokerStatus]:
    members, targets = decided.members, decided.targets
    statuses = []
    for broker in (*members.desired, *members.surplus):
        instance = observed.brokers.get(broker)
        if instance is None:
            pool = cluster.pool_of(broker)
            statuses.append(
                BrokerStatus(id=broker, state="Missing", pool=pool.name if pool is not None else "")
            )
            continue
        state: str = instance.state
        if broker in members.surplus and state == "Running":
            state = "Draining"
        elif broker in members.fenced and (instance.fenced or state in ("Stopped", "Crashed")):
            state = "Fenced"
        elif state == "Running" and not observed.in_service(broker):
            state = "NotReady"
        reasons = (
            restart_reasons(targets.of(broker), instance.config_hash, instance.settings)
            if broker in members.desired and instance.config_hash
            else []
        )
        sources = (
            decided.fencing.waiting,
            decided.replacement.waiting,
            decided.roll.waiting,
            decided.scaling.waiting,
        )
        waiting = next(
            (reasons_by[broker] for reasons_by in sources if reasons_by.get(broker)), instance.message
        )
        statuses.append(
            BrokerStatus(
                id=broker,
                pod_name=instance.name,
                ready=observed.in_service(broker),
                state=state,
                config_hash=instance.config_hash,
                version=version_of(instance),
                pool=instance.pool,
                restart_reasons=reasons,
                waiting_for=waiting,
                volumes=_volumes(observed, targets, broker),
            )
        )
    return statuses


def _volumes(observed: Observed, targets: PerBroker[Revision], broker: int) -> list[VolumeStatus]:
    wanted = volumes_of(targets.of(broker).traits)
    return volume_statuses(observed.kafka.log_dirs.get(broker, ()), wanted)


def findings_of(cluster: BrokerCluster, observed: Observed, decided: Decisions) -> list[Finding]:
    """The conditions, Ready first."""
    roll, scaling, settings = decided.roll, decided.scaling, decided.settings
    target_hash = combined_hash(decided.targets)
    kafka = observed.kafka
    offline = [partition.name for partition in kafka.partitions() if partition.leader < 0]
    lagging = [partition.name for partition in kafka.partitions() if partition.under_replicated]
    ready = _ready(cluster, observed, decided, offline)
    if settings and ready.status == "True":
        ready = no("Ready", "Configuring", "; ".join(map(str, settings)))
    findings = [ready]
    if not kafka.has_controller:
        reason = "NoController" if kafka.reachable else "Unreachable"
        findings.append(no("Available", reason, kafka.problem))
        findings.append(unknown("FullyReplicated", reason))
    else:
        findings.append(
            no("Available", "PartitionsOffline", f"{_count_of(offline)} without a leader")
            if offline
            else yes("Available", "AllPartitionsOnline")
        )
        findings.append(
            no("FullyReplicated", "UnderReplicated", f"{_count_of(lagging)} under-replicated")
            if lagging
            else yes("FullyReplicated", "AllInSync")
        )
    stale = roll.total - roll.updated
    outdated = f"{stale} of {roll.total} brokers are not on revision {target_hash}"
    outdated += "" if roll.hold is None else f", and wait for {roll.hold.message}"
    findings.append(
        no("ConfigApplied", "Outdated", outdated)
        if stale
        else no("ConfigApplied", "Outdated", _servers_progress(observed.zookeeper))
        if observed.zookeeper.outdated
        else no("ConfigApplied", "Applying", "; ".join(map(str, settings)))
        if settings
        else yes("ConfigApplied", "UpToDate", f"revision {target_hash}")
    )
    if roll.stalled or observed.zookeeper.stalled:
        findings.append(no("Rolling", "Stalled", roll.stalled or observed.zookeeper.stalled))
    elif not roll.rests:
        findings.append(yes("Rolling", "Rolling", _roll_progress(roll, decided.upgrade)))
    elif observed.zookeeper.outdated and decided.holds.servers is None:
        findings.append(yes("Rolling", "Rolling", _servers_progress(observed.zookeeper)))
    elif roll.hold is not None:
        findings.append(no("Rolling", roll.hold.reason, _roll_progress(roll, decided.upgrade)))
    elif observed.zookeeper.outdated and decided.holds.servers is not None:
        reason = decided.holds.servers.reason
        findings.append(no("Rolling", reason, _servers_progress(observed.zookeeper)))
    else:
        findings.append(no("Rolling", "NotRolling"))
    if scaling.blocked:
        findings.append(no("Scaling", f"{scaling.reason or 'Rebalance'}Blocked", scaling.blocked))
    elif scaling.reason:
        findings.append(yes("Scaling", scaling.reason, scaling.message))
    else:
        findings.append(no("Scaling", "NotScaling"))
    return findings


def _count_of(names: list[str]) -> str:
    shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    return f"1 partition ({shown}) is" if len(names) == 1 else f"{len(names)} partitions ({shown}) are"


def _servers_progress(zookeeper: ZooKeeperState) -> str:
    total, outdated = len(zookeeper.servers), zookeeper.outdated
    first = outdated[0]
    progress = f"{total - len(outdated)} of {total} ZooKeeper servers are updated"
    return f"{progress}; server {first.id} waits for {first.waiting_for}"


def _roll_progress(roll: Roll, upgrade: Upgrade) -> str:
    progress = f"{roll.updated} of {roll.total} brokers are updated"
    if upgrade.status is not None:
        raised = upgrade.status
        part = "binaries" if raised.phase == "Binaries" else "inter.broker.protocol.version"
        progress = f"upgrade from {raised.from_version} to {raised.to_version}, {part}: {progress}"
    if roll.bounce:
        return f"{progress}; bouncing broker {', '.join(map(str, roll.bounce))}"
    broker, reason = next(iter(sorted(roll.waiting.items())))
    return f"{progress}; broker {broker} waits for {reason}"


def _ready(cluster: BrokerCluster, observed: Observed, decided: Decisions, offline: list[str]) -> Finding:
    roll, scaling, replacement = decided.roll, decided.scaling, decided.replacement
    not_ready = [broker for broker in decided.members.working if not observed.in_service(broker)]
    if not decided.members.desired:
        return no("Ready", "NoBrokers", "spec.replicas is 0, and no BrokerPool of the cluster has brokers")
    if not observed.zookeeper.running:
        return no("Ready", "ZooKeeperNotReady", observed.zookeeper.message or "ZooKeeper is starting")
    if replacement.blocked:
        return no("Ready", "VolumeLost", replacement.blocked)
    if roll.stalled or observed.zookeeper.stalled:
        return no("Ready", "RollStalled", roll.stalled or observed.zookeeper.stalled)
    if replacement.message:
        return no("Ready", "ReplacingBroker", replacement.message)
    if not roll.rests:
        return no("Ready", "Rolling", _roll_progress(roll, decided.upgrade))
    if not_ready:
        ready = len(decided.members.working) - len(not_ready)
        message = f"{ready} of {len(decided.members.desired)} brokers are ready"
        reasons = [
            f"broker {broker}: {observed.brokers[broker].message}"
            for broker in not_ready
            if broker in observed.brokers and observed.brokers[broker].message
        ]
        return no("Ready", "BrokersNotReady", "; ".join([message, *reasons]))
    if not observed.kafka.has_controller:
        return no(
            "Ready", "NoController" if observed.kafka.reachable else "Unreachable", observed.kafka.problem
        )
    if scaling.blocked:
        return no("Ready", f"{scaling.reason or 'Rebalance'}Blocked", scaling.blocked)
    if scaling.reason and scaling.reason != LOAD_REBALANCE:
        return no("Ready", scaling.reason, scaling.message)
    if offline:
        return no("Ready", "PartitionsOffline", f"{_count_of(offline)} without a leader")
    if decided.members.fenced:
        fenced = ", ".join(str(broker) for broker in sorted(decided.members.fenced))
        return no("Ready", "BrokersFenced", f"broker {fenced} is fenced by an annotation")
    if decided.upgrade.refused:
        return no("Ready", "DowngradeRefused", decided.upgrade.refused)
    return yes("Ready", "AllBrokersReady", f"{len(decided.members.desired)} brokers are ready")
