"""Authorization checks of the APIs about topics and their records: Metadata, CreateTopics, DeleteTopics,
CreatePartitions, OffsetForLeaderEpoch, DescribeProducers, InitProducerId and the transactional side of
Produce.

Topics without DESCRIBE are not listed; if the request names one, the response does not reveal whether it
exists. Called through `ottla.server.authorization.checks_by_api`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from struct import Struct
from typing import Any, Final

from ottla.metadata.cache import MetadataCache
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import MAGIC_V2, RECORD_BATCH_OVERHEAD, TRANSACTIONAL_FLAG
from ottla.protocol.topics import INTERNAL_TOPICS, is_legal_topic_name
from ottla.protocol.types import ZERO_UUID
from ottla.security.acls import Operation, ResourceType
from ottla.server.authorization.auth_helper import DENIED_MESSAGES, AuthHelper
from ottla.server.authorization.checks import (
    NAME,
    AuthorizationCheck,
    CheckResult,
    ResponseChange,
    each,
    error_rows,
    exclude_denied,
    sort_as_requested,
)

TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER
TOPIC_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_OPERATIONS: Final = 0
DELETE_BY_ID_FROM: Final = 6
METADATA_BY_ID_FROM: Final = 12
"""Versions 10 and 11 have the field, and Kafka refuses ids and null names in them."""
_MAGIC_AND_ATTRIBUTES: Final = Struct(">16xb4xh")

Topic = m.MetadataResponse.MetadataResponseTopic


def named_by_id(topics: Sequence[m.MetadataRequest.MetadataRequestTopic], version: int) -> bool:
    """Whether a Metadata request names topics by their ids. Raises INVALID_REQUEST."""
    by_id = any(topic.topic_id != ZERO_UUID for topic in topics)
    if version < METADATA_BY_ID_FROM and (by_id or any(topic.name is None for topic in topics)):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Metadata requests of version {version} name topics by their names, not by topic ids",
        )
    return by_id


def metadata(cache: MetadataCache, *, auto_create: bool) -> AuthorizationCheck:
    """DESCRIBE on each topic; for automatic creation, CREATE on the cluster or on the topic."""

    def check(auth: AuthHelper, message: m.MetadataRequest) -> CheckResult:
        requested = message.topics
        lists_all = requested is None or (auth.request.version == 0 and not requested)
        refused: list[Topic] = []
        if requested is not None and not lists_all:
            may_create = auto_create and message.allow_auto_topic_creation
            refused = _refused(auth, message, requested, may_create=may_create)
        wants_operations = message.include_topic_authorized_operations
        of_cluster: int | None = None
        if message.include_cluster_authorized_operations:
            of_cluster = cluster_operations(auth)
        nothing_left = not lists_all and not message.topics

        def amend(response: m.MetadataResponse) -> None:
            if lists_all:
                names = [topic.name or "" for topic in response.topics]
                visible = auth.filter_authorized(Operation.DESCRIBE, TOPIC, names, log_denied=False)
                response.topics = [topic for topic in response.topics if topic.name in visible]
            elif nothing_left:
                response.topics = []  # an empty list stands for all topics in version 0
            if wants_operations:
                for topic in response.topics:
                    if topic.name is not None:
                        topic.topic_authorized_operations = auth.authorized_operations(TOPIC, topic.name)
            response.topics.extend(refused)
            if of_cluster is not None:
                response.cluster_authorized_operations = of_cluster

        return amend

    def _refused(
        auth: AuthHelper,
        message: m.MetadataRequest,
        requested: list[m.MetadataRequest.MetadataRequestTopic],
        *,
        may_create: bool,
    ) -> list[Topic]:
        """Remove from the request the topics that the sender may not describe or create; return their
        rows."""
        by_id = named_by_id(requested, auth.request.version)
        if by_id:
            requested = [topic for topic in requested if topic.topic_id != ZERO_UUID]
        names = {id(t): cache.topic_name(t.topic_id) if by_id else t.name for t in requested}
        wanted = {name for name in names.values() if name is not None}
        visible = auth.filter_authorized(Operation.DESCRIBE, TOPIC, wanted)
        no_such = {name for name in visible if cache.partitions(name) is None}
        uncreatable: set[str] = set()
        if may_create and no_such and not auth.authorize_cluster(Operation.CREATE, log_denied=False):
            uncreatable = no_such - auth.filter_authorized(Operation.CREATE, TOPIC, no_such)
        refused = [
            Topic(error_code=TOPIC_DENIED, name=name, is_internal=name in INTERNAL_TOPICS)
            for name in sorted(uncreatable)
        ]
        for name in sorted(wanted - visible):
            if by_id:
                # As in Kafka, the response shows the topic id.
                topic_id = cache.topic_id(name) or ZERO_UUID
                refused.append(Topic(error_code=TOPIC_DENIED, name=None, topic_id=topic_id))
            else:
                refused.append(Topic(error_code=TOPIC_DENIED, name=name))
        left = visible - uncreatable
        message.topics = [t for t in requested if names[id(t)] is None or names[id(t)] in left]
        return refused

    return check


def require_controller(is_controller: Callable[[], bool]) -> None:
    """Raises NOT_CONTROLLER. Checked before authorization, as in Kafka; a later check could follow an
    election."""
    if not is_controller():
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "")


def cluster_operations(auth: AuthHelper) -> int:
    """The sender's authorized operations on the cluster; none without DESCRIBE on it."""
    if auth.authorize_cluster(Operation.DESCRIBE):
        return auth.authorized_operations(CLUSTER)
    return NO_OPERATIONS


def create_topics(is_controller: Callable[[], bool]) -> AuthorizationCheck:
    """CREATE on the cluster or on the topic; the settings in the response need DESCRIBE_CONFIGS."""

    def check(auth: AuthHelper, message: m.CreateTopicsRequest) -> CheckResult:
        require_controller(is_controller)
        order = [topic.name for topic in message.topics]
        once = {name for name, times in Counter(order).items() if times == 1}
        names = dict.fromkeys(order)
        creatable = set(names)
        if not auth.authorize_cluster(Operation.CREATE, log_denied=False):
            creatable = auth.filter_authorized(Operation.CREATE, TOPIC, names)
        describable = auth.filter_authorized(Operation.DESCRIBE_CONFIGS, TOPIC, names, log_denied=False)
        denied = [t for t in message.topics if t.name not in creatable and t.name in once]
        add_errors = exclude_denied(
            auth, message, "topics", "topics", denied, TOPIC_DENIED, "Authorization failed."
        )

        def amend(response: m.CreateTopicsResponse) -> None:
            failed_before = {topic.name for topic in denied} | (names.keys() - once)
            if add_errors is not None:
                add_errors(response)
            for result in response.topics:
                if result.name in describable:
                    continue
                if result.name in failed_before:
                    result.topic_config_error_code = TOPIC_DENIED
                elif not result.error_code:
                    result.topic_config_error_code = TOPIC_DENIED
                    result.num_partitions = result.replication_factor = -1
                    result.configs = []
            sort_as_requested(response.topics, order)

        return amend

    return check


def delete_topics(
    cache: MetadataCache, is_controller: Callable[[], bool], *, enabled: bool
) -> AuthorizationCheck:
    """DELETE on the topic; for a topic named by its id the response has the name only with DESCRIBE."""

    def check(auth: AuthHelper, message: m.DeleteTopicsRequest) -> CheckResult:
        require_controller(is_controller)
        if not enabled:
            return None  # the handler responds with the error
        if auth.request.version < DELETE_BY_ID_FROM:
            return each(Operation.DELETE, TOPIC, "topic_names", "responses", name=str)(auth, message)
        state = m.DeleteTopicsRequest.DeleteTopicState

        def name_of(topic: m.DeleteTopicsRequest.DeleteTopicState) -> str | None:
            return topic.name if topic.topic_id == ZERO_UUID else cache.topic_name(topic.topic_id)

        names = [name for topic in message.topics if (name := name_of(topic)) is not None]
        describable = auth.filter_authorized(Operation.DESCRIBE, TOPIC, names)
        deletable = auth.filter_authorized(Operation.DELETE, TOPIC, names)
        denied = [
            topic
            for topic in message.topics
            # The handler rejects a topic with both an id and a name.
            if (topic.name is None or topic.topic_id == ZERO_UUID)
            and (name := name_of(topic)) is not None
            and (name not in deletable or (topic.topic_id != ZERO_UUID and name not in describable))
        ]
        # The controller may know topics that the metadata cache, used for this check, does not have yet.
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
        errors = error_rows(auth, message, "topics", "responses", shown, TOPIC_DENIED)
        errors += error_rows(auth, message, "topics", "responses", unknown, ErrorCode.UNKNOWN_TOPIC_ID)

        def amend(response: m.DeleteTopicsResponse) -> None:
            response.responses.extend(errors)

        return amend

    return check


def create_partitions(is_controller: Callable[[], bool]) -> AuthorizationCheck:
    """ALTER on the topic; the handler rejects duplicate topics."""

    def check(auth: AuthHelper, message: m.CreatePartitionsRequest) -> CheckResult:
        require_controller(is_controller)
        times = Counter(topic.name for topic in message.topics)
        single = [topic for topic in message.topics if times[topic.name] == 1]
        allowed = auth.filter_authorized(Operation.ALTER, TOPIC, map(NAME, single))
        denied = [topic for topic in single if topic.name not in allowed]
        detail = "The topic authorization is failed."
        return exclude_denied(auth, message, "topics", "results", denied, TOPIC_DENIED, detail)

    return check


def offset_for_leader_epoch(auth: AuthHelper, message: m.OffsetForLeaderEpochRequest) -> CheckResult:
    """CLUSTER_ACTION on the cluster (followers), or DESCRIBE on the topic (consumers)."""
    if auth.authorize_cluster(Operation.CLUSTER_ACTION, log_denied=False):
        return None
    by_topic = each(Operation.DESCRIBE, TOPIC, "topics", "topics", name=lambda item: str(item.topic))
    return by_topic(auth, message)


def describe_producers(auth: AuthHelper, message: m.DescribeProducersRequest) -> ResponseChange | None:
    """READ on the topic, in the request's order; the handler rejects illegal topic names."""
    order = [topic.name for topic in message.topics]
    allowed = auth.filter_authorized(Operation.READ, TOPIC, filter(is_legal_topic_name, order))
    denied = [t for t in message.topics if t.name not in allowed and is_legal_topic_name(t.name)]
    add_errors = exclude_denied(
        auth, message, "topics", "topics", denied, TOPIC_DENIED, DENIED_MESSAGES[TOPIC_DENIED]
    )
    if add_errors is None:
        return None

    def amend(response: m.DescribeProducersResponse) -> None:
        add_errors(response)
        sort_as_requested(response.topics, order)

    return amend


def init_producer_id(auth: AuthHelper, message: m.InitProducerIdRequest) -> None:
    """WRITE on the transactional id; without one IDEMPOTENT_WRITE, or WRITE on any topic (KIP-679)."""
    if message.transactional_id is not None:
        auth.require(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, message.transactional_id)
    elif not auth.authorize_cluster(
        Operation.IDEMPOTENT_WRITE, log_denied=False
    ) and not auth.authorize_by_resource_type(Operation.WRITE, TOPIC):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "")


def produce(auth: AuthHelper, message: m.ProduceRequest) -> None:
    """Transactional batches need WRITE on the transactional id. The handler checks the topics."""
    if not any(_is_transactional(p.records) for t in message.topic_data for p in t.partition_data):
        return
    name = message.transactional_id
    if name is None or not auth.authorize(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name):
        if message.acks == 0:
            auth.request.connection.close(
                "no WRITE on the transactional id, and acks=0 has no error response"
            )
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "")


def _is_transactional(records: Any) -> bool:
    """Whether the first batch is transactional; requests that can be have only one."""
    if records is None or len(records) < RECORD_BATCH_OVERHEAD:
        return False
    magic, attributes = _MAGIC_AND_ATTRIBUTES.unpack_from(records)
    return magic == MAGIC_V2 and bool(attributes & TRANSACTIONAL_FLAG)
