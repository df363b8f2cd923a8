"""Rolls of many clusters after an upgrade of the operator: only so many at the same time.

Owned by the controller; each worker has the `RollGate` of its cluster. A cluster that is let in stays until
its roll is complete and all of it is ready, so that a roll that has stopped keeps the others from the same
fate. Clusters that have begun come first, which are those of the operator's predecessor, then by namespace
and name. None is let in before all clusters were observed once: the order does not depend on who comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ottla_operator.planning.holds import Due, Hold

Key = tuple[str, str]
"""Namespace and name of a BrokerCluster."""

_NAMED_MAX: Final = 3


class RollQueue:
    """The clusters whose rolls the operator causes. `wake`: reconciles a cluster that has waited."""

    def __init__(self, clusters_max: int, wake: Callable[[Key], None]) -> None:
        """`clusters_max`: how many may roll at the same time; 0: any number."""
        self._max = clusters_max
        self._wake = wake
        self._expected: set[Key] | None = None
        """Those that must be observed first; None while they are unknown."""
        self._observed: set[Key] = set()
        self._due: dict[Key, Due] = {}
        self._going: set[Key] = set()

    def gate_of(self, key: Key) -> ClusterGate:
        return ClusterGate(self, key)

    def expect(self, keys: Iterable[Key]) -> None:
        """Let none in before these clusters are observed."""
        self._expected = {*keys}
        self._wake_waiting()

    @property
    def is_open(self) -> bool:
        """Whether it is known which clusters there are."""
        return self._expected is not None

    def observed(self, key: Key) -> None:
        """A reconciliation of the cluster has ended, or failed."""
        if key not in self._observed:
            self._observed.add(key)
            self._wake_waiting()

    def forget(self, key: Key) -> None:
        """The cluster is gone."""
        self._observed.add(key)
        self.ask(key, None)
        self._wake_waiting()

    def ask(self, key: Key, due: Due | None) -> Hold | None:
        """See `RollGate.ask`."""
        # The last broker of a roll is not outdated any more, and may not start.
        stays = due is not None and (due.is_of_operator or (due.starting and key in self._going))
        if due is None or not stays or self._max == 0:
            self._due.pop(key, None)
            if key in self._going:
                self._going.remove(key)
                self._wake_waiting()
            return None
        self._due[key] = due
        if key in self._going:
            return None
        unseen = [] if self._expected is None else sorted(self._expected - self._observed - {key})
        if self._expected is None or unseen:
            names = _names(unseen) if unseen else "all clusters"
            return Hold("WaitingForOtherClusters", f"{names} to be observed")
        before = sorted(self._going) + [k for k in self._waiting() if self._order(k) < self._order(key)]
        if len(before) < self._max:
            self._going.add(key)
            return None
        return Hold("WaitingForOtherClusters", self._described(before))

    def _waiting(self) -> list[Key]:
        return sorted((key for key in self._due if key not in self._going), key=self._order)

    def _order(self, key: Key) -> tuple[bool, Key]:
        return not self._due[key].begun, key

    def _described(self, before: list[Key]) -> str:
        """`cluster shop/orders, which rolls first`"""
        one = len(before) == 1
        stopped = [
            f"; {'/'.join(k)} has stopped: {self._due[k].stalled}" for k in before if self._due[k].stalled
        ]
        return f"{_names(before)}, which {'rolls' if one else 'roll'} first{''.join(stopped[:1])}"

    def _wake_waiting(self) -> None:
        for key in self._waiting():
            self._wake(key)


class ClusterGate:
    """The gate of one cluster."""

    def __init__(self, queue: RollQueue, key: Key) -> None:
        self._queue = queue
        self._key = key

    def ask(self, due: Due | None) -> Hold | None:
        return self._queue.ask(self._key, due)


def _names(keys: list[Key]) -> str:
    names = ["/".join(key) for key in keys]
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return f"cluster{'s' if len(names) > 1 else ''} {', '.join(names[:_NAMED_MAX])}{more}"
