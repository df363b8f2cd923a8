"""Guards of the APIs about consumer groups: offsets, membership, descriptions, coordinators.

Called through `ottla.server.authorization.table`.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from ottla.security.acls import Operation, ResourceType
from ottla.server.authorization.access import REFUSALS, WORDS, Access
from ottla.server.authorization.guarding import Amend, Verdict, each, in_order, itself, refusals, take_out

GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC
DESCRIBE, READ = Operation.DESCRIBE, Operation.READ
TOPIC_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
MANY_GROUPS_FROM: Final = 8
NO_WORD_VERSION: Final = 1
"""Has no place for the error of a group, nor, in Kafka, for a word about its partitions."""
MANY_KEYS_FROM: Final = 4
NULL_PROTOCOL_FROM: Final = 7
SHARE_FROM: Final = 6
_NO_OFFSET: Final = -1

_Group = OffsetFetchResponse.OffsetFetchResponseGroup


def offset_commit(access: Access, message: OffsetCommitRequest) -> Verdict:
    """READ on the group and on the topics; a rewind is done for all of its topics or for none."""
    access.require(READ, GROUP, message.group_id)
    allowed = access.among(READ, TOPIC, [topic.name for topic in message.topics])
    denied = [topic for topic in message.topics if topic.name not in allowed]
    if not denied or not message.remove_members:
        return take_out(access, message, "topics", "topics", denied, TOPIC_DENIED)
    others = [topic for topic in message.topics if topic.name in allowed]
    rows = refusals(access, message, "topics", "topics", denied, TOPIC_DENIED)
    rows += refusals(access, message, "topics", "topics", others, ErrorCode.OPERATION_NOT_ATTEMPTED)
    return OffsetCommitResponse(topics=rows)


def offset_delete(access: Access, message: OffsetDeleteRequest) -> Amend | None:
    """DELETE on the group, READ on the topics."""
    access.require(Operation.DELETE, GROUP, message.group_id)
    allowed = access.among(READ, TOPIC, [topic.name for topic in message.topics])
    denied = [topic for topic in message.topics if topic.name not in allowed]
    if not denied:
        return None
    message.topics = [topic for topic in message.topics if topic.name in allowed]

    def amend(response: OffsetDeleteResponse) -> None:
        if response.error_code:
            return
        response.topics.extend(
            OffsetDeleteResponse.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponse.OffsetDeleteResponsePartition(
                        partition_index=p.partition_index, error_code=TOPIC_DENIED
                    )
                    for p in topic.partitions
                ],
            )
            for topic in denied
        )

    return amend


def join(access: Access, message: JoinGroupRequest) -> JoinGroupResponse | None:
    """READ on the group; the refusal gives back no member id."""
    if access.allows(READ, GROUP, message.group_id):
        return None
    nothing = None if access.request.version >= NULL_PROTOCOL_FROM else ""
    return JoinGroupResponse(error_code=REFUSALS[GROUP], protocol_name=nothing)


def offset_fetch(access: Access, message: OffsetFetchRequest) -> Verdict:
    """DESCRIBE on the group and on the topics; of all topics, those that it may describe."""
    if access.request.version >= MANY_GROUPS_FROM:
        return _offset_fetch_of_many(access, message)
    if access.request.version == NO_WORD_VERSION:
        if not access.allows(DESCRIBE, GROUP, message.group_id):
            return OffsetFetchResponse()
    else:
        access.require(DESCRIBE, GROUP, message.group_id)
    if message.topics is None:

        def leave_out(response: OffsetFetchResponse) -> None:
            visible = access.among(DESCRIBE, TOPIC, [topic.name for topic in response.topics])
            response.topics = [topic for topic in response.topics if topic.name in visible]

        return leave_out
    allowed = access.among(DESCRIBE, TOPIC, [topic.name for topic in message.topics])
    denied = [topic for topic in message.topics if topic.name not in allowed]
    if not denied:
        return None
    message.topics = [topic for topic in message.topics if topic.name in allowed]
    refused = [
        OffsetFetchResponse.OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponse.OffsetFetchResponsePartition(
                    partition_index=index,
                    committed_offset=_NO_OFFSET,
                    metadata="",
                    error_code=TOPIC_DENIED,
                )
                for index in topic.partition_indexes
            ],
        )
        for topic in denied
    ]

    def amend(response: OffsetFetchResponse) -> None:
        if not response.error_code:
            response.topics.extend(refused)

    return amend


def _offset_fetch_of_many(access: Access, message: OffsetFetchRequest) -> Verdict:
    order = [group.group_id for group in message.groups]
    allowed = access.among(DESCRIBE, GROUP, order)
    message.groups = [group for group in message.groups if group.group_id in allowed]
    refused: dict[str, list[OffsetFetchResponse.OffsetFetchResponseTopics]] = {}
    lists_all = {group.group_id for group in message.groups if group.topics is None}
    for group in message.groups:
        if group.topics is None:
            continue
        visible = access.among(DESCRIBE, TOPIC, [topic.name for topic in group.topics])
        refused[group.group_id] = [
            OffsetFetchResponse.OffsetFetchResponseTopics(
                name=topic.name,
                partitions=[
                    OffsetFetchResponse.OffsetFetchResponsePartitions(
                        partition_index=index,
                        committed_offset=_NO_OFFSET,
                        metadata="",
                        error_code=TOPIC_DENIED,
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in group.topics
            if topic.name not in visible
        ]
        group.topics = [topic for topic in group.topics if topic.name in visible]

    def amend(response: OffsetFetchResponse) -> None:
        for group in response.groups:
            if group.error_code:
                continue
            if group.group_id in lists_all:
                visible = access.among(DESCRIBE, TOPIC, [topic.name for topic in group.topics])
                group.topics = [topic for topic in group.topics if topic.name in visible]
            group.topics.extend(refused.get(group.group_id, ()))
        response.groups.extend(
            _Group(group_id=name, error_code=REFUSALS[GROUP]) for name in order if name not in allowed
        )
        in_order(response.groups, order, attrgetter("group_id"))

    return amend


def describe_groups(access: Access, message: DescribeGroupsRequest) -> Amend:
    """DESCRIBE on each group."""
    wants_operations = message.include_authorized_operations
    answers = each(DESCRIBE, GROUP, "groups", "groups", name=itself)(access, message)

    def amend(response: DescribeGroupsResponse) -> None:
        if wants_operations:
            for group in response.groups:
                if not group.error_code:
                    group.authorized_operations = access.operations(GROUP, group.group_id)
        if answers is not None:
            described, response.groups = response.groups, []
            answers(response)
            response.groups.extend(described)

    return amend


def list_groups(access: Access, message: ListGroupsRequest) -> Amend | None:
    """Who may not describe the cluster sees the groups that it may describe."""
    if access.allows_cluster(DESCRIBE, quiet=True):
        return None

    def amend(response: ListGroupsResponse) -> None:
        names = [group.group_id for group in response.groups]
        visible = access.among(DESCRIBE, GROUP, names, quiet=True)
        response.groups = [group for group in response.groups if group.group_id in visible]

    return amend


_COORDINATED: Final = {0: GROUP, 1: ResourceType.TRANSACTIONAL_ID, 2: ResourceType.CLUSTER}


def find_coordinator(access: Access, message: FindCoordinatorRequest) -> Verdict:
    """DESCRIBE on the group or the transactional id; share groups are for brokers to ask after."""
    version = access.request.version
    kind = _COORDINATED.get(message.key_type)
    if kind is None or (kind is ResourceType.CLUSTER and version < SHARE_FROM):
        return None  # the handler refuses these
    keys = message.coordinator_keys if version >= MANY_KEYS_FROM else [message.key]
    if kind is ResourceType.CLUSTER:
        allowed = set(keys) if access.allows_cluster(Operation.CLUSTER_ACTION) else set()
    else:
        allowed = access.among(DESCRIBE, kind, keys)
    if version < MANY_KEYS_FROM:
        if message.key not in allowed:
            raise KafkaError(REFUSALS[kind], WORDS[REFUSALS[kind]])
        return None
    order = list(keys)
    denied = [key for key in keys if key not in allowed]
    answers = take_out(access, message, "coordinator_keys", "coordinators", denied, REFUSALS[kind])
    if answers is None:
        return None

    def amend(response: FindCoordinatorResponse) -> None:
        answers(response)
        for found in response.coordinators:
            if found.key not in allowed:
                found.error_message = ""
        in_order(response.coordinators, order, attrgetter("key"))

    return amend
