"""Authorization checks of the APIs about consumer groups: offsets, membership, descriptions, coordinators.

Called through `ottla.server.authorization.checks_by_api`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final, TypeVar

from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.security.acls import Operation, ResourceType
from ottla.server.authorization.auth_helper import DENIED_ERRORS, DENIED_MESSAGES, AuthHelper
from ottla.server.authorization.checks import (
    CheckResult,
    ResponseChange,
    each,
    error_rows,
    exclude_denied,
    identity,
    sort_as_requested,
)

T = TypeVar("T")

GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC
DESCRIBE, READ = Operation.DESCRIBE, Operation.READ
TOPIC_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
MANY_GROUPS_FROM: Final = 8
NO_GROUP_ERROR_VERSION: Final = 1
"""OffsetFetch 1 has no error of the group; Kafka responds without partitions."""
MANY_KEYS_FROM: Final = 4
NULL_PROTOCOL_FROM: Final = 7
SHARE_FROM: Final = 6
_NO_OFFSET: Final = -1

_Group = m.OffsetFetchResponse.OffsetFetchResponseGroup


def offset_commit(auth: AuthHelper, message: m.OffsetCommitRequest) -> CheckResult:
    """READ on the group and on the topics. A commit that removes members is done for all topics or none."""
    auth.require(READ, GROUP, message.group_id)
    allowed = auth.filter_authorized(READ, TOPIC, [topic.name for topic in message.topics])
    denied = [topic for topic in message.topics if topic.name not in allowed]
    if not denied or not message.remove_members:
        return exclude_denied(auth, message, "topics", "topics", denied, TOPIC_DENIED)
    others = [topic for topic in message.topics if topic.name in allowed]
    rows = error_rows(auth, message, "topics", "topics", denied, TOPIC_DENIED)
    rows += error_rows(auth, message, "topics", "topics", others, ErrorCode.OPERATION_NOT_ATTEMPTED)
    return m.OffsetCommitResponse(topics=rows)


def offset_delete(auth: AuthHelper, message: m.OffsetDeleteRequest) -> ResponseChange | None:
    """DELETE on the group, READ on the topics."""
    auth.require(Operation.DELETE, GROUP, message.group_id)
    allowed = auth.filter_authorized(READ, TOPIC, [topic.name for topic in message.topics])
    denied = [topic for topic in message.topics if topic.name not in allowed]
    if not denied:
        return None
    message.topics = [topic for topic in message.topics if topic.name in allowed]

    def amend(response: m.OffsetDeleteResponse) -> None:
        if response.error_code:
            return
        response.topics.extend(
            m.OffsetDeleteResponse.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    m.OffsetDeleteResponse.OffsetDeleteResponsePartition(
                        partition_index=p.partition_index, error_code=TOPIC_DENIED
                    )
                    for p in topic.partitions
                ],
            )
            for topic in denied
        )

    return amend


def join(auth: AuthHelper, message: m.JoinGroupRequest) -> m.JoinGroupResponse | None:
    """READ on the group; the error response has no member id."""
    if auth.authorize(READ, GROUP, message.group_id):
        return None
    no_protocol = None if auth.request.version >= NULL_PROTOCOL_FROM else ""
    return m.JoinGroupResponse(error_code=DENIED_ERRORS[GROUP], protocol_name=no_protocol)


def offset_fetch(auth: AuthHelper, message: m.OffsetFetchRequest) -> CheckResult:
    """DESCRIBE on the group and on the topics; a request for all topics gets the authorized ones."""
    if auth.request.version >= MANY_GROUPS_FROM:
        return _offset_fetch_of_many(auth, message)
    if auth.request.version == NO_GROUP_ERROR_VERSION:
        if not auth.authorize(DESCRIBE, GROUP, message.group_id):
            return m.OffsetFetchResponse()
    else:
        auth.require(DESCRIBE, GROUP, message.group_id)
    if message.topics is None:

        def leave_out(response: m.OffsetFetchResponse) -> None:
            visible = auth.filter_authorized(DESCRIBE, TOPIC, [topic.name for topic in response.topics])
            response.topics = [topic for topic in response.topics if topic.name in visible]

        return leave_out
    allowed = auth.filter_authorized(DESCRIBE, TOPIC, [topic.name for topic in message.topics])
    denied = [topic for topic in message.topics if topic.name not in allowed]
    if not denied:
        return None
    message.topics = [topic for topic in message.topics if topic.name in allowed]
    refused = _denied_rows(
        m.OffsetFetchResponse.OffsetFetchResponseTopic,
        m.OffsetFetchResponse.OffsetFetchResponsePartition,
        denied,
    )

    def amend(response: m.OffsetFetchResponse) -> None:
        if not response.error_code:
            response.topics.extend(refused)

    return amend


def _denied_rows(topic: Callable[..., T], partition: Callable[..., object], denied: Iterable[Any]) -> list[T]:
    """Rows of an OffsetFetch response; versions 8 and later have classes of their own."""
    return [
        topic(
            name=each.name,
            partitions=[
                partition(
                    partition_index=index, committed_offset=_NO_OFFSET, metadata="", error_code=TOPIC_DENIED
                )
                for index in each.partition_indexes
            ],
        )
        for each in denied
    ]


def _offset_fetch_of_many(auth: AuthHelper, message: m.OffsetFetchRequest) -> CheckResult:
    order = [group.group_id for group in message.groups]
    allowed = auth.filter_authorized(DESCRIBE, GROUP, order)
    message.groups = [group for group in message.groups if group.group_id in allowed]
    refused: dict[str, list[m.OffsetFetchResponse.OffsetFetchResponseTopics]] = {}
    lists_all = {group.group_id for group in message.groups if group.topics is None}
    for group in message.groups:
        if group.topics is None:
            continue
        visible = auth.filter_authorized(DESCRIBE, TOPIC, [topic.name for topic in group.topics])
        refused[group.group_id] = _denied_rows(
            m.OffsetFetchResponse.OffsetFetchResponseTopics,
            m.OffsetFetchResponse.OffsetFetchResponsePartitions,
            [topic for topic in group.topics if topic.name not in visible],
        )
        group.topics = [topic for topic in group.topics if topic.name in visible]

    def amend(response: m.OffsetFetchResponse) -> None:
        for group in response.groups:
            if group.error_code:
                continue
            if group.group_id in lists_all:
                visible = auth.filter_authorized(DESCRIBE, TOPIC, [topic.name for topic in group.topics])
                group.topics = [topic for topic in group.topics if topic.name in visible]
            group.topics.extend(refused.get(group.group_id, ()))
        response.groups.extend(
            _Group(group_id=name, error_code=DENIED_ERRORS[GROUP]) for name in order if name not in allowed
        )
        sort_as_requested(response.groups, order, attrgetter("group_id"))

    return amend


def describe_groups(auth: AuthHelper, message: m.DescribeGroupsRequest) -> ResponseChange:
    """DESCRIBE on each group."""
    wants_operations = message.include_authorized_operations
    add_errors = each(DESCRIBE, GROUP, "groups", "groups", name=identity)(auth, message)

    def amend(response: m.DescribeGroupsResponse) -> None:
        if wants_operations:
            for group in response.groups:
                if not group.error_code:
                    group.authorized_operations = auth.authorized_operations(GROUP, group.group_id)
        if add_errors is not None:
            described, response.groups = response.groups, []
            add_errors(response)
            response.groups.extend(described)

    return amend


def list_groups(auth: AuthHelper, message: m.ListGroupsRequest) -> ResponseChange | None:
    """All groups with DESCRIBE on the cluster; otherwise those with DESCRIBE on the group."""
    if auth.authorize_cluster(DESCRIBE, log_denied=False):
        return None

    def amend(response: m.ListGroupsResponse) -> None:
        names = [group.group_id for group in response.groups]
        visible = auth.filter_authorized(DESCRIBE, GROUP, names, log_denied=False)
        response.groups = [group for group in response.groups if group.group_id in visible]

    return amend


_RESOURCE_TYPES: Final = {0: GROUP, 1: ResourceType.TRANSACTIONAL_ID, 2: ResourceType.CLUSTER}


def find_coordinator(auth: AuthHelper, message: m.FindCoordinatorRequest) -> CheckResult:
    """DESCRIBE on the group or the transactional id; for share groups CLUSTER_ACTION on the cluster."""
    version = auth.request.version
    kind = _RESOURCE_TYPES.get(message.key_type)
    if kind is None or (kind is ResourceType.CLUSTER and version < SHARE_FROM):
        return None  # the handler rejects these
    keys = message.coordinator_keys if version >= MANY_KEYS_FROM else [message.key]
    if kind is ResourceType.CLUSTER:
        allowed = set(keys) if auth.authorize_cluster(Operation.CLUSTER_ACTION) else set()
    else:
        allowed = auth.filter_authorized(DESCRIBE, kind, keys)
    if version < MANY_KEYS_FROM:
        if message.key not in allowed:
            raise KafkaError(DENIED_ERRORS[kind], DENIED_MESSAGES[DENIED_ERRORS[kind]])
        return None
    order = list(keys)
    denied = [key for key in keys if key not in allowed]
    add_errors = exclude_denied(
        auth, message, "coordinator_keys", "coordinators", denied, DENIED_ERRORS[kind]
    )
    if add_errors is None:
        return None

    def amend(response: m.FindCoordinatorResponse) -> None:
        add_errors(response)
        for found in response.coordinators:
            if found.key not in allowed:
                found.error_message = ""
        sort_as_requested(response.coordinators, order, attrgetter("key"))

    return amend
