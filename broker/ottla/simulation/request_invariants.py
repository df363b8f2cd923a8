"""What must hold of the requests that wait in the purgatory of each broker.

Called by `invariants.Monitor`. A request that could have been answered at one look, and still waits at the
next one, was not completed by the change that should have completed it:

- *waiting fetches*: a fetch that waits for a byte has none to read, and no error to return; that holds of all
  partitions of its session, also those that it did not name;
- *waiting produces*: a produce request with acks=all waits for records that are not committed yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

from ottla.replication.manager import ReplicaManager
from ottla.server.dispatch.fetch_sessions import WantedPartition
from ottla.server.dispatch.purgatory import Purgatory, ReplicationWait
from ottla.server.handlers.fetch.handler import _DelayedFetch
from ottla.simulation.cluster import Machine, Violation

_NONE: Final[dict[object, str]] = {}


class RequestInvariants:
    """See the module."""

    def __init__(self) -> None:
        self._answerable: dict[int, dict[object, str]] = {}
        """Of each broker, the requests that could be answered at the last look, and why."""

    def check(self, machine: Machine) -> None:
        """Raises Violation."""
        before = self._answerable.pop(machine.id, _NONE)
        if not machine.is_serving or machine.process is None or not machine.process.runs:
            return
        assert machine.broker is not None
        replication = machine.broker.replication
        now = dict(_find_answerable(replication.purgatory, replication.replicas))
        for request, reason in now.items():
            if request in before:
                raise Violation(f"{reason}, on {machine.host}")
        self._answerable[machine.id] = now


def _find_answerable(purgatory: Purgatory, replicas: ReplicaManager) -> Iterator[tuple[object, str]]:
    for delayed in chain.from_iterable(purgatory._buckets.values()):
        if isinstance(delayed, ReplicationWait):
            replica = None if delayed.done else replicas.find(*delayed.key)
            if replica is not None and replica.is_leader and delayed.offset <= replica.high_watermark:
                enough, error = replica.enough_replicas_for(delayed.offset)
                if enough or error:
                    yield delayed, f"waiting produces: one waits for offset {delayed.offset} of {replica!r}"
        elif isinstance(delayed, _DelayedFetch) and not delayed.done and _waits_for_a_byte(delayed):
            for wanted in _partitions(delayed):
                reason = _reason(delayed, wanted, replicas)
                if reason:
                    yield delayed, f"waiting fetches: one of {delayed._read._replica_id} {reason}"
                    break


def _waits_for_a_byte(fetch: _DelayedFetch) -> bool:
    read = fetch._read
    quota = read._replicas.leader_quota
    return (
        fetch._min_bytes <= 1
        and not fetch._loading_pages
        and not fetch._request.abandoned
        and read._select_replica is None
        and not (read.follower and quota.active)
    )


def _partitions(fetch: _DelayedFetch) -> Iterator[WantedPartition]:
    session = fetch._context.session
    yield from fetch.watched.values() if session is None else session.partitions.values()


def _reason(fetch: _DelayedFetch, wanted: WantedPartition, replicas: ReplicaManager) -> str:
    """Why a fetch could be answered, for one partition; empty if it could not."""
    read, asked = fetch._read, wanted.asked
    replica = None if wanted.topic is None else replicas.find(wanted.topic, asked.partition)
    if replica is None or wanted in read.unknown or replica.log.closed:
        return ""
    if 0 <= asked.current_leader_epoch != replica.leader_epoch:
        return f"has leader epoch {asked.current_leader_epoch} for {replica!r}"
    if not replica.is_leader:
        return ""
    end = replica.log.log_end_offset
    if not read.follower:
        end = replica.last_stable_offset if read._read_committed else replica.high_watermark
    if not replica.log.log_start_offset <= asked.fetch_offset < end:
        return ""
    return f"has offset {asked.fetch_offset} of {replica!r}, which has records until {end}"
