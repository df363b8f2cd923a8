"""The subscription of a consumer, and how a rebalance changes its assignment: eager or cooperative (KIP-429).

Called by `Consumer`, which calls the rebalance listener and commits in between, and by `membership` for the
assignment on the leader. Invariants: with the eager protocol, no partition is owned during a rebalance; with
the cooperative protocol, only partitions that are assigned to other members are revoked, after which the
member joins again; partitions of a lost generation are lost, not revoked.
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
    """The partitions that a rebalance removes, adds and keeps."""

    revoked: tuple[TopicPartition, ...] = ()
    lost: tuple[TopicPartition, ...] = ()
    added: tuple[TopicPartition, ...] = ()
    kept: tuple[TopicPartition, ...] = ()
    """Partitions that stay assigned."""


class Rebalancing:
    """The subscription part of Kafka's ConsumerCoordinator and SubscriptionState."""

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
        """Whether partitions are assigned manually."""
        self._joined_topics: frozenset[str] = frozenset()
        self._group_topics: frozenset[str] = frozenset()
        """The topics of all subscriptions of the group; known on the leader."""
        self._assigned_view: dict[str, tuple[int, PartitionRacks]] | None = None
        """The metadata from which the leader assigned partitions."""
        self._withheld = False
        """On the leader: a partition has no owner in this generation, because its owner has to revoke it
        first."""
        self._withheld_since: float | None = None
        self._cluster_version = -1

    @property
    def subscribed(self) -> bool:
        return bool(self.topics) or self.pattern is not None

    # --- subscription ---

    def subscribe(self, topics: Iterable[str], pattern: re.Pattern[str] | None) -> None:
        self.manual = False
        before, self.topics = self.topics, frozenset(topics)
        self.pattern = pattern
        self._baseline.begin(self.topics if pattern is None else None, before)
        self._cluster_version = -1
        self._want_topics()
        self.on_metadata_update()

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        self.unsubscribe()
        self.manual = True
        self._assigned.assign(partitions)
        self.topics = frozenset()
        self._cluster.want({tp.topic for tp in partitions})

    def unsubscribe(self) -> None:
        """End the subscription or the manual assignment."""
        self.manual = False
        self.topics = self._joined_topics = self._group_topics = frozenset()
        self.pattern = None
        self._assigned_view = None
        self._baseline.forget()
        self._assigned.assign(())
        self._cluster.want(())

    def _want_topics(self) -> None:
        if self.pattern is not None:
            self._cluster.want(None)
        else:
            self._cluster.want(self.topics | self._group_topics)

    # --- metadata ---

    def on_metadata_update(self) -> None:
        """Match the pattern with new topics; request a rebalance if a change concerns the group."""
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
        elif self._assigned_view is not None and self._assigned_view != self._view(self._group_topics):
            member.request_rejoin("cached metadata has changed")

    def reassign_withheld(self, now: float) -> None:
        """On the leader: request a rebalance if a partition that its owner was to revoke has no owner after
        max.poll.interval.ms.

        Mostly the owner revokes it and joins again. A static member that restarts instead gets its new share
        from the coordinator without a rebalance, and does not know that it had more. Kafka's client waits for
        the next rebalance, which may never come.
        """
        member = self.member
        if not self._withheld or member is None or not member.is_leader or member.rejoin or member.joining:
            return
        if self._withheld_since is None:
            self._withheld_since = now
        elif now >= self._withheld_since + self._config.max_poll_interval_ms / 1000:
            member.request_rejoin("partitions are still without an owner")

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

    # --- rebalance ---

    def before_join(self) -> AssignmentChange:
        """The partitions to revoke before the member joins."""
        assert self.member is not None
        owned = self._assigned.partitions
        if self.member.lost:
            return AssignmentChange(lost=owned)
        if not self._cooperative:
            return AssignmentChange(revoked=owned)
        revoked = tuple(tp for tp in owned if tp.topic not in self.topics)
        return AssignmentChange(revoked=revoked, kept=tuple(tp for tp in owned if tp.topic in self.topics))

    def remove(self, change: AssignmentChange) -> None:
        """Remove revoked and lost partitions from the assignment, after the listener was called."""
        if change.revoked or change.lost:
            self._assigned.assign(change.kept)

    def join(self) -> None:
        assert self.member is not None
        self._joined_topics = self.topics
        self._group_topics = frozenset()
        self._assigned_view = None
        self._withheld, self._withheld_since = False, None
        self._want_topics()
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
        """Assign partitions to all members, on the leader; None while metadata of some topics is missing.
        Raises ClientError, and the exceptions of a user's assignor."""
        assignor = self._assignors.get(protocol)
        if assignor is None:
            raise errors.InconsistentGroupProtocolError(
                f"the group chose {protocol}, which this member does not support"
            )
        self._group_topics = frozenset(topic for member in members.values() for topic in member.topics)
        if self.pattern is None:
            missing = self._group_topics - self._cluster.topics.keys()
            if missing:
                self._want_topics()
                return None
        view = self._view(self._group_topics)
        self._assigned_view = view
        decided = assignor.assign({topic: racks for topic, (_, racks) in view.items()}, members)
        shares = {name: as_assignment(share) for name, share in decided.items()}
        if self._cooperative and protocol != CooperativeStickyAssignor.name:
            _check_cooperative(protocol, members, shares)
        given = {tp for share in shares.values() for tp in share.partitions}
        self._withheld_since = None
        self._withheld = self._cooperative and any(
            tp not in given and tp.topic in view and tp.partition < view[tp.topic][0]
            for member in members.values()
            for tp in member.owned
        )
        log.info("group %s: assigned by %s: %s", self._config.group_id, protocol, shares)
        return shares

    def after_join(self, joined: Joined) -> AssignmentChange | None:
        """The changes of a new assignment; None if it does not match the current subscription."""
        assert self.member is not None
        if not self.member.is_leader:
            self._assigned_view = None
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
        """Set the new assignment, after the listener was called for revoked partitions."""
        assert self.member is not None
        if change.revoked:
            self.member.request_rejoin("need to revoke partitions and re-join")
        self._assigned.assign((*change.kept, *change.added))
        self._notify_assignor(self.member, joined)
        if self.pattern is not None:
            # The leader may have newer metadata with further topics.
            new_topics = {tp.topic for tp in joined.partitions} - self._joined_topics
            self._joined_topics |= new_topics
            self.topics |= new_topics

    def _notify_assignor(self, member: GroupMember, joined: Joined) -> None:
        """Call `on_assignment`; its exceptions are raised by the next poll, and the assignment holds."""
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
    """Raises IllegalStateError if a partition is assigned to a member while another member owns it."""
    given = {(tp, name) for name, share in shares.items() for tp in share.partitions}
    owned = {(tp, name) for name, member in members.items() for tp in member.owned}
    moved = {tp for tp, _ in given - owned} & {tp for tp, _ in owned - given}
    if moved:
        names = ", ".join(map(str, sorted(moved)))
        raise errors.IllegalStateError(
            f"the assignor {protocol} is cooperative and assigns {names} to one member before another one "
            "has revoked it"
        )
