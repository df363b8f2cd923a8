"""The view model of the overview. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nlargest
from typing import Final

from ottla_console.cluster.brokers import Broker, brokers_of
from ottla_console.cluster.collecting import merged
from ottla_console.cluster.problems import Problem
from ottla_console.cluster.rates import History
from ottla_console.cluster.resources import State
from ottla_console.cluster.snapshot import Part, PartitionState, Snapshot
from ottla_console.views import formats

TOP: Final = 5
LISTED: Final = 8


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the cluster in a sentence."""

    level: str
    """`ok`, `warn`, `alarm`, or `unknown`."""
    title: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Top:
    """A topic or a group that stands out."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Overview:
    """What the page shows."""

    cluster_id: str
    state: Health
    brokers: tuple[Broker, ...]
    topics: int | None
    partitions: int
    groups: int | None
    offline: tuple[PartitionState, ...]
    """The first of them."""
    offline_count: int
    not_in_sync: tuple[PartitionState, ...]
    not_in_sync_count: int
    used_bytes: int | None
    history: History
    busiest: tuple[Top, ...]
    """Topics by records per second."""
    laggards: tuple[Top, ...]
    """Groups by lag."""
    problems: tuple[Problem, ...]
    resources: State | None
    """None: not known."""
    now_ms: int


def overview_of(snapshot: Snapshot, resources: Part[State] | None = None, now_ms: int = 0) -> Overview:
    brokers = brokers_of(snapshot)
    last = snapshot.history.last
    lags = {group: lag.records for group, lag in snapshot.group_lags.items() if lag.records > 0}
    used = [each.used_bytes for each in brokers if each.used_bytes is not None]
    return Overview(
        (snapshot.cluster.value.cluster_id or "") if snapshot.cluster.value else "",
        state_of(snapshot, brokers, resources.value if resources else None),
        brokers,
        len(snapshot.known_topics) if snapshot.topics.value is not None else None,
        snapshot.partition_count,
        len(snapshot.known_groups) if snapshot.groups.value is not None else None,
        snapshot.offline[:LISTED],
        len(snapshot.offline),
        snapshot.not_in_sync[:LISTED],
        len(snapshot.not_in_sync),
        sum(used) if used else None,
        snapshot.history,
        _top(_of_users(snapshot, last.topic_records) if last else {}),
        _top(lags),
        merged(snapshot.problems, resources.problems if resources else ()),
        resources.value if resources else None,
        now_ms,
    )


def state_of(snapshot: Snapshot, brokers: tuple[Broker, ...], resources: State | None = None) -> Health:
    """What is wrong, the worst first; what the operator says, if the brokers find nothing wrong."""
    if snapshot.cluster.value is None:
        if snapshot.cluster.problems:
            return Health("alarm", "No broker responds", snapshot.cluster.problems[0].reason)
        return Health("unknown", "Asking the brokers", "The first answers arrive in a moment.")
    if snapshot.cluster.problems:
        return Health("alarm", "No broker responds any more", "The page shows what was known before.")
    if snapshot.offline:
        count = formats.count(len(snapshot.offline), "partition")
        return Health("alarm", f"{count} offline", "Without a leader they take and give no records.")
    gone = [row.id for row in brokers if not row.online]
    if snapshot.cluster.value.controller_id < 0:
        return Health(
            "alarm", "No controller", "Leaders cannot be elected until the brokers have elected one."
        )
    if gone:
        which = formats.broker_ids(tuple(gone))
        which = f"Broker {which} is" if len(gone) == 1 else f"Brokers {which} are"
        return Health("warn", f"{which} away", _behind(snapshot))
    if snapshot.not_in_sync:
        return Health("warn", _behind(snapshot), "Some replicas are behind their leaders.")
    ready = resources.ready if resources else None
    if ready is not None and ready.status != "True":
        return Health("warn", f"Not ready: {ready.reason}", ready.message)
    full = [row.id for row in brokers if row.disk_share is not None and row.disk_share >= 0.9]
    if full:
        which = f"disk of broker {full[0]} is"
        if len(full) > 1:
            which = f"disks of brokers {formats.broker_ids(tuple(full))} are"
        return Health("warn", f"The {which} over 90 % full")
    if snapshot.topics.value is None:
        return Health("unknown", "The topics are not known", "")
    return Health("ok", "All partitions are in sync", "")


def _behind(snapshot: Snapshot) -> str:
    return f"{formats.count(len(snapshot.not_in_sync), 'partition')} not in sync"


def _of_users(snapshot: Snapshot, rates: Mapping[str, float]) -> dict[str, float]:
    """Without internal topics."""
    topics = snapshot.known_topics
    return {name: value for name, value in rates.items() if name in topics and not topics[name].internal}


def _top(values: Mapping[str, float]) -> tuple[Top, ...]:
    return tuple(Top(*pair) for pair in nlargest(TOP, values.items(), key=lambda pair: (pair[1], pair[0])))
