"""What the members of one consumer group and an observer have seen, and what must hold of it.

The workload `groups` reports to it; each method raises `Violation`. Checked:

- *disjoint assignments*: in one generation each partition is assigned to at most one member, and a member
  that enters a generation has revoked what that generation gives to others before they get it (KIP-429).
- *nothing skipped*: a member reads each partition without gaps, begins at or before the first record that no
  member has processed, and commits none of these.
- *committed offsets survive*: a member that gets a partition begins at or after the highest offset whose
  commit was acknowledged before, whatever happened to the coordinator.
- *committed offsets advance*: an observer never sees them behind an acknowledged commit, nor before a record
  that was not processed; as long as there is the same coordinator, it does not see them go back. (A new one
  has commits in its log that are not replicated yet, or that the former one refused after a time-out: as
  Kafka's, it returns them, and they may be lost, or replaced by lower ones.)
- *fencing*: no commit is accepted from a generation that others have left, or from a static member whose
  place another one has taken (KIP-345).

A coordinator that does not know yet that it is none any more returns the offsets that it has, as Kafka's
does: what was read while there was one (`is_stale`) may be old. A member that begins there commits from there
on, and so the offsets go back (`rewinds`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from ottla.client.core.types import GroupMetadata
from ottla.simulation.cluster import Violation


@dataclass
class MemberHistory:
    """What one consumer object has seen since it was started."""

    name: str
    metadata: GroupMetadata = field(default_factory=partial(GroupMetadata, ""))
    """Its membership when it last got an assignment."""
    positions: dict[int, int | None] = field(default_factory=dict)
    """The next offset of each partition that it owns; None before its first record."""
    floors: dict[int, int] = field(default_factory=dict)
    """The acknowledged offsets when it got the partitions."""
    is_stale: bool = False
    """There was an old coordinator when it got its last partitions."""
    revoked: dict[int, int] = field(default_factory=dict)
    """Partitions that it revoked since its last assignment, and the number of the event."""
    rebalances: int = 0

    @property
    def known_positions(self) -> dict[int, int]:
        return {partition: at for partition, at in self.positions.items() if at is not None}

    @property
    def identity(self) -> str:
        """A static member keeps its assignment when it restarts with another member id."""
        return self.metadata.group_instance_id or self.metadata.member_id


class Coordinator(NamedTuple):
    """The leader of a partition of committed offsets."""

    broker: int
    leader_epoch: int
    starts: int
    """How often the broker has been started."""

    def came_back(self, now: Coordinator) -> bool:
        """Whether it was another broker in between."""
        same = (self.broker, self.starts) == (now.broker, now.starts)
        return same and now.leader_epoch >= self.leader_epoch + 2


class Commit(NamedTuple):
    """A commit that a member is about to send, and what was known at that time."""

    member_id: str
    generation: int
    newest_generation: int
    is_fenced: bool
    acknowledged: dict[int, int]


class GroupHistory:
    """See the module."""

    def __init__(self, group: str, topic: str, coordinators: Callable[[], tuple[Coordinator, ...]]) -> None:
        """`coordinators` are those of all groups, now."""
        self.group = group
        self.topic = topic
        self._coordinators = coordinators
        self.generation = -1
        """The newest generation in which a member has its assignment."""
        self.processed: dict[int, int] = {}
        """The first offset of each partition that no member has processed."""
        self.acknowledged: dict[int, int] = {}
        """The highest offset of each partition whose commit was acknowledged."""
        self.fenced: set[str] = set()
        """Member ids of static members whose places others have taken."""
        self.commits = self.refused = self.rewinds = 0
        self._owners: dict[tuple[int, int], tuple[str, str, int]] = {}
        """(generation, partition) -> identity and name of the member, and the number of the event."""
        self._observed: dict[int, int] = {}
        self._observed_at: object = None
        self._values: dict[tuple[int, int], bytes] = {}
        self._events = 0
        self._requested: dict[tuple[int, int], set[tuple[Coordinator, ...]]] = {}
        """(partition, offset) -> the coordinators when a commit was requested."""

    def _fail(self, invariant: str, text: str) -> Violation:
        return Violation(f"{invariant}: group {self.group}: {text}")

    # --- assignments ---

    def assigned(
        self,
        member: MemberHistory,
        metadata: GroupMetadata,
        owned: Collection[int],
        added: Iterable[int],
        predecessors: Iterable[str] = (),
        *,
        is_stale: bool,
    ) -> None:
        """A member has got its assignment. `predecessors`: member ids whose place it has taken."""
        self._events += 1
        generation = metadata.generation_id
        if generation < member.metadata.generation_id:
            raise self._fail(
                "generations advance", f"{member.name} went from {member.metadata} back to {metadata}"
            )
        member.metadata = metadata
        member.rebalances += 1
        self.generation = max(self.generation, generation)
        self.fenced.update(each for each in predecessors if each != metadata.member_id)
        for partition in owned:
            identity, name, _ = self._owners.setdefault(
                (generation, partition), (member.identity, member.name, self._events)
            )
            if identity != member.identity:
                raise self._fail(
                    "disjoint assignments",
                    f"generation {generation} gives partition {partition} to {name} ({identity}) and to "
                    f"{member.name} ({member.identity})",
                )
        for partition, revoked_at in member.revoked.items():
            owner = self._owners.get((generation, partition))
            if owner is not None and owner[0] != member.identity and owner[2] < revoked_at:
                raise self._fail(
                    "disjoint assignments",
                    f"{member.name} revoked partition {partition} when it entered generation {generation}, "
                    f"after {owner[1]} had got it",
                )
        member.revoked.clear()
        for partition in added:
            member.is_stale = is_stale
            member.positions[partition] = None
            member.floors[partition] = self.acknowledged.get(partition, 0)

    def removed(self, member: MemberHistory, partitions: Iterable[int], *, lost: bool) -> None:
        """A member no longer owns partitions; `lost`: it is no longer a member, either."""
        self._events += 1
        for partition in partitions:
            member.positions.pop(partition, None)
            if not lost:
                member.revoked[partition] = self._events

    # --- records ---

    def process(self, member: MemberHistory, partition: int, offset: int, value: bytes) -> None:
        """A member processes a record."""
        where = f"{member.name} reads offset {offset} of {self.topic}-{partition}"
        if partition not in member.positions:
            raise self._fail("owned partitions", f"{where}, which is not assigned to it")
        position = member.positions[partition]
        first_unprocessed = self.processed.get(partition, 0)
        if position is not None and offset != position:
            raise self._fail("nothing skipped", f"{where} after {position - 1}")
        if offset > first_unprocessed:
            raise self._fail("nothing skipped", f"{where}; no member has processed {first_unprocessed}")
        if position is None and offset < member.floors[partition]:
            if not member.is_stale and not self.may_be_late(partition, offset):
                raise self._fail(
                    "committed offsets survive",
                    f"{where} first; the commit of {member.floors[partition]} was acknowledged before",
                )
            self._rewind(partition, offset)
        if self._values.setdefault((partition, offset), value) != value:
            raise self._fail(
                "same records", f"{where}: {value!r}, before {self._values[partition, offset]!r}"
            )
        member.positions[partition] = offset + 1
        self.processed[partition] = max(first_unprocessed, offset + 1)

    # --- commits ---

    def request(self, positions: Mapping[int, int]) -> None:
        """A member commits these offsets now, or soon."""
        coordinators = self._coordinators()
        for place in positions.items():
            self._requested.setdefault(place, set()).add(coordinators)

    def may_be_late(self, partition: int, offset: int) -> bool:
        """Whether a commit of this offset may have arrived after later ones."""
        now = self._coordinators()
        return any(
            before.came_back(after)
            for coordinators in self._requested.get((partition, offset), ())
            for before, after in zip(coordinators, now, strict=False)
        )

    def _may_have_surfaced(self, partition: int, offset: int) -> bool:
        """Whether this offset, which was not acknowledged, may be known only since a coordinator has loaded
        it: a commit that takes too long is in the log, and not in the memory of the coordinator that refused
        it. A member that began with what that one knew commits from there on."""
        return self._coordinators() not in self._requested.get((partition, offset), ())

    def _rewind(self, partition: int, offset: int) -> None:
        self.rewinds += 1
        self.acknowledged[partition] = min(offset, self.acknowledged.get(partition, 0))
        self._observed[partition] = min(offset, self._observed.get(partition, 0))

    def begin_commit(self, metadata: GroupMetadata) -> Commit:
        """A member is about to commit."""
        return Commit(
            metadata.member_id,
            metadata.generation_id,
            self.generation,
            metadata.member_id in self.fenced,
            dict(self.acknowledged),
        )

    def accepted(self, member: MemberHistory, commit: Commit, offsets: Mapping[int, int]) -> None:
        """The coordinator has accepted a commit."""
        who = f"a commit of {member.name} ({commit.member_id}), generation {commit.generation}, was accepted"
        if commit.generation < commit.newest_generation:
            raise self._fail("fencing", f"{who} in generation {commit.newest_generation}")
        if commit.is_fenced:
            raise self._fail("fencing", f"{who}; another member has its group.instance.id")
        for partition, offset in offsets.items():
            before = commit.acknowledged.get(partition, 0)
            if offset < before:
                raise self._fail(
                    "committed offsets advance",
                    f"{who} with offset {offset} of {self.topic}-{partition} after {before}",
                )
        self.acknowledge(offsets)

    def acknowledge(self, offsets: Mapping[int, int]) -> None:
        """A commit was acknowledged."""
        self.commits += 1
        for partition, offset in offsets.items():
            if offset > self.processed.get(partition, 0):
                raise self._fail(
                    "nothing skipped",
                    f"offset {offset} of {self.topic}-{partition} was committed; no member has processed "
                    f"{self.processed.get(partition, 0)}",
                )
            self.acknowledged[partition] = max(offset, self.acknowledged.get(partition, 0))

    def observe(
        self, acknowledged: Mapping[int, int], found: Mapping[int, int], coordinators: object
    ) -> None:
        """An observer has read committed offsets. `acknowledged`: as it was before the read; `coordinators`:
        which there were, before and after the read."""
        if coordinators != self._observed_at:
            self._observed_at = coordinators
            self._observed.clear()
        for partition, offset in found.items():
            where = f"the committed offset of {self.topic}-{partition} is {offset}"
            for before, how in ((self._observed, "seen"), (acknowledged, "acknowledged")):
                if offset < before.get(partition, 0):
                    surfaced = before is self._observed and offset >= acknowledged.get(partition, 0)
                    if self.may_be_late(partition, offset) or (
                        surfaced and self._may_have_surfaced(partition, before[partition])
                    ):
                        self._rewind(partition, offset)
                        break
                    raise self._fail("committed offsets advance", f"{where}; {before[partition]} was {how}")
            if offset > self.processed.get(partition, 0):
                raise self._fail(
                    "nothing skipped", f"{where}; no member has processed {self.processed.get(partition, 0)}"
                )
            self._observed[partition] = offset
