"""CreateTopics 0-7, DeleteTopics 0-6, CreatePartitions 0-3, as the controller answers them.

Called through `Controller`. Each topic of a request succeeds or fails by itself. `charge` counts partitions
that are about to be created or deleted against the client's quota, and raises KafkaError when they may not be
(KIP-599). As in Kafka's ZooKeeper mode, the create-topic policy is not asked for CreatePartitions.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ottla.controller import deletion, topics
from ottla.controller.effects import Effects
from ottla.controller.office import NotController, Office
from ottla.controller.state import ClusterState, Topic, new_topic_id
from ottla.controller.term import Term
from ottla.metadata import znodes
from ottla.metadata.config import (
    BrokerConfig,
    ConfigSource,
    deletion_policy_problem,
    topic_defaults,
    topic_synonyms,
)
from ottla.metadata.policies import CreateTopicMetadata, check
from ottla.metadata.store import Create, NodeExists, SetData, StoreConflict
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from ottla.protocol.types import ZERO_UUID

_DELETION_DISABLED_SINCE = 3
_BY_ID_SINCE = 6

Acknowledged = dict[int, "asyncio.Future[Any]"]
Charge = Callable[[int], None]
T = TypeVar("T")
_NOT_CONTROLLER = KafkaError(ErrorCode.NOT_CONTROLLER, "This is not the correct controller for this cluster.")
_FAILED = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The controller failed; its log tells more.")


def nobody_pays(partitions: int) -> None:
    """For what brokers do by themselves."""


async def _outcome(office: Office, work: Callable[[Term], Awaitable[T]]) -> T | KafkaError:
    """Run `work` in office; the error that every item of the request gets if that is impossible."""
    try:
        return await office.in_office(work)
    except NotController:
        return _NOT_CONTROLLER
    except Exception:  # logged where it happened
        return _FAILED


async def _done_in_time(
    office: Office,
    term: Term,
    acknowledged: Acknowledged,
    condition: Callable[[ClusterState], bool],
    timeout_ms: int,
) -> bool:
    """Wait until the state is as promised, and this broker's metadata shows it."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    if not await term.until(lambda: condition(term.state), timeout_ms / 1000):
        return False
    own = acknowledged.get(office.broker_id)
    if own is None:
        return True
    await asyncio.wait([own], timeout=max(0.0, deadline - loop.time()))
    return own.done()


def _all_led(state: ClusterState, names: Iterable[str]) -> bool:
    return all(
        tp in state.leaders
        for name in names
        if name in state.topics and name not in state.deletions
        for tp in state.topics[name].partitions()
    )


# CreateTopics


async def create_topics(office: Office, request: CreateTopicsRequest, charge: Charge) -> CreateTopicsResponse:
    repeated = {name for name, count in Counter(t.name for t in request.topics).items() if count > 1}
    asked = [topic for topic in request.topics if topic.name not in repeated]
    results: dict[str, CreateTopicsResponse.CreatableTopicResult] = {
        name: _failed_creation(name, KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
        for name in repeated
    }

    async def work(term: Term) -> tuple[Term, Acknowledged, list[str]]:
        effects, created = Effects(), list[str]()
        for topic in asked:
            try:
                new = topics.judge_topic(
                    term.state,
                    topic,
                    default_partitions=office.config.get_int("num.partitions"),
                    default_replication_factor=office.config.get_int("default.replication.factor"),
                    random=office.random_below,
                )
                problem = deletion_policy_problem(office.config, new.configs)
                if problem is not None:
                    raise KafkaError(ErrorCode.INVALID_CONFIG, problem)
                await check(office.create_topic_policy, _policy_metadata(topic, new))
                made = new.topic(ZERO_UUID if request.validate_only else new_topic_id())
                if not request.validate_only:
                    charge(len(new.assignments))
                    await _write_topic(term, made, new.configs)
            except KafkaError as error:
                results[topic.name] = _failed_creation(topic.name, error)
                continue
            if not request.validate_only:
                topics.create_topic(term.state, effects, made)
                created.append(new.name)
            results[topic.name] = CreateTopicsResponse.CreatableTopicResult(
                name=new.name,
                topic_id=made.topic_id,
                error_message=None,
                num_partitions=len(new.assignments),
                replication_factor=new.replication_factor,
                configs=_effective_configs(office.config, new),
            )
        return term, await term.carry_out(effects), created

    outcome = await _outcome(office, work)
    if isinstance(outcome, KafkaError):
        results.update((topic.name, _failed_creation(topic.name, outcome)) for topic in asked)
    else:
        term, acknowledged, created = outcome
        if created and not await _done_in_time(
            office, term, acknowledged, lambda state: _all_led(state, created), request.timeout_ms
        ):
            late = KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, "The topic is created, but not all is ready within the time-out."
            )
            results.update((name, _failed_creation(name, late)) for name in created)
    return CreateTopicsResponse(topics=[results[topic.name] for topic in request.topics])


def _policy_metadata(asked: CreateTopicsRequest.CreatableTopic, new: topics.NewTopic) -> CreateTopicMetadata:
    configs = {config.name: config.value for config in asked.configs}
    if asked.assignments:
        return CreateTopicMetadata(new.name, None, None, new.assignments, configs)
    return CreateTopicMetadata(new.name, len(new.assignments), new.replication_factor, None, configs)


def _failed_creation(name: str, error: KafkaError) -> CreateTopicsResponse.CreatableTopicResult:
    return CreateTopicsResponse.CreatableTopicResult(
        name=name, error_code=error.code, error_message=error.message or None, configs=[]
    )


async def _write_topic(term: Term, topic: Topic, configs: Mapping[str, str]) -> None:
    """Write the topic's settings and its node together; settings that are there already are replaced.

    Raises KafkaError when the topic is in the store already: a Java broker in the cluster creates by itself.
    """
    path, data = znodes.topic_config_path(topic.name), znodes.encode_config(configs)
    node = Create(znodes.topic_path(topic.name), znodes.encode_topic(topic.node()))
    for settings in (Create(path, data), SetData(path, data)):
        try:
            await term.fenced([node, settings])
            return
        except StoreConflict as conflict:
            if not isinstance(conflict.cause, NodeExists):
                raise
            if conflict.failed == node:
                raise KafkaError(
                    ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists."
                ) from conflict


def _effective_configs(
    config: BrokerConfig, new: topics.NewTopic
) -> list[CreateTopicsResponse.CreatableTopicConfigs]:
    """All settings of the new topic, and where each comes from (KIP-525)."""
    effective: list[CreateTopicsResponse.CreatableTopicConfigs] = []
    for name, default in sorted(topic_defaults(config).items()):
        source = ConfigSource.TOPIC
        if name not in new.configs:
            synonyms = topic_synonyms(config, name)
            source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
        effective.append(
            CreateTopicsResponse.CreatableTopicConfigs(
                name=name, value=new.configs.get(name, default), config_source=source
            )
        )
    return effective


# DeleteTopics


async def delete_topics(
    office: Office, request: DeleteTopicsRequest, version: int, charge: Charge
) -> DeleteTopicsResponse:
    asked = _topics_to_delete(request, version)
    if not office.config["delete.topic.enable"]:
        code = (
            ErrorCode.TOPIC_DELETION_DISABLED
            if version >= _DELETION_DISABLED_SINCE
            else ErrorCode.INVALID_REQUEST
        )
        return _deletions(asked, KafkaError(code, "Topic deletion is disabled (delete.topic.enable)."))
    results: list[DeleteTopicsResponse.DeletableTopicResult] = []

    async def work(term: Term) -> tuple[Term, Acknowledged, list[str]]:
        state, effects = term.state, Effects()
        # Others may have asked for a deletion that we have not heard of yet.
        deletion.enqueue(state, effects, await term.store.children(znodes.DELETE_TOPICS))
        names: list[str] = []
        for topic in asked:
            result = _judge_deletion(state, topic, charge)
            results.append(result)
            if not result.error_code and result.name is not None:
                names.append(result.name)
        deletion.request(state, effects, names)
        return term, await term.carry_out(effects), names

    outcome = await _outcome(office, work)
    if isinstance(outcome, KafkaError):
        return _deletions(asked, outcome)
    term, acknowledged, names = outcome
    if names and not await _done_in_time(
        office,
        term,
        acknowledged,
        lambda state: all(_gone_from_metadata(state, name) for name in names),
        request.timeout_ms,
    ):
        for result in results:
            if not result.error_code:
                result.error_code = ErrorCode.REQUEST_TIMED_OUT
                result.error_message = "The topic is marked for deletion, but still there after the time-out."
    return DeleteTopicsResponse(responses=results)


def _topics_to_delete(
    request: DeleteTopicsRequest, version: int
) -> list[DeleteTopicsRequest.DeleteTopicState]:
    if version >= _BY_ID_SINCE:
        return request.topics
    return [DeleteTopicsRequest.DeleteTopicState(name=name) for name in request.topic_names]


def _judge_deletion(
    state: ClusterState, asked: DeleteTopicsRequest.DeleteTopicState, charge: Charge
) -> DeleteTopicsResponse.DeletableTopicResult:
    result = DeleteTopicsResponse.DeletableTopicResult(name=asked.name, topic_id=asked.topic_id)
    by_id = asked.topic_id != ZERO_UUID
    if by_id == (asked.name is not None):
        result.error_code = ErrorCode.INVALID_REQUEST
        result.error_message = "A topic to delete has either a name or an id."
        return result
    topic = state.topic_by_id(asked.topic_id) if by_id else state.topics.get(asked.name or "")
    if topic is None:
        result.error_code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        result.error_message = "There is no such topic."
    else:
        result.name, result.topic_id = topic.name, topic.topic_id
        try:
            charge(len(topic.assignments))
        except KafkaError as error:
            result.error_code = error.code
    return result


def _gone_from_metadata(state: ClusterState, name: str) -> bool:
    pending = state.deletions.get(name)
    return pending is None or pending.announced


def _deletions(
    asked: Sequence[DeleteTopicsRequest.DeleteTopicState], error: KafkaError
) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(
        responses=[
            DeleteTopicsResponse.DeletableTopicResult(
                name=topic.name, topic_id=topic.topic_id, error_code=error.code, error_message=error.message
            )
            for topic in asked
        ]
    )


# CreatePartitions


async def create_partitions(
    office: Office, request: CreatePartitionsRequest, charge: Charge
) -> CreatePartitionsResponse:
    repeated = {name for name, count in Counter(t.name for t in request.topics).items() if count > 1}
    asked = [topic for topic in request.topics if topic.name not in repeated]
    twice = KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    results = {name: _growth(name, twice) for name in repeated}

    async def work(term: Term) -> tuple[Term, Acknowledged, list[str]]:
        effects, grown = Effects(), list[str]()
        for topic in asked:
            try:
                placed = topics.judge_partitions(term.state, topic)
                if not request.validate_only:
                    charge(len(placed))
            except KafkaError as error:
                results[topic.name] = _growth(topic.name, error)
                continue
            results[topic.name] = _growth(topic.name)
            if not request.validate_only:
                topics.add_partitions(term.state, effects, topic.name, placed)
                grown.append(topic.name)
        return term, await term.carry_out(effects), grown

    outcome = await _outcome(office, work)
    if isinstance(outcome, KafkaError):
        results.update((topic.name, _growth(topic.name, outcome)) for topic in asked)
    else:
        term, acknowledged, grown = outcome
        if grown and not await _done_in_time(
            office, term, acknowledged, lambda state: _all_led(state, grown), request.timeout_ms
        ):
            late = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "Not all new partitions have a leader yet.")
            results.update((name, _growth(name, late)) for name in grown)
    names = dict.fromkeys(topic.name for topic in request.topics)
    return CreatePartitionsResponse(results=[results[name] for name in names])


def _growth(
    name: str, error: KafkaError | None = None
) -> CreatePartitionsResponse.CreatePartitionsTopicResult:
    row = CreatePartitionsResponse.CreatePartitionsTopicResult(name=name, error_message=None)
    if error is not None:
        row.error_code, row.error_message = error.code, error.message
    return row
