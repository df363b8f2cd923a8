"""AlterConfigs 0 to 2 and IncrementalAlterConfigs 0 to 1, of topics and brokers; of loggers the latter only.

Behaviour: AlterConfigs replaces all settings of a resource, IncrementalAlterConfigs changes single settings
(set, delete, and for lists append and subtract). Any broker alters topics and, under the name "", the
settings of all brokers; only the broker itself alters a broker's own settings. As in Kafka's ZooKeeper mode
the result is written to /config with a change notification, which every broker follows. The whole result is
validated first: INVALID_CONFIG for a topic, INVALID_REQUEST for a broker (KAFKA-13609), with the problem.

Left out on purpose: CLIENT_METRICS (KIP-714), INVALID_REQUEST; `listeners`, `advertised.listeners` and
`listener.security.protocol.map` do not change while a broker runs. Other security settings are stored as in
Kafka; except for key and trust stores, they take effect when the broker restarts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from ottla.metadata.cache import MetadataCache
from ottla.metadata.config import (
    BROKER_CONFIGS,
    TOPIC_CONFIGS,
    ConfigDef,
    ConfigType,
    deletion_policy_problem,
    topic_config_problem,
)
from ottla.metadata.dynamic_broker_config import ConfigRejected, DynamicBrokerConfig
from ottla.metadata.dynamic_configs import DynamicConfigs
from ottla.metadata.policies import AlterConfigMetadata, Policy, check
from ottla.metadata.stored_passwords import NoSecret
from ottla.metadata.znodes import DEFAULT_ENTITY
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.topics import is_legal_topic_name
from ottla.server.dispatch.dispatcher import Request, Route
from ottla.server.handlers.admin import loggers
from ottla.server.handlers.admin.configs import BROKER, BROKER_LOGGER, TOPIC

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3  # operations of KIP-339

Change = m.IncrementalAlterConfigsRequest.AlterableConfig
Setting = m.AlterConfigsRequest.AlterableConfig
Resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource | m.AlterConfigsRequest.AlterConfigsResource
Row = TypeVar("Row")


class AlterConfigsHandler:
    def __init__(
        self,
        settings: DynamicBrokerConfig,
        cache: MetadataCache,
        stored: DynamicConfigs,
        policy: Policy | None = None,
    ) -> None:
        """`policy`: of alter.config.policy.class.name."""
        self._settings = settings
        self._policy = policy
        self._cache = cache
        self._stored = stored
        # Serializes read, change and write: concurrent requests would lose changes.
        self._alone = asyncio.Lock()

    def routes(self) -> list[Route]:
        return [
            Route(m.AlterConfigsRequest, self.alter, _alter_error),
            Route(m.IncrementalAlterConfigsRequest, self.incremental_alter, _incremental_alter_error),
        ]

    async def alter(self, request: Request) -> m.AlterConfigsResponse:
        message = request.decode(m.AlterConfigsRequest)
        row = m.AlterConfigsResponse.AlterConfigsResourceResponse
        return m.AlterConfigsResponse(responses=await self._alter_all(message, row))

    async def incremental_alter(self, request: Request) -> m.IncrementalAlterConfigsResponse:
        message = request.decode(m.IncrementalAlterConfigsRequest)
        row = m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
        return m.IncrementalAlterConfigsResponse(responses=await self._alter_all(message, row))

    async def _alter_all(
        self, message: m.AlterConfigsRequest | m.IncrementalAlterConfigsRequest, row: Callable[..., Row]
    ) -> list[Row]:
        """Alter each resource; the rows of the response have the results."""
        repeated = _repeated(message.resources)
        rows: list[Row] = []
        for resource in message.resources:
            error = await self._outcome(resource, repeated, validate_only=message.validate_only)
            if error is None:
                rows.append(_row(row, resource, ErrorCode.NONE, None))
            else:
                rows.append(_row(row, resource, error.code, error.message or None))
        return rows

    async def _outcome(
        self, resource: Resource, repeated: set[tuple[int, str]], *, validate_only: bool
    ) -> KafkaError | None:
        try:
            if (resource.resource_type, resource.resource_name) in repeated:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            _check_form(resource.configs)
            async with self._alone:
                await self._alter(resource, validate_only=validate_only)
        except KafkaError as error:
            return error
        except ConfigRejected as refusal:
            return KafkaError(ErrorCode.INVALID_REQUEST, str(refusal))
        return None

    async def _alter(self, resource: Resource, *, validate_only: bool) -> None:
        kind, name = resource.resource_type, resource.resource_name
        if kind == TOPIC:
            await self._alter_topic(name, resource, validate_only=validate_only)
        elif kind == BROKER:
            await self._alter_broker(name, resource, validate_only=validate_only)
        elif kind == BROKER_LOGGER and isinstance(
            resource, m.IncrementalAlterConfigsRequest.AlterConfigsResource
        ):
            check_node_id(name, self._settings.config.broker_id)
            loggers.alter(resource.configs, validate_only=validate_only)
        else:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")

    async def _alter_topic(self, topic: str, resource: Resource, *, validate_only: bool) -> None:
        if topic == "":
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        if not is_legal_topic_name(topic):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic}' does not exist.")
        new = _changed(await self._stored.topic_config(topic), resource, TOPIC_CONFIGS)
        if self._cache.partitions(topic) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic}' does not exist.")
        problem = topic_config_problem(topic, new) or deletion_policy_problem(self._settings.config, new)
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, problem)
        await self._check_policy("TOPIC", resource)
        if not validate_only:
            await self._stored.alter_topic_config(topic, new)

    async def _alter_broker(self, name: str, resource: Resource, *, validate_only: bool) -> None:
        per_broker = name != ""
        if per_broker:
            check_node_id(name, self._settings.config.broker_id)
        entity = str(self._settings.config.broker_id) if per_broker else DEFAULT_ENTITY
        present = self._settings.usable(await self._stored.broker_config(entity), per_broker=per_broker)
        new = _changed(present, resource, BROKER_CONFIGS)
        self._settings.check(new, per_broker=per_broker)
        await self._check_policy("BROKER", resource)
        if validate_only:
            return
        try:
            to_store = self._settings.to_store(new)
        except NoSecret as problem:
            where = f"ConfigResource(type=BROKER, name='{name}')"
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"Invalid config value for resource {where}: {problem}"
            ) from None
        await self._stored.alter_broker_config(entity, to_store)

    async def _check_policy(self, kind: str, resource: Resource) -> None:
        configs = {change.name: change.value for change in resource.configs}
        await check(self._policy, AlterConfigMetadata(kind, resource.resource_name, configs))


def check_node_id(name: str, broker_id: int) -> None:
    """Raises INVALID_REQUEST unless `name` is this broker's id."""
    try:
        same = int(name) == broker_id
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}"
        ) from None
    if not same:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {broker_id}, but received {name}"
        )


def _repeated(resources: Iterable[Resource]) -> set[tuple[int, str]]:
    seen: set[tuple[int, str]] = set()
    twice: set[tuple[int, str]] = set()
    for resource in resources:
        key = (resource.resource_type, resource.resource_name)
        (twice if key in seen else seen).add(key)
    return twice


def _check_form(changes: Sequence[Change] | Sequence[Setting]) -> None:
    names = [change.name for change in changes]
    if len(set(names)) != len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    without_value = [
        change.name
        for change in changes
        if change.value is None and not (isinstance(change, Change) and change.config_operation == DELETE)
    ]
    if without_value:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(without_value)}"
        )


def _changed(current: Mapping[str, str], resource: Resource, table: ConfigDef) -> dict[str, str]:
    """The settings after the change. Raises KafkaError."""
    if isinstance(resource, m.AlterConfigsRequest.AlterConfigsResource):
        return {setting.name: setting.value or "" for setting in resource.configs}
    new = dict(current)
    for change in resource.configs:
        apply_change(new, change, table)
    return new


def apply_change(settings: dict[str, str], change: Change, table: ConfigDef) -> None:
    """One operation of KIP-339. Raises KafkaError."""
    name, operation = change.name, change.config_operation
    if operation == DELETE:
        settings.pop(name, None)
        return
    assert change.value is not None, "checked before"
    if operation == SET:
        settings[name] = change.value
        return
    if operation not in (APPEND, SUBTRACT):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {operation}")
    word = "append" if operation == APPEND else "subtract"
    key = table.keys.get(name)
    if key is None or key.type is not ConfigType.LIST:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Config value {word} is not allowed for config key: {name}"
        )
    present = _items(settings.get(name, key.default or ""))
    values = _items(change.value)
    if operation == APPEND:
        present += [v for v in values if v not in present]
    else:
        present = [v for v in present if v not in values]
    settings[name] = ",".join(present)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _row(row: Callable[..., Row], resource: Resource, code: ErrorCode, message: str | None) -> Row:
    return row(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _alter_error(
    message: m.AlterConfigsRequest, version: int, code: ErrorCode, detail: str | None
) -> m.AlterConfigsResponse:
    row = m.AlterConfigsResponse.AlterConfigsResourceResponse
    return m.AlterConfigsResponse(responses=[_row(row, r, code, detail) for r in message.resources])


def _incremental_alter_error(
    message: m.IncrementalAlterConfigsRequest, version: int, code: ErrorCode, detail: str | None
) -> m.IncrementalAlterConfigsResponse:
    row = m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    return m.IncrementalAlterConfigsResponse(
        responses=[_row(row, r, code, detail) for r in message.resources]
    )
