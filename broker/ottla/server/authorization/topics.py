"""Guards of the APIs about topics and their records: Metadata, CreateTopics, DeleteTopics, CreatePartitions,
OffsetForLeaderEpoch, DescribeProducers, InitProducerId and the transactional side of Produce.

Topics that the sender may not describe are not listed; where it names one itself, the answer does not say
whether it exists. Called through `ottla.server.authorization.table`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from struct import Struct
from typing import Any, Final

from ottla.metadata.cache import MetadataCache
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    MetadataRequest,
    MetadataResponse,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
)
from ottla.protocol.records import MAGIC_V2, RECORD_BATCH_OVERHEAD, TRANSACTIONAL_FLAG
from ottla.protocol.topic_names import INTERNAL_TOPICS, is_legal_topic_name
from ottla.protocol.types import ZERO_UUID
from ottla.security.acls import Operation, ResourceType
from ottla.server.authorization.access import WORDS, Access
from ottla.server.authorization.guarding import (
    NAME,
    Amend,
    Guard,
    Verdict,
    each,
    in_order,
    refusals,
    take_out,
)

TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER
TOPIC_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NOBODYS_OPERATIONS: Final = 0
DELETE_BY_ID_FROM: Final = 6
METADATA_BY_ID_FROM: Final = 12
"""Versions 10 and 11 have the field, and Kafka refuses ids and null names in them."""
_MAGIC_AND_ATTRIBUTES: Final = Struct(">16xb4xh")

Topic = MetadataResponse.MetadataResponseTopic


def named_by_id(topics: Sequence[MetadataRequest.MetadataRequestTopic], version: int) -> bool:
    """Whether a Metadata request names topics by their ids. Raises INVALID_REQUEST."""
    by_id = any(topic.topic_id != ZERO_UUID for topic in topics)
    if version < METADATA_BY_ID_FROM and (by_id or any(topic.name is None for topic in topics)):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Metadata requests of version {version} name topics by their names, not by topic ids",
        )
    return by_id


def metadata(cache: MetadataCache, *, auto_create: bool) -> Guard:
    """DESCRIBE for what is asked; to have a topic made, CREATE on the cluster or on the topic."""

    def guard(access: Access, message: MetadataRequest) -> Verdict:
        asked = message.topics
        lists_all = asked is None or (access.request.version == 0 and not asked)
        refused: list[Topic] = []
        if asked is not None and not lists_all:
            may_create = auto_create and message.allow_auto_topic_creation
            refused = _refused(access, message, asked, may_create=may_create)
        wants_operations = message.include_topic_authorized_operations
        of_cluster: int | None = None
        if message.include_cluster_authorized_operations:
            of_cluster = cluster_operations(access)
        nothing_left = not lists_all and not message.topics

        def amend(response: MetadataResponse) -> None:
            if lists_all:
                names = [topic.name or "" for topic in response.topics]
                visible = access.among(Operation.DESCRIBE, TOPIC, names, quiet=True)
                response.topics = [topic for topic in response.topics if topic.name in visible]
            elif nothing_left:
                response.topics = []  # an empty list stands for all topics in version 0
            if wants_operations:
                for topic in response.topics:
                    if topic.name is not None:
                        topic.topic_authorized_operations = access.operations(TOPIC, topic.name)
            response.topics.extend(refused)
            if of_cluster is not None:
                response.cluster_authorized_operations = of_cluster

        return amend

    def _refused(
        access: Access,
        message: MetadataRequest,
        asked: list[MetadataRequest.MetadataRequestTopic],
        *,
        may_create: bool,
    ) -> list[Topic]:
        """Take out of the request what the sender may not see, or not have made; what it hears instead."""
        by_id = named_by_id(asked, access.request.version)
        if by_id:
            asked = [topic for topic in asked if topic.topic_id != ZERO_UUID]
        names = {id(t): cache.topic_name(t.topic_id) if by_id else t.name for t in asked}
        wanted = {name for name in names.values() if name is not None}
        visible = access.among(Operation.DESCRIBE, TOPIC, wanted)
        no_such = {name for name in visible if cache.partitions(name) is None}
        uncreatable: set[str] = set()
        if may_create and no_such and not access.allows_cluster(Operation.CREATE, quiet=True):
            uncreatable = no_such - access.among(Operation.CREATE, TOPIC, no_such)
        refused = [
            Topic(error_code=TOPIC_DENIED, name=name, is_internal=name in INTERNAL_TOPICS)
            for name in uncreatable
        ]
        for name in wanted - visible:
            if by_id:
                # Ids are no secret.
                topic_id = cache.topic_id(name) or ZERO_UUID
                refused.append(Topic(error_code=TOPIC_DENIED, name=None, topic_id=topic_id))
            else:
                refused.append(Topic(error_code=TOPIC_DENIED, name=name))
        left = visible - uncreatable
        message.topics = [t for t in asked if names[id(t)] is None or names[id(t)] in left]
        return refused

    return guard


def at_the_controller(is_controller: Callable[[], bool]) -> None:
    """Raises NOT_CONTROLLER, which other brokers say before anything else; and here rather than later, when
    this one may have been elected."""
    if not is_controller():
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "")


def cluster_operations(access: Access) -> int:
    """What the sender may do to the cluster, where it may know that."""
    if access.allows_cluster(Operation.DESCRIBE):
        return access.operations(CLUSTER)
    return NOBODYS_OPERATIONS


def create_topics(is_controller: Callable[[], bool]) -> Guard:
    """CREATE on the cluster or on the topic; a topic's settings are told to whom may describe them."""

    def guard(access: Access, message: CreateTopicsRequest) -> Verdict:
        at_the_controller(is_controller)
        order = [topic.name for topic in message.topics]
        once = {name for name, times in Counter(order).items() if times == 1}
        names = dict.fromkeys(order)
        creatable = set(names)
        if not access.allows_cluster(Operation.CREATE, quiet=True):
            creatable = access.among(Operation.CREATE, TOPIC, names)
        describable = access.among(Operation.DESCRIBE_CONFIGS, TOPIC, names, quiet=True)
        denied = [t for t in message.topics if t.name not in creatable and t.name in once]
        answers = take_out(access, message, "topics", "topics", denied, TOPIC_DENIED, "Authorization failed.")

        def amend(response: CreateTopicsResponse) -> None:
            failed_before = {topic.name for topic in denied} | (names.keys() - once)
            if answers is not None:
                answers(response)
            for result in response.topics:
                if result.name in describable:
                    continue
                if result.name in failed_before:
                    result.topic_config_error_code = TOPIC_DENIED
                elif not result.error_code:
                    result.topic_config_error_code = TOPIC_DENIED
                    result.num_partitions = result.replication_factor = -1
                    result.configs = []
            in_order(response.topics, order)

        return amend

    return guard


def delete_topics(cache: MetadataCache, is_controller: Callable[[], bool], *, enabled: bool) -> Guard:
    """DELETE on the topic; one named by its id keeps its name to itself unless it may be described."""

    def guard(access: Access, message: DeleteTopicsRequest) -> Verdict:
        at_the_controller(is_controller)
        if not enabled:
            return None  # the handler says so
        if access.request.version < DELETE_BY_ID_FROM:
            return each(Operation.DELETE, TOPIC, "topic_names", "responses", name=str)(access, message)
        state = DeleteTopicsRequest.DeleteTopicState

        def name_of(topic: DeleteTopicsRequest.DeleteTopicState) -> str | None:
            return topic.name if topic.topic_id == ZERO_UUID else cache.topic_name(topic.topic_id)

        names = [name for topic in message.topics if (name := name_of(topic)) is not None]
        describable = access.among(Operation.DESCRIBE, TOPIC, names)
        deletable = access.among(Operation.DELETE, TOPIC, names)
        denied = [
            topic
            for topic in message.topics
            # Both an id and a name are the handler's to refuse.
            if (topic.name is None or topic.topic_id == ZERO_UUID)
            and (name := name_of(topic)) is not None
            and (name not in deletable or (topic.topic_id != ZERO_UUID and name not in describable))
        ]
        # The controller may know more topics than the cache by which this was judged.
        unknown = [t for t in message.topics if t.topic_id != ZERO_UUID and t.name is None and not name_of(t)]
        if not denied and not unknown:
            return None
        refused = set(map(id, chain(denied, unknown)))
        message.topics = [topic for topic in message.topics if id(topic) not in refused]
        shown = [
            state(
                name=name_of(topic) if topic.topic_id == ZERO_UUID or name_of(topic) in describable else None,
                topic_id=topic.topic_id,
            )
            for topic in denied
        ]
        errors = refusals(access, message, "topics", "responses", shown, TOPIC_DENIED)
        errors += refusals(access, message, "topics", "responses", unknown, ErrorCode.UNKNOWN_TOPIC_ID)

        def amend(response: DeleteTopicsResponse) -> None:
            response.responses.extend(errors)

        return amend

    return guard


def create_partitions(is_controller: Callable[[], bool]) -> Guard:
    """ALTER on the topic; a topic that is named twice is the handler's to refuse."""

    def guard(access: Access, message: CreatePartitionsRequest) -> Verdict:
        at_the_controller(is_controller)
        times = Counter(topic.name for topic in message.topics)
        single = [topic for topic in message.topics if times[topic.name] == 1]
        allowed = access.among(Operation.ALTER, TOPIC, map(NAME, single))
        denied = [topic for topic in single if topic.name not in allowed]
        detail = "The topic authorization is failed."
        return take_out(access, message, "topics", "results", denied, TOPIC_DENIED, detail)

    return guard


def offset_for_leader_epoch(access: Access, message: OffsetForLeaderEpochRequest) -> Verdict:
    """Followers have CLUSTER_ACTION, consumers DESCRIBE on the topic."""
    if access.allows_cluster(Operation.CLUSTER_ACTION, quiet=True):
        return None
    by_topic = each(Operation.DESCRIBE, TOPIC, "topics", "topics", name=lambda item: str(item.topic))
    return by_topic(access, message)


def describe_producers(access: Access, message: DescribeProducersRequest) -> Amend | None:
    """READ on the topic, in the request's order; what is no name of a topic is the handler's to refuse."""
    order = [topic.name for topic in message.topics]
    allowed = access.among(Operation.READ, TOPIC, filter(is_legal_topic_name, order))
    denied = [t for t in message.topics if t.name not in allowed and is_legal_topic_name(t.name)]
    answers = take_out(access, message, "topics", "topics", denied, TOPIC_DENIED, WORDS[TOPIC_DENIED])
    if answers is None:
        return None

    def amend(response: DescribeProducersResponse) -> None:
        answers(response)
        in_order(response.topics, order)

    return amend


def init_producer_id(access: Access, message: InitProducerIdRequest) -> None:
    """WRITE on the transactional id; without one IDEMPOTENT_WRITE, or WRITE on any topic (KIP-679)."""
    if message.transactional_id is not None:
        access.require(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, message.transactional_id)
    elif not access.allows_cluster(Operation.IDEMPOTENT_WRITE, quiet=True) and not access.allows_some(
        Operation.WRITE, TOPIC
    ):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "")


def produce(access: Access, message: ProduceRequest) -> None:
    """Transactional batches need WRITE on the transactional id. About topics the handler itself asks."""
    if not any(_is_transactional(p.records) for t in message.topic_data for p in t.partition_data):
        return
    name = message.transactional_id
    if name is None or not access.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name):
        if message.acks == 0:
            access.request.connection.close("no WRITE on the transactional id, and no answer to say it in")
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "")


def _is_transactional(records: Any) -> bool:
    """Whether the first batch is: requests of versions that know transactions have one."""
    if records is None or len(records) < RECORD_BATCH_OVERHEAD:
        return False
    magic, attributes = _MAGIC_AND_ATTRIBUTES.unpack_from(records)
    return magic == MAGIC_V2 and bool(attributes & TRANSACTIONAL_FLAG)
