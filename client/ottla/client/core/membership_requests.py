"""The requests of a group member. Called by `membership`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ottla.client.core.assignment import Assignment, Subscription, encode_assignment, encode_subscription
from ottla.client.core.consumer_config import ConsumerConfig
from ottla.client.core.offsets import Membership
from ottla.protocol import messages as m

PROTOCOL_TYPE: Final = "consumer"
_REASON_MAX: Final = 255
"""The maximum length of the reason in characters (KIP-800)."""


def join(
    config: ConsumerConfig,
    member: Membership,
    subscriptions: Sequence[tuple[str, Subscription]],
    reason: str,
) -> m.JoinGroupRequest:
    offered = [
        m.JoinGroupRequest.JoinGroupRequestProtocol(
            name=name, metadata=encode_subscription(subscription._replace(generation=member.generation))
        )
        for name, subscription in subscriptions
    ]
    return m.JoinGroupRequest(
        group_id=config.group_id or "",
        session_timeout_ms=config.session_timeout_ms,
        rebalance_timeout_ms=config.max_poll_interval_ms,
        member_id=member.member_id,
        group_instance_id=config.group_instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=offered,
        reason=reason[:_REASON_MAX],
    )


def sync(config: ConsumerConfig, member: Membership, protocol: str) -> m.SyncGroupRequest:
    """The request of a follower; the leader adds `assignments`."""
    return m.SyncGroupRequest(
        group_id=config.group_id or "",
        generation_id=member.generation,
        member_id=member.member_id,
        group_instance_id=config.group_instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=protocol,
    )


def assignments(
    shares: Mapping[str, Assignment],
) -> list[m.SyncGroupRequest.SyncGroupRequestAssignment]:
    row = m.SyncGroupRequest.SyncGroupRequestAssignment
    return [row(member_id=name, assignment=encode_assignment(*share)) for name, share in shares.items()]


def heartbeat(config: ConsumerConfig, member: Membership) -> m.HeartbeatRequest:
    return m.HeartbeatRequest(
        group_id=config.group_id or "",
        generation_id=member.generation,
        member_id=member.member_id,
        group_instance_id=config.group_instance_id,
    )


def leave(group: str, member: Membership, reason: str) -> m.LeaveGroupRequest:
    """For version 3 and later; an older broker removes the member when its session times out."""
    identity = m.LeaveGroupRequest.MemberIdentity(member_id=member.member_id, reason=reason[:_REASON_MAX])
    return m.LeaveGroupRequest(group_id=group, members=[identity])
