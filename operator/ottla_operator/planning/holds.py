"""Why restarts that are due may not begin now: no maintenance window is open, or other clusters roll first.

Pure; called by `reconcile`, which asks the gate of the operator (`RollGate`) in between. A restart that has
begun is completed, and a requested one does not wait. Other clusters are waited for only if the operator
itself is the cause of the roll, by new defaults or another image: all its clusters are due at once then.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal

from ottla_operator.conditions import find, iso_time
from ottla_operator.planning.observed import Observed, ZooKeeperState
from ottla_operator.planning.revision import PerBroker, Revision, combined_hash, is_urgent
from ottla_operator.planning.windows import next_start_ms
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.cluster_status import RollCause

HoldReason = Literal["WaitingForWindow", "WaitingForOtherClusters", "PoolPaused"]


@dataclass(frozen=True, slots=True)
class Hold:
    """Why no restart may begin."""

    reason: HoldReason
    message: str
    """What brokers wait for."""
    until_ms: int | None = None
    """When it ends, if that is known."""


POOL_PAUSED: Final = Hold("PoolPaused", "its BrokerPool, which is paused")
"""Of the brokers of a BrokerPool, without an effect on others."""


@dataclass(frozen=True, slots=True)
class Holds:
    """What the brokers' restarts and those of the ZooKeeper servers wait for."""

    brokers: Hold | None = None
    servers: Hold | None = None

    @property
    def until_ms(self) -> int | None:
        """When the first of them ends."""
        ends = [hold.until_ms for hold in (self.brokers, self.servers) if hold is not None]
        return min((end for end in ends if end is not None), default=None)


NO_HOLDS: Final = Holds()


@dataclass(frozen=True, slots=True)
class Due:
    """The rolls that are due and approved, by their causes; None: none is."""

    brokers: RollCause | None = None
    servers: RollCause | None = None
    begun: bool = False
    """Some run the new revision."""
    starting: bool = False
    """Some brokers or servers are not ready, which may be the last ones of a roll."""
    stalled: str = ""
    """Why a roll has stopped."""

    @property
    def is_of_operator(self) -> bool:
        return "Operator" in (self.brokers, self.servers)


def due_rolls(
    cluster: BrokerCluster, observed: Observed, targets: PerBroker[Revision], working: Collection[int]
) -> Due:
    """The rolls that may begin, but for a hold. `working`: the brokers that should be in service."""
    zookeeper = observed.zookeeper
    running = [observed.brokers[broker] for broker in working if broker in observed.brokers]
    outdated = [broker for broker in running if broker.config_hash != targets.of(broker.id).hash]
    waiting = any(not is_urgent(targets.of(b.id), b.config_hash, b.settings) for b in outdated)
    allowed = waiting and cluster.may_roll_to(combined_hash(targets))
    brokers = broker_cause(cluster, observed, targets) if allowed else None
    servers = (
        server_cause(cluster, zookeeper)
        if zookeeper.outdated and cluster.may_roll_to(zookeeper.revision)
        else None
    )
    rolling = find(cluster.status.conditions, "Rolling")
    begun = (brokers is not None and len(outdated) < len(running)) or (
        servers is not None and len(zookeeper.outdated) < len(zookeeper.servers)
    )
    starting = not all(map(observed.in_service, working)) or not all(s.ready for s in zookeeper.servers)
    stalled = rolling.message if rolling is not None and rolling.reason == "Stalled" else ""
    return Due(brokers, servers, begun, starting, stalled)


def broker_cause(cluster: BrokerCluster, observed: Observed, targets: PerBroker[Revision]) -> RollCause:
    """What the revision of the brokers was changed by."""
    before = cluster.status.rollout
    if before is None:
        # After an upgrade of the operator, none has the new revision yet.
        known = any(b.config_hash == targets.of(b.id).hash for b in observed.brokers.values())
        return "Spec" if known else _cause(cluster)
    # The second roll of an upgrade continues the first one.
    continues = cluster.status.upgrade is not None and cluster.status.upgrade.phase == "Binaries"
    return before.cause if before.target_hash == combined_hash(targets) or continues else _cause(cluster)


def server_cause(cluster: BrokerCluster, zookeeper: ZooKeeperState) -> RollCause:
    """What the revision of the ZooKeeper servers was changed by."""
    before = cluster.status.zookeeper
    same = before is not None and before.target_hash == zookeeper.revision
    return before.cause if before is not None and same else _cause(cluster)


def _cause(cluster: BrokerCluster) -> RollCause:
    """The cause of a revision that is new in this reconciliation."""
    changed = cluster.status.observed_generation != cluster.metadata.generation
    return "Spec" if changed or any(pool.is_changed for pool in cluster.pools) else "Operator"


def window_hold(cluster: BrokerCluster, now_ms: int) -> Hold | None:
    """None while a maintenance window is open, and without windows."""
    start_ms = next_start_ms(cluster.spec.rolling_update.windows, now_ms)
    if start_ms is None:
        return None
    message = f"the maintenance window that begins at {iso_time(start_ms)}"
    return Hold("WaitingForWindow", message, start_ms)


def holds_of(due: Due, window: Hold | None, others: Hold | None) -> Holds:
    """`others`: the answer of the gate, which is for rolls that the operator causes only."""

    def hold(cause: RollCause | None) -> Hold | None:
        return None if cause is None else window or (others if cause == "Operator" else None)

    return Holds(hold(due.brokers), hold(due.servers))
