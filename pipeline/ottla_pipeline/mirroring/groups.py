"""Synchronizes committed offsets of consumer groups, so that a consumer can continue on the target.

Called by the job, on the driver, in a thread of its own, because groups commit also when no records arrive.
One pass reads the committed offsets of the source's groups, translates them with the offset syncs, and
commits them for the same groups on the target where these are not active. As in MirrorMaker 2, a group's
offset only moves forward: a group that is further on the target stays there.

Invariant: no offset is committed that would skip a record which the group has not read (`translation`),
nor one before the target's first record: a consumer whose offset is out of range might start at the end.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from ottla_pipeline.mirroring.syncs import OffsetSyncReader
from ottla_pipeline.mirroring.target import MirroredTopic
from ottla_pipeline.mirroring.translation import OffsetSyncStore

REQUEST_S: Final = 30.0
EARLIEST: Final = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
CATCH_UP_S: Final = 120.0
Offsets = dict[tuple[str, int], int]
"""By topic and partition."""
NOT_ACTIVE: Final = (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)
BECAME_ACTIVE: Final = (
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.NON_EMPTY_GROUP,
)


def translated(
    source: Mapping[tuple[str, int], int], table: OffsetSyncStore, mirrored: Mapping[str, MirroredTopic]
) -> Offsets:
    """A group's offsets on the target, for the mirrored partitions."""
    result: Offsets = {}
    for (topic, partition), offset in source.items():
        known = mirrored.get(topic)
        if known is None or offset < 0 or table.lineage(topic, partition) != known.lineage:
            continue
        there = table.translate(topic, partition, offset)
        if there is not None:
            result[known.target, partition] = there
    return result


def offsets_to_commit(
    wanted: Mapping[tuple[str, int], int], present: Mapping[tuple[str, int], int], starts: Offsets
) -> Offsets:
    """The offsets to commit: forward only, and not before a partition's first record."""
    result: Offsets = {}
    for where, offset in wanted.items():
        there = max(offset, starts.get(where, 0))
        if there > present.get(where, -1):
            result[where] = there
    return result


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """The groups whose offsets are synchronized."""

    pattern: str = ".*"
    exclude: tuple[str, ...] = ()
    """Names: the mirror's own group on the source among them."""

    def accepts(self, group: str) -> bool:
        return (
            re.fullmatch(self.pattern, group) is not None
            and group not in self.exclude
            and not group.startswith("ottla-mirror-")
        )


class GroupSync:
    """One pass over the groups at a time; each reads the offset syncs to their end first."""

    def __init__(
        self,
        source: Mapping[str, str],
        target: Mapping[str, str],
        syncs: str,
        wanted: GroupFilter,
        mirrored: Callable[[], Mapping[str, MirroredTopic]],
    ) -> None:
        self._source = AdminClient(dict(source))
        self._target = AdminClient(dict(target))
        self._reader = OffsetSyncReader(target, syncs)
        self._filter = wanted
        self._mirrored = mirrored

    def close(self) -> None:
        self._reader.close()

    def run(self) -> dict[str, Offsets]:
        """Runs one pass; returns the committed offsets by group."""
        mirrored = self._mirrored()
        here = {group: committed(self._source, group) for group in self._groups()}
        table = self._reader.catch_up(within_s=CATCH_UP_S)
        wanted = {group: translated(offsets, table, mirrored) for group, offsets in here.items()}
        wanted = {group: offsets for group, offsets in wanted.items() if offsets}
        done: dict[str, Offsets] = {}
        starts = self._starts({where for offsets in wanted.values() for where in offsets})
        for group in not_active(self._target, list(wanted)):
            todo = offsets_to_commit(wanted[group], committed(self._target, group), starts)
            if todo and commit(self._target, group, todo):
                done[group] = todo
        return done

    def _groups(self) -> list[str]:
        listed = self._source.list_consumer_groups(request_timeout=REQUEST_S).result(REQUEST_S)
        return sorted(group.group_id for group in listed.valid if self._filter.accepts(group.group_id))

    def _starts(self, partitions: Iterable[tuple[str, int]]) -> Offsets:
        asked = {TopicPartition(*where): EARLIEST for where in partitions}
        if not asked:
            return {}
        found = self._target.list_offsets(asked, request_timeout=REQUEST_S)
        return {(where.topic, where.partition): int(f.result(REQUEST_S).offset) for where, f in found.items()}


def committed(admin: AdminClient, group: str) -> Offsets:
    """A group's committed offsets; empty if it has none."""
    asked = ConsumerGroupTopicPartitions(group)
    futures = admin.list_consumer_group_offsets([asked], require_stable=True, request_timeout=REQUEST_S)
    found = futures[group].result(REQUEST_S).topic_partitions or []
    return {(w.topic, w.partition): w.offset for w in found if w.error is None and w.offset >= 0}


def not_active(admin: AdminClient, groups: list[str]) -> list[str]:
    """The groups that have no members there, or do not exist."""
    if not groups:
        return []
    result: list[str] = []
    for group, future in admin.describe_consumer_groups(groups, request_timeout=REQUEST_S).items():
        try:
            if future.result(REQUEST_S).state in NOT_ACTIVE:
                result.append(group)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise
            result.append(group)
    return result


def commit(admin: AdminClient, group: str, offsets: Offsets) -> bool:
    """Commits the offsets; False if the group has become active meanwhile."""
    positions = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
    asked = ConsumerGroupTopicPartitions(group, positions)
    try:
        answer: Any = admin.alter_consumer_group_offsets([asked], request_timeout=REQUEST_S)[group].result(
            REQUEST_S
        )
    except KafkaException as error:
        if error.args[0].code() in BECAME_ACTIVE:
            return False
        raise
    errors = [where.error for where in answer.topic_partitions if where.error is not None]
    if any(error.code() not in BECAME_ACTIVE for error in errors):
        raise KafkaException(errors[0])
    return not errors


class GroupSyncThread(threading.Thread):
    """Runs passes at an interval until the query has ended, then a last one.

    An error ends a pass, not the thread: the clusters may be unavailable for a while. It is no daemon
    thread, so a mirror that stops at the end of its data synchronizes the groups before its process ends.
    """

    def __init__(
        self,
        sync: GroupSync,
        active: Callable[[], bool],
        interval_s: float,
        echo: Callable[[str], None],
        on_pass: Callable[[dict[str, Offsets]], None] = lambda _: None,
    ) -> None:
        super().__init__(name="mirror-groups")
        self._sync = sync
        self._active = active
        self._interval_s = interval_s
        self._echo = echo
        self._on_pass = on_pass
        self._pause = threading.Event()

    def run(self) -> None:
        last = False
        while not last:
            last = not self._wait()
            try:
                done = self._sync.run()
            except Exception as error:
                self._echo(f"the group sync failed and will be retried: {error}")
            else:
                self._on_pass(done)
                for group, offsets in done.items():
                    self._echo(f"group {group}: {len(offsets)} offsets synchronized")
        self._sync.close()

    def _wait(self) -> bool:
        """Waits for the next pass (True), or until the query has ended (False)."""
        waited_s = 0.0
        while waited_s < self._interval_s:
            if not self._active():
                return False
            step_s = min(0.5, self._interval_s - waited_s)
            self._pause.wait(step_s)
            waited_s += step_s
        return True
