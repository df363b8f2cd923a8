"""What a consumer subscribes to, and what a rebalance means for its partitions: eager or cooperative
(KIP-429).

Called by `Consumer`, which calls the user's listener and commits in between; called by `membership` for the
leader's part. Invariants: eager, nothing is owned while a rebalance is on; cooperative, only what was
assigned elsewhere is given up, and then the group is joined again; what a reset generation had is lost, not
revoked.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from ottla.client import errors
from ottla.client.core.assigned import Assigned
from ottla.client.core.assignment import Assignment, PartitionRacks, Subscription
from ottla.client.core.assignors import as_assignment, assignors_of
from ottla.client.core.baseline import Baseline
from ottla.client.core.cluster import Cluster
from ottla.client.core.consumer_config import ConsumerConfig
from ottla.client.core.membership import GroupMember, Joined
from ottla.client.core.sticky import CooperativeStickyAssignor
from ottla.client.core.types import GroupMetadata, TopicPartition
from ottla.protocol.topics import INTERNAL_TOPICS

log = logging.getLogger(__name__)


class AssignmentChange(NamedTuple):
    """What becomes of the partitions, to be told to the listener before `done` is called."""

    revoked: tuple[TopicPartition, ...] = ()
    lost: tuple[TopicPartition, ...] = ()
    added: tuple[TopicPartition, ...] = ()
    kept: tuple[TopicPartition, ...] = ()
    """Those that stay, and not `added`."""


class Rebalancing:
    def __init__(
        self, config: ConsumerConfig, cluster: Cluster, assigned: Assigned, baseline: Baseline
    ) -> None:
        self._baseline = baseline
        self._config = config
        self._cluster = cluster
        self._assigned = assigned
        self._assignors = assignors_of(config.partition_assignment_strategy, config)
        self._cooperative = all(assignor.cooperative for assignor in self._assignors.values())
        self.member: GroupMember | None = None
        """None without a group.id."""
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self.manual = False
        """Whether the user has assigned partitions."""
        self._joined_topics: frozenset[str] = frozenset()
        self._group_topics: frozenset[str] = frozenset()
        """What anybody in the group subscribes to; known to its leader."""
        self._seen: dict[str, tuple[int, PartitionRacks]] | None = None
        """The topics as they were when we, the leader, assigned them."""
        self._cluster_version = -1

    @property
    def subscribed(self) -> bool:
        return bool(self.topics) or self.pattern is not None

    # --- what the user wants ---

    def subscribe(self, topics: Iterable[str], pattern: re.Pattern[str] | None) -> None:
        self.manual = False
        before, self.topics = self.topics, frozenset(topics)
        self.pattern = pattern
        self._baseline.begin(self.topics if pattern is None else None, before)
        self._cluster_version = -1
        self._want()
        self.on_metadata_update()

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        self.unsubscribe()
        self.manual = True
        self._assigned.assign(partitions)
        self.topics = frozenset()
        self._cluster.want({tp.topic for tp in partitions})

    def unsubscribe(self) -> None:
        """No subscription, no assignment."""
        self.manual = False
        self.topics = self._joined_topics = self._group_topics = frozenset()
        self.pattern = None
        self._seen = None
        self._baseline.forget()
        self._assigned.assign(())
        self._cluster.want(())

    def _want(self) -> None:
        if self.pattern is not None:
            self._cluster.want(None)
        else:
            self._cluster.want(self.topics | self._group_topics)

    # --- what the cluster has ---

    def on_metadata_update(self) -> None:
        """Find topics for the pattern; a change that concerns the group makes it rebalance."""
        if self._cluster.version == self._cluster_version or not self.subscribed:
            return
        self._cluster_version = self._cluster.version
        if self.pattern is not None:
            self.topics = frozenset(name for name in self._cluster.topics if self._matches(name))
        member = self.member
        if member is None or not member.active:
            return
        if self.topics != self._joined_topics:
            member.request_rejoin("subscription has changed")
        elif self._seen is not None and self._seen != self._view(self._group_topics):
            member.request_rejoin("cached metadata has changed")

    def _matches(self, name: str) -> bool:
        assert self.pattern is not None
        state = self._cluster.topics[name]
        if not state.partitions or self.pattern.fullmatch(name) is None:
            return False
        return not (self._config.exclude_internal_topics and (state.internal or name in INTERNAL_TOPICS))

    def _view(self, topics: Iterable[str]) -> dict[str, tuple[int, PartitionRacks]]:
        view = {}
        for topic in topics:
            count = self._cluster.partitions(topic)
            if count:
                view[topic] = (count, self._racks(topic, count))
        return view

    def _racks(self, topic: str, count: int) -> PartitionRacks:
        racks = []
        for number in range(count):
            state = self._cluster.partition(TopicPartition(topic, number))
            nodes = [self._cluster.nodes.get(node) for node in (state.replicas if state else ())]
            racks.append(frozenset(node.rack for node in nodes if node is not None and node.rack))
        return tuple(racks)

    # --- a rebalance ---

    def before_join(self) -> AssignmentChange:
        """What has to be given up before the group can be joined."""
        assert self.member is not None
        owned = self._assigned.partitions
        if self.member.lost:
            return AssignmentChange(lost=owned)
        if not self._cooperative:
            return AssignmentChange(revoked=owned)
        revoked = tuple(tp for tp in owned if tp.topic not in self.topics)
        return AssignmentChange(revoked=revoked, kept=tuple(tp for tp in owned if tp.topic in self.topics))

    def remove(self, change: AssignmentChange) -> None:
        """The listener has been told; the assignment is what is kept."""
        if change.revoked or change.lost:
            self._assigned.assign(change.kept)

    def join(self) -> None:
        assert self.member is not None
        self._joined_topics = self.topics
        self._group_topics = frozenset()
        self._seen = None
        self._want()
        owned = tuple(sorted(self._assigned.partitions))
        rack = self._config.client_rack or None
        topics = tuple(sorted(self.topics))
        self.member.join(
            [
                (name, Subscription(topics, assignor.subscription_user_data(topics), owned, rack=rack))
                for name, assignor in self._assignors.items()
            ]
        )

    def perform_assignment(
        self, protocol: str, members: Mapping[str, Subscription]
    ) -> dict[str, Assignment] | None:
        """The leader's part; None until everybody's topics are known. Raises ClientError, and what a user's
        assignor raises."""
        assignor = self._assignors.get(protocol)
        if assignor is None:
            raise errors.InconsistentGroupProtocolError(f"the group chose {protocol}, which is not ours")
        self._group_topics = frozenset(topic for member in members.values() for topic in member.topics)
        if self.pattern is None:
            missing = self._group_topics - self._cluster.topics.keys()
            if missing:
                self._want()
                return None
        view = self._view(self._group_topics)
        self._seen = view
        decided = assignor.assign({topic: racks for topic, (_, racks) in view.items()}, members)
        shares = {name: as_assignment(share) for name, share in decided.items()}
        if self._cooperative and protocol != CooperativeStickyAssignor.name:
            _check_cooperative(protocol, members, shares)
        log.info("group %s: assigned by %s: %s", self._config.group_id, protocol, shares)
        return shares

    def after_join(self, joined: Joined) -> AssignmentChange | None:
        """What the rebalance brings; None for an assignment that does not fit the subscription any more."""
        assert self.member is not None
        if not self.member.is_leader:
            self._seen = None
        if self.pattern is None and any(tp.topic not in self.topics for tp in joined.partitions):
            self.member.request_rejoin("received assignment does not match the current subscription")
            return None
        owned = self._assigned.partitions
        mine = set(joined.partitions)
        return AssignmentChange(
            revoked=tuple(tp for tp in owned if tp not in mine) if self._cooperative else (),
            added=tuple(sorted(tp for tp in mine if tp not in self._assigned)),
            kept=tuple(tp for tp in owned if tp in mine),
        )

    def take_assignment(self, joined: Joined, change: AssignmentChange) -> None:
        """What is revoked was given up: the new assignment holds."""
        assert self.member is not None
        if change.revoked:
            self.member.request_rejoin("need to revoke partitions and re-join")
        self._assigned.assign((*change.kept, *change.added))
        self._tell_assignor(self.member, joined)
        if self.pattern is not None:
            # The leader may know topics that we have not heard of.
            unheard = {tp.topic for tp in joined.partitions} - self._joined_topics
            self._joined_topics |= unheard
            self.topics |= unheard

    def _tell_assignor(self, member: GroupMember, joined: Joined) -> None:
        """What it raises is raised by the next poll: the assignment holds."""
        me = GroupMetadata(
            self._config.group_id or "",
            joined.generation,
            member.membership.member_id,
            self._config.group_instance_id,
        )
        try:
            self._assignors[joined.protocol].on_assignment(
                Assignment(joined.partitions, joined.user_data), me
            )
        except Exception as problem:
            member.problems.append(problem)


def _check_cooperative(
    protocol: str, members: Mapping[str, Subscription], shares: Mapping[str, Assignment]
) -> None:
    """Raises IllegalStateError where a partition goes to one member before another one has given it up."""
    given = {(tp, name) for name, share in shares.items() for tp in share.partitions}
    owned = {(tp, name) for name, member in members.items() for tp in member.owned}
    moved = {tp for tp, _ in given - owned} & {tp for tp, _ in owned - given}
    if moved:
        names = ", ".join(map(str, sorted(moved)))
        raise errors.IllegalStateError(
            f"the assignor {protocol} is cooperative, and assigns {names} to one member before another one "
            "has given it up"
        )
