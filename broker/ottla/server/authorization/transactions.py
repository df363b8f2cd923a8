"""Authorization checks of the APIs about transactions. Called through
`ottla.server.authorization.checks_by_api`."""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from ottla.metadata.cache import MetadataCache
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import INTERNAL_TOPICS
from ottla.security.acls import Operation, ResourceType
from ottla.server.authorization.auth_helper import DENIED_ERRORS, AuthHelper
from ottla.server.authorization.checks import (
    AuthorizationCheck,
    CheckResult,
    ResponseChange,
    each,
    identity,
    sort_as_requested,
)

TRANSACTION, TOPIC, GROUP = ResourceType.TRANSACTIONAL_ID, ResourceType.TOPIC, ResourceType.GROUP
BROKERS_FROM: Final = 4
"""AddPartitionsToTxn of these versions comes from brokers (KIP-890)."""


def add_partitions(cache: MetadataCache) -> AuthorizationCheck:
    """WRITE on the transactional id and on the topics; if one topic is denied, no partition is added."""

    def check(auth: AuthHelper, message: m.AddPartitionsToTxnRequest) -> CheckResult:
        if auth.request.version >= BROKERS_FROM:
            auth.require_cluster(Operation.CLUSTER_ACTION)
            return None
        auth.require(Operation.WRITE, TRANSACTION, message.v3_and_below_transactional_id)
        names = [topic.name for topic in message.v3_and_below_topics]
        ours = [name for name in names if name not in INTERNAL_TOPICS]
        allowed = auth.filter_authorized(Operation.WRITE, TOPIC, ours)
        if allowed.issuperset(names):
            return None

        def outcome(topic: str, index: int) -> ErrorCode:
            if topic not in allowed:
                return DENIED_ERRORS[TOPIC]
            if cache.partition(topic, index) is None:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return ErrorCode.OPERATION_NOT_ATTEMPTED

        return m.AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[
                m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        m.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                            partition_index=index, partition_error_code=outcome(topic.name, index)
                        )
                        for index in topic.partitions
                    ],
                )
                for topic in message.v3_and_below_topics
            ]
        )

    return check


def add_offsets(auth: AuthHelper, message: m.AddOffsetsToTxnRequest) -> None:
    auth.require(Operation.WRITE, TRANSACTION, message.transactional_id)
    auth.require(Operation.READ, GROUP, message.group_id)


def offset_commit(auth: AuthHelper, message: m.TxnOffsetCommitRequest) -> CheckResult:
    auth.require(Operation.WRITE, TRANSACTION, message.transactional_id)
    auth.require(Operation.READ, GROUP, message.group_id)
    return each(Operation.READ, TOPIC, "topics", "topics")(auth, message)


def describe(auth: AuthHelper, message: m.DescribeTransactionsRequest) -> ResponseChange:
    """DESCRIBE on each transactional id; topics without DESCRIBE are left out."""
    order = list(message.transactional_ids)
    add_errors = each(
        Operation.DESCRIBE, TRANSACTION, "transactional_ids", "transaction_states", name=identity
    )(auth, message)

    def amend(response: m.DescribeTransactionsResponse) -> None:
        for state in response.transaction_states:
            visible = auth.filter_authorized(
                Operation.DESCRIBE, TOPIC, [topic.topic for topic in state.topics]
            )
            state.topics = [topic for topic in state.topics if topic.topic in visible]
        if add_errors is not None:
            add_errors(response)
            sort_as_requested(response.transaction_states, order, attrgetter("transactional_id"))

    return amend


def list_all(auth: AuthHelper, message: m.ListTransactionsRequest) -> ResponseChange:
    """Lists the transactional ids with DESCRIBE."""

    def amend(response: m.ListTransactionsResponse) -> None:
        names = [state.transactional_id for state in response.transaction_states]
        visible = auth.filter_authorized(Operation.DESCRIBE, TRANSACTION, names)
        response.transaction_states = [
            state for state in response.transaction_states if state.transactional_id in visible
        ]

    return amend
