"""Sets the positions of newly assigned partitions: the committed offsets, or where auto.offset.reset says.

Called by `Consumer` in `poll` and `position`; never waits. Kafka's consumer does this in
`updateFetchPositions`. A partition without a committed offset starts by auto.offset.reset.new.partitions if
it was created after the consumer, or its group, subscribed (KIP-842), else by auto.offset.reset. Invariant:
at most one look-up of a partition's committed offset is in flight.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from ottla.client import errors
from ottla.client.consumer_runtime import ConsumerRuntime
from ottla.client.core.assigned import AssignedPartition, OffsetAndMetadata, Phase
from ottla.client.core.baseline import unknown_to_group
from ottla.client.core.types import TopicPartition
from ottla.client.offset_committer import names_of

log = logging.getLogger(__name__)

_Committed: TypeAlias = Mapping[TopicPartition, OffsetAndMetadata | None]


class PositionInitializer:
    """Looks up the committed offsets of partitions that have no position yet."""

    def __init__(self, runtime: ConsumerRuntime) -> None:
        self._runtime = runtime
        self._config = runtime.config
        self._pending: set[TopicPartition] = set()
        """Partitions whose committed offsets are being looked up."""

    def initialize(self) -> None:
        """Begin to look up a position for each partition that has none."""
        waiting = self._runtime.assigned.in_phase(Phase.COMMITTED)
        if not waiting:
            return
        if self._config.group_id is None or self._config.group_ephemeral:
            self._runtime.positions.reset(waiting)
            self._runtime.wake()
            return
        partitions = [state.tp for state in waiting if state.tp not in self._pending]
        if partitions:
            self._pending.update(partitions)
            self._fetch_committed(partitions, partitions, self._on_committed)

    def _fetch_committed(
        self,
        wanted: Iterable[TopicPartition],
        partitions: list[TopicPartition],
        on_found: Callable[[list[TopicPartition], _Committed], None],
    ) -> None:
        """Fetch the committed offsets of `wanted`, to decide about `partitions`, which wait for a
        position."""

        def done(offsets: _Committed | Exception) -> None:
            if not isinstance(offsets, Exception):
                on_found(partitions, offsets)
                return
            self._pending.difference_update(partitions)
            if not getattr(offsets, "retriable", False):
                self._runtime.problems.append(offsets)

        self._runtime.offsets.fetch(wanted, self._runtime.api_deadline(), done)
        self._runtime.wake()

    def _on_committed(self, partitions: list[TopicPartition], committed: _Committed) -> None:
        without_offset = []
        for tp in partitions:
            offset = committed.get(tp)
            if offset is None:
                without_offset.append(tp)
            elif (state := self._uninitialized(tp)) is not None:
                self._runtime.positions.begin(state, offset)
        self._pending.difference_update(partitions)
        appeared = [tp for tp in without_offset if self._runtime.baseline.appeared(tp)]
        others = [tp for tp in without_offset if tp not in appeared]
        self._reset(appeared, appeared=True)
        if self._config.auto_offset_reset == self._config.auto_offset_reset_new_partitions:
            self._reset(others)
        elif others:
            # The group may have consumed these topics before the partitions were created: compare with its
            # offsets.
            numbers = {tp.topic: self._runtime.cluster.partitions(tp.topic) or 0 for tp in others}
            wanted = [TopicPartition(topic, n) for topic, count in numbers.items() for n in range(count)]
            self._pending.update(others)
            self._fetch_committed(dict.fromkeys([*wanted, *others]), others, self._on_topics_committed)

    def _on_topics_committed(self, partitions: list[TopicPartition], committed: _Committed) -> None:
        """`committed`: the offsets of all partitions of the topics."""
        self._pending.difference_update(partitions)
        numbers: defaultdict[str, list[int]] = defaultdict(list)
        for tp, offset in committed.items():
            if offset is not None:
                numbers[tp.topic].append(tp.partition)
        for tp in partitions:
            self._reset((tp,), appeared=unknown_to_group(tp.partition, numbers[tp.topic]))

    def _uninitialized(self, tp: TopicPartition) -> AssignedPartition | None:
        """The state of a partition that is assigned and still has no position."""
        state = self._runtime.assigned.get(tp)
        return None if state is None or state.phase is not Phase.COMMITTED else state

    def _reset(self, partitions: Iterable[TopicPartition], *, appeared: bool = False) -> None:
        """Reset the positions of partitions without a committed offset."""
        states = [state for tp in partitions if (state := self._uninitialized(tp)) is not None]
        if appeared and states:
            log.info(
                "group %s: %s created since the group subscribed", self._config.group_id, names_of(partitions)
            )
        try:
            self._runtime.positions.reset(states, appeared=appeared)
        except errors.ClientError as problem:
            self._runtime.problems.append(problem)
