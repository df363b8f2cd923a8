"""Guards of the APIs about transactions. Called through `ottla.server.authorization.table`."""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from ottla.metadata.cache import MetadataCache
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TxnOffsetCommitRequest,
)
from ottla.protocol.topic_names import INTERNAL_TOPICS
from ottla.security.acls import Operation, ResourceType
from ottla.server.authorization.access import REFUSALS, Access
from ottla.server.authorization.guarding import Amend, Guard, Verdict, each, in_order, itself

TRANSACTION, TOPIC, GROUP = ResourceType.TRANSACTIONAL_ID, ResourceType.TOPIC, ResourceType.GROUP
BROKERS_FROM: Final = 4
"""AddPartitionsToTxn of these versions comes from brokers (KIP-890)."""


def add_partitions(cache: MetadataCache) -> Guard:
    """WRITE on the transactional id and on the topics: one that is refused, and none is added."""

    def guard(access: Access, message: AddPartitionsToTxnRequest) -> Verdict:
        if access.request.version >= BROKERS_FROM:
            access.require_cluster(Operation.CLUSTER_ACTION)
            return None
        access.require(Operation.WRITE, TRANSACTION, message.v3_and_below_transactional_id)
        names = [topic.name for topic in message.v3_and_below_topics]
        ours = [name for name in names if name not in INTERNAL_TOPICS]
        allowed = access.among(Operation.WRITE, TOPIC, ours)
        if allowed.issuperset(names):
            return None

        def outcome(topic: str, index: int) -> ErrorCode:
            if topic not in allowed:
                return REFUSALS[TOPIC]
            if cache.partition(topic, index) is None:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return ErrorCode.OPERATION_NOT_ATTEMPTED

        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[
                AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                            partition_index=index, partition_error_code=outcome(topic.name, index)
                        )
                        for index in topic.partitions
                    ],
                )
                for topic in message.v3_and_below_topics
            ]
        )

    return guard


def add_offsets(access: Access, message: AddOffsetsToTxnRequest) -> None:
    access.require(Operation.WRITE, TRANSACTION, message.transactional_id)
    access.require(Operation.READ, GROUP, message.group_id)


def offset_commit(access: Access, message: TxnOffsetCommitRequest) -> Verdict:
    access.require(Operation.WRITE, TRANSACTION, message.transactional_id)
    access.require(Operation.READ, GROUP, message.group_id)
    return each(Operation.READ, TOPIC, "topics", "topics")(access, message)


def describe(access: Access, message: DescribeTransactionsRequest) -> Amend:
    """DESCRIBE on each transactional id; of its topics, those that may be described."""
    order = list(message.transactional_ids)
    answers = each(Operation.DESCRIBE, TRANSACTION, "transactional_ids", "transaction_states", name=itself)(
        access, message
    )

    def amend(response: DescribeTransactionsResponse) -> None:
        for state in response.transaction_states:
            visible = access.among(Operation.DESCRIBE, TOPIC, [topic.topic for topic in state.topics])
            state.topics = [topic for topic in state.topics if topic.topic in visible]
        if answers is not None:
            answers(response)
            in_order(response.transaction_states, order, attrgetter("transactional_id"))

    return amend


def list_all(access: Access, message: ListTransactionsRequest) -> Amend:
    """Those that may be described."""

    def amend(response: ListTransactionsResponse) -> None:
        names = [state.transactional_id for state in response.transaction_states]
        visible = access.among(Operation.DESCRIBE, TRANSACTION, names)
        response.transaction_states = [
            state for state in response.transaction_states if state.transactional_id in visible
        ]

    return amend
