"""CreateTopics 0-7, DeleteTopics 0-6 and CreatePartitions 0-3 in the controller.

Called through `Controller`. Each topic of a request succeeds or fails by itself. `charge` records partitions
that are to be created or deleted in the client's controller mutation quota, and raises KafkaError if the
quota is exceeded (KIP-599). As in Kafka's ZooKeeper mode, the create-topic policy does not apply to
CreatePartitions.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ottla.controller import topic_deletion, topics
from ottla.controller.active_controller import (
    NOT_CONTROLLER_MESSAGE,
    ActiveController,
    ControllerInterface,
    run_or_error,
)
from ottla.controller.context import ControllerContext, Topic
from ottla.controller.effects import Effects
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
from ottla.ports import random_uuid
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.types import ZERO_UUID

_DELETION_DISABLED_SINCE = 3
_BY_ID_SINCE = 6

Acknowledged = dict[int, "asyncio.Future[Any]"]
Charge = Callable[[int], None]
T = TypeVar("T")
_NOT_CONTROLLER = KafkaError(ErrorCode.NOT_CONTROLLER, NOT_CONTROLLER_MESSAGE)
_FAILED = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The controller failed; see the log of the controller.")


def no_quota(partitions: int) -> None:
    """The `charge` of requests without a quota, such as a broker's own."""


async def _outcome(
    controller: ControllerInterface, work: Callable[[ActiveController], Awaitable[T]]
) -> T | KafkaError:
    """The result of `work` in the active controller, or the error for every item of the request."""
    return await run_or_error(
        controller, work, lambda error: _NOT_CONTROLLER if error is ErrorCode.NOT_CONTROLLER else _FAILED
    )


async def _completed_in_time(
    controller: ControllerInterface,
    active: ActiveController,
    acknowledged: Acknowledged,
    condition: Callable[[ControllerContext], bool],
    timeout_ms: int,
) -> bool:
    """Wait for the condition, and for this broker's metadata cache to have it. False after the timeout."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    if not await active.wait_until(lambda: condition(active.context), timeout_ms / 1000):
        return False
    own = acknowledged.get(controller.broker_id)
    if own is None:
        return True
    await asyncio.wait([own], timeout=max(0.0, deadline - loop.time()))
    return own.done()


def _all_have_leaders(context: ControllerContext, names: Iterable[str]) -> bool:
    return all(
        tp in context.leaders
        for name in names
        if name in context.topics and name not in context.deletions
        for tp in context.topics[name].partitions()
    )


# CreateTopics


async def create_topics(
    controller: ControllerInterface, request: m.CreateTopicsRequest, charge: Charge
) -> m.CreateTopicsResponse:
    repeated = [name for name, count in Counter(t.name for t in request.topics).items() if count > 1]
    requested = [topic for topic in request.topics if topic.name not in repeated]
    results: dict[str, m.CreateTopicsResponse.CreatableTopicResult] = {
        name: _creation_error(name, KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
        for name in sorted(repeated)
    }

    async def work(active: ActiveController) -> tuple[ActiveController, Acknowledged, list[str]]:
        effects, created = Effects(), list[str]()
        for topic in requested:
            try:
                new = topics.validate_topic(
                    active.context,
                    topic,
                    default_partitions=controller.config.get_int("num.partitions"),
                    default_replication_factor=controller.config.get_int("default.replication.factor"),
                    random=controller.random.randrange,
                )
                problem = deletion_policy_problem(controller.config, new.configs)
                if problem is not None:
                    raise KafkaError(ErrorCode.INVALID_CONFIG, problem)
                await check(controller.create_topic_policy, _policy_metadata(topic, new))
                made = new.topic(ZERO_UUID if request.validate_only else random_uuid(controller.random))
                if not request.validate_only:
                    charge(len(new.assignments))
                    await _write_topic(active, made, new.configs)
            except KafkaError as error:
                results[topic.name] = _creation_error(topic.name, error)
                continue
            if not request.validate_only:
                topics.create_topic(active.context, effects, made)
                created.append(new.name)
            results[topic.name] = m.CreateTopicsResponse.CreatableTopicResult(
                name=new.name,
                topic_id=made.topic_id,
                error_message=None,
                num_partitions=len(new.assignments),
                replication_factor=new.replication_factor,
                configs=_effective_configs(controller.config, new),
            )
        return active, await active.apply(effects), created

    outcome = await _outcome(controller, work)
    if isinstance(outcome, KafkaError):
        results.update((topic.name, _creation_error(topic.name, outcome)) for topic in requested)
    else:
        active, acknowledged, created = outcome
        if created and not await _completed_in_time(
            controller,
            active,
            acknowledged,
            lambda context: _all_have_leaders(context, created),
            request.timeout_ms,
        ):
            late = KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, "Timed out while waiting for the leaders of the created topic."
            )
            results.update((name, _creation_error(name, late)) for name in created)
    return m.CreateTopicsResponse(topics=[results[topic.name] for topic in request.topics])


def _policy_metadata(
    requested: m.CreateTopicsRequest.CreatableTopic, new: topics.NewTopic
) -> CreateTopicMetadata:
    configs = {config.name: config.value for config in requested.configs}
    if requested.assignments:
        return CreateTopicMetadata(new.name, None, None, new.assignments, configs)
    return CreateTopicMetadata(new.name, len(new.assignments), new.replication_factor, None, configs)


def _creation_error(name: str, error: KafkaError) -> m.CreateTopicsResponse.CreatableTopicResult:
    return m.CreateTopicsResponse.CreatableTopicResult(
        name=name, error_code=error.code, error_message=error.message or None, configs=[]
    )


async def _write_topic(active: ActiveController, topic: Topic, configs: Mapping[str, str]) -> None:
    """Write the topic's configuration and its node in one multi; an existing configuration is replaced.

    Raises KafkaError if the topic is already in the store: ZooKeeper-based tools create topics there.
    """
    path, data = znodes.topic_config_path(topic.name), znodes.encode_config(configs)
    node = Create(znodes.topic_path(topic.name), znodes.encode_topic(topic.node()))
    for settings in (Create(path, data), SetData(path, data)):
        try:
            await active.fenced_multi([node, settings])
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
) -> list[m.CreateTopicsResponse.CreatableTopicConfigs]:
    """All configurations of the new topic with their sources (KIP-525)."""
    effective: list[m.CreateTopicsResponse.CreatableTopicConfigs] = []
    for name, default in sorted(topic_defaults(config).items()):
        source = ConfigSource.TOPIC
        if name not in new.configs:
            synonyms = topic_synonyms(config, name)
            source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
        effective.append(
            m.CreateTopicsResponse.CreatableTopicConfigs(
                name=name, value=new.configs.get(name, default), config_source=source
            )
        )
    return effective


# DeleteTopics


async def delete_topics(
    controller: ControllerInterface, request: m.DeleteTopicsRequest, version: int, charge: Charge
) -> m.DeleteTopicsResponse:
    requested = _topics_to_delete(request, version)
    if not controller.config["delete.topic.enable"]:
        code = (
            ErrorCode.TOPIC_DELETION_DISABLED
            if version >= _DELETION_DISABLED_SINCE
            else ErrorCode.INVALID_REQUEST
        )
        return _deletion_results(requested, KafkaError(code, "Topic deletion is disabled."))
    results: list[m.DeleteTopicsResponse.DeletableTopicResult] = []

    async def work(active: ActiveController) -> tuple[ActiveController, Acknowledged, list[str]]:
        context, effects = active.context, Effects()
        # Deletions that tools requested, and whose watch event has not been handled yet.
        topic_deletion.enqueue(context, effects, await active.store.children(znodes.DELETE_TOPICS))
        names: list[str] = []
        for topic in requested:
            result = _validate_deletion(context, topic, charge)
            results.append(result)
            if not result.error_code and result.name is not None:
                names.append(result.name)
        topic_deletion.request(context, effects, names)
        return active, await active.apply(effects), names

    outcome = await _outcome(controller, work)
    if isinstance(outcome, KafkaError):
        return _deletion_results(requested, outcome)
    active, acknowledged, names = outcome
    if names and not await _completed_in_time(
        controller,
        active,
        acknowledged,
        lambda context: all(_is_announced(context, name) for name in names),
        request.timeout_ms,
    ):
        for result in results:
            if not result.error_code:
                result.error_code = ErrorCode.REQUEST_TIMED_OUT
                result.error_message = "The topic is marked for deletion. Its deletion timed out."
    return m.DeleteTopicsResponse(responses=results)


def _topics_to_delete(
    request: m.DeleteTopicsRequest, version: int
) -> list[m.DeleteTopicsRequest.DeleteTopicState]:
    if version >= _BY_ID_SINCE:
        return request.topics
    return [m.DeleteTopicsRequest.DeleteTopicState(name=name) for name in request.topic_names]


def _validate_deletion(
    context: ControllerContext, requested: m.DeleteTopicsRequest.DeleteTopicState, charge: Charge
) -> m.DeleteTopicsResponse.DeletableTopicResult:
    result = m.DeleteTopicsResponse.DeletableTopicResult(name=requested.name, topic_id=requested.topic_id)
    by_id = requested.topic_id != ZERO_UUID
    if by_id == (requested.name is not None):
        result.error_code = ErrorCode.INVALID_REQUEST
        result.error_message = "A topic to delete must have either a name or an id."
        return result
    topic = context.topic_by_id(requested.topic_id) if by_id else context.topics.get(requested.name or "")
    if topic is None:
        result.error_code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        result.error_message = "The topic does not exist."
    else:
        result.name, result.topic_id = topic.name, topic.topic_id
        try:
            charge(len(topic.assignments))
        except KafkaError as error:
            result.error_code = error.code
    return result


def _is_announced(context: ControllerContext, name: str) -> bool:
    pending = context.deletions.get(name)
    return pending is None or pending.announced


def _deletion_results(
    requested: Sequence[m.DeleteTopicsRequest.DeleteTopicState], error: KafkaError
) -> m.DeleteTopicsResponse:
    return m.DeleteTopicsResponse(
        responses=[
            m.DeleteTopicsResponse.DeletableTopicResult(
                name=topic.name, topic_id=topic.topic_id, error_code=error.code, error_message=error.message
            )
            for topic in requested
        ]
    )


# CreatePartitions


async def create_partitions(
    controller: ControllerInterface, request: m.CreatePartitionsRequest, charge: Charge
) -> m.CreatePartitionsResponse:
    repeated = [name for name, count in Counter(t.name for t in request.topics).items() if count > 1]
    requested = [topic for topic in request.topics if topic.name not in repeated]
    duplicate = KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    results = {name: _partitions_result(name, duplicate) for name in sorted(repeated)}

    async def work(active: ActiveController) -> tuple[ActiveController, Acknowledged, list[str]]:
        effects, grown = Effects(), list[str]()
        for topic in requested:
            try:
                placed = topics.validate_partitions(active.context, topic)
                if not request.validate_only:
                    charge(len(placed))
            except KafkaError as error:
                results[topic.name] = _partitions_result(topic.name, error)
                continue
            results[topic.name] = _partitions_result(topic.name)
            if not request.validate_only:
                topics.add_partitions(active.context, effects, topic.name, placed)
                grown.append(topic.name)
        return active, await active.apply(effects), grown

    outcome = await _outcome(controller, work)
    if isinstance(outcome, KafkaError):
        results.update((topic.name, _partitions_result(topic.name, outcome)) for topic in requested)
    else:
        active, acknowledged, grown = outcome
        if grown and not await _completed_in_time(
            controller,
            active,
            acknowledged,
            lambda context: _all_have_leaders(context, grown),
            request.timeout_ms,
        ):
            late = KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, "Timed out waiting for the new partitions' leaders."
            )
            results.update((name, _partitions_result(name, late)) for name in grown)
    names = dict.fromkeys(topic.name for topic in request.topics)
    return m.CreatePartitionsResponse(results=[results[name] for name in names])


def _partitions_result(
    name: str, error: KafkaError | None = None
) -> m.CreatePartitionsResponse.CreatePartitionsTopicResult:
    row = m.CreatePartitionsResponse.CreatePartitionsTopicResult(name=name, error_message=None)
    if error is not None:
        row.error_code, row.error_message = error.code, error.message
    return row
