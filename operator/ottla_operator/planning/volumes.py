"""The volumes of brokers with several: their state, and the moves off those that the spec no longer has.

Called by `planning.cluster`. A broker has one log directory on each volume; its name has the volume's id, so
that the directories that a broker describes (DescribeLogDirs) are enough to know its volumes. A broker that
starts without one of its log directories fetches the replicas in it again, and those without another replica
are lost. So a volume is emptied first (AlterReplicaLogDirs), and its broker restarts without it when it holds
nothing.

Brokers of one pool wait for each other: on Kubernetes they share a pod template, with which any of them may
be started once the first restart has begun.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ottla_operator.planning.observed import LogDir, Observed, PartitionKey
from ottla_operator.planning.revision import VOLUMES, PerBroker, Revision
from ottla_operator.planning.steps import MoveReplicas
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.cluster_status import VolumeStatus

_ONLY: Final = (0,)
_NAME: Final = "data"


def log_dir_name(volume: int) -> str:
    """The name of the log directory on a volume."""
    return _NAME if volume == 0 else f"{_NAME}-{volume}"


def volume_of(path: str) -> int | None:
    """The volume of a log directory; None for one of another name."""
    name = path.rstrip("/").rpartition("/")[2]
    if name == _NAME:
        return 0
    number = name.removeprefix(f"{_NAME}-")
    return int(number) if number != name and number.isdigit() else None


def volumes_of(described: Mapping[str, str]) -> tuple[int, ...]:
    """The ids of the volumes of a broker with these settings and traits."""
    text = described.get(VOLUMES, "")
    return tuple(int(each) for each in text.split(",")) if text else _ONLY


def volume_statuses(log_dirs: Iterable[LogDir], volumes: Collection[int]) -> list[VolumeStatus]:
    """The state of each volume of a broker. `volumes`: those that it is to keep."""
    found = []
    for directory in log_dirs:
        volume = volume_of(directory.path)
        if volume is None:
            continue
        total, usable = directory.total, directory.usable
        found.append(
            VolumeStatus(
                id=volume,
                state="Failed" if directory.failed else "Online" if volume in volumes else "Leaving",
                bytes=total,
                used_percent=round(100 * (total - usable) / total) if total and usable is not None else None,
                replicas=len(directory.replicas),
            )
        )
    return sorted(found, key=lambda status: status.id)


@dataclass(frozen=True, slots=True)
class Emptying:
    """The decision of one reconciliation about volumes that are to go."""

    steps: tuple[MoveReplicas, ...] = ()
    waiting: Mapping[int, str] = field(default_factory=dict)
    """What the restarts of brokers without these volumes wait for."""


def plan_emptying(
    cluster: BrokerCluster, observed: Observed, targets: PerBroker[Revision], brokers: Collection[int]
) -> Emptying:
    """Decide over `brokers`, which should be in service."""
    leaving: dict[int, tuple[int, ...]] = {}
    for broker in sorted(brokers):
        if broker in observed.brokers:
            wanted = volumes_of(targets.of(broker).traits)
            has = volumes_of(observed.brokers[broker].settings)
            gone = tuple(volume for volume in has if volume not in wanted)
            if gone:
                leaving[broker] = gone
    if not leaving:
        return Emptying()
    steps: list[MoveReplicas] = []
    reasons: dict[int, str] = {}
    for broker, volumes in leaving.items():
        kept = volumes_of(targets.of(broker).traits)
        limit = cluster.spec.rebalance.concurrent_partitions_per_broker
        moves, reason = _empty(observed, broker, volumes, kept, limit)
        if moves:
            steps.append(MoveReplicas(broker, moves, f"off {_names(volumes)}"))
        if reason:
            reasons[broker] = reason
    waiting = dict(reasons)
    for broker in leaving:
        others = [other for other in reasons if _pool(cluster, other) == _pool(cluster, broker)]
        if others:
            first = others[0]
            waiting.setdefault(broker, f"broker {first}, whose {_names(leaving[first])} must be empty, too")
    return Emptying(tuple(steps), waiting)


def _pool(cluster: BrokerCluster, broker: int) -> str:
    pool = cluster.pool_of(broker)
    return "" if pool is None else pool.name


def _names(volumes: Sequence[int]) -> str:
    return f"volume{'s' if len(volumes) > 1 else ''} {', '.join(map(str, volumes))}"


def _empty(
    observed: Observed, broker: int, leaving: Sequence[int], kept: Collection[int], limit: int
) -> tuple[dict[PartitionKey, str], str]:
    """(the next moves: log directories by partition, what the broker's restart waits for or "")."""
    names = _names(leaving)
    described = observed.kafka.log_dirs.get(broker)
    if described is None or not observed.in_service(broker):
        return {}, f"itself to be in service, so that {names} can be emptied"
    going = [directory for directory in described if volume_of(directory.path) in leaving]
    if any(directory.failed for directory in going):
        offline = [p.name for p in observed.kafka.holding(broker) if p.leader < 0]
        if offline:
            return {}, f"a leader of {offline[0]}: a replica of it may be in the failed log directory"
    staying = [d for d in described if volume_of(d.path) in kept and not d.failed]
    sizes = {key: size for directory in going for key, size in directory.replicas.items()}
    if not sizes:
        return {}, ""
    if not staying:
        return {}, f"another volume: {names} has {len(sizes)} replicas, and no volume stays"
    futures = {key: size for directory in staying for key, size in directory.futures.items()}
    room = _room(staying, sizes)
    moves: dict[PartitionKey, str] = {}
    for key in sorted(sizes, key=lambda key: (-sizes[key], key)):
        if key in futures or len(moves) + len(futures) >= limit:
            continue
        path = max(room, key=lambda path: (room[path], path))
        if room[path] < sizes[key]:
            return {}, f"room for {len(sizes)} replicas of {names} on its other volumes"
        room[path] -= sizes[key]
        moves[key] = path
    return moves, f"{names}: {len(sizes)} replicas to move to its other volumes"


def _room(staying: Iterable[LogDir], sizes: Mapping[PartitionKey, int]) -> dict[str, float]:
    """The free bytes of log directories after the moves in flight; infinite where they are not known."""
    room: dict[str, float] = {}
    for directory in staying:
        coming = sum(max(0, sizes.get(key, 0) - size) for key, size in directory.futures.items())
        room[directory.path] = float("inf") if directory.usable is None else directory.usable - coming
    return room
