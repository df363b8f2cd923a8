"""DescribeConfigs 0 to 4 and IncrementalAlterConfigs 0 to 1, of topics and of this broker.

Behaviour: a value comes with its source (the topic's own, this broker's file, Kafka's default), from
version 1 with its synonyms in order of precedence, from version 3 with type and documentation. A topic's
settings are changed by any broker (as in ZooKeeper mode, through /config/topics and a change notification):
set, delete, and for lists append and subtract; the whole result is validated first, INVALID_CONFIG says
what is wrong.

Left out on purpose: broker settings do not change while a broker runs; the answer is INVALID_REQUEST naming
them, Kafka's for settings that are not dynamic. Loggers (resource type 8) are not served: INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from ottla.metadata.cache import MetadataCache
from ottla.metadata.config import (
    BROKER_CONFIGS,
    TOPIC_CONFIGS,
    TOPIC_SYNONYMS,
    BrokerConfig,
    ConfigType,
    topic_defaults,
    validate_topic_config,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.server.dispatch import Request, Route
from ottla.server.handlers.auto_create import is_legal_topic_name

TOPIC, BROKER = 2, 4  # resource types
SOURCE_TOPIC, SOURCE_STATIC_BROKER, SOURCE_DEFAULT = 1, 4, 5
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3  # operations of KIP-339

Entry = DescribeConfigsResponse.DescribeConfigsResourceResult
Synonym = DescribeConfigsResponse.DescribeConfigsSynonym
AlterResult = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse


class ConfigsHandler:
    def __init__(
        self,
        config: BrokerConfig,
        cache: MetadataCache,
        topic_config: Callable[[str], Awaitable[dict[str, str]]],
        alter_topic_config: Callable[[str, dict[str, str]], Awaitable[None]],
    ) -> None:
        self._config = config
        self._cache = cache
        self._topic_config = topic_config
        self._alter_topic_config = alter_topic_config
        self._topic_defaults = topic_defaults(config)

    def routes(self) -> list[Route]:
        return [
            Route(DescribeConfigsRequest, self.describe, _describe_error),
            Route(IncrementalAlterConfigsRequest, self.incremental_alter, _alter_error),
        ]

    # --- describe -----------------------------------------------------------------------------------

    async def describe(self, request: Request) -> DescribeConfigsResponse:
        message = request.decode(DescribeConfigsRequest)
        response = DescribeConfigsResponse()
        for resource in message.resources:
            result = DescribeConfigsResponse.DescribeConfigsResult(
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            response.results.append(result)
            try:
                if resource.resource_type == TOPIC:
                    entries = await self._describe_topic(resource.resource_name)
                elif resource.resource_type == BROKER:
                    entries = self._describe_broker(resource.resource_name)
                else:
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST,
                        f"resources of type {resource.resource_type} have no settings here",
                    )
            except KafkaError as e:
                result.error_code, result.error_message = e.code, e.message or None
                continue
            wanted = resource.configuration_keys
            result.configs = [e for e in entries if not wanted or e.name in wanted]
            for entry in result.configs:
                if not message.include_synonyms:
                    entry.synonyms = []
                if not message.include_documentation:
                    entry.documentation = None
                # Version 0 knows no sources, only whether a value is the default.
                entry.is_default = request.version == 0 and entry.config_source == SOURCE_DEFAULT
        return response

    async def _describe_topic(self, topic: str) -> list[Entry]:
        self._check_topic(topic)
        own = await self._topic_config(topic)
        entries = []
        for name, key in TOPIC_CONFIGS.keys.items():
            synonyms = self._broker_synonyms([broker_name for broker_name, _ in TOPIC_SYNONYMS.get(name, ())])
            value: str | None
            if name in own:
                value, source = own[name], SOURCE_TOPIC
                synonyms.insert(0, Synonym(name=name, value=own[name], source=SOURCE_TOPIC))
            else:
                value = self._topic_defaults[name]
                source = synonyms[0].source if synonyms else SOURCE_DEFAULT
            entries.append(
                Entry(
                    name=name,
                    value=value,
                    config_source=source,
                    synonyms=synonyms,
                    config_type=key.type.wire,
                    documentation=key.doc,
                )
            )
        return entries

    def _describe_broker(self, name: str) -> list[Entry]:
        if name == "":
            return []  # the cluster-wide dynamic settings: there are none
        if name != str(self._config.broker_id):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {self._config.broker_id} or empty string, "
                f"but received {name}",
            )
        entries = []
        for key in BROKER_CONFIGS.keys.values():
            synonyms = self._broker_synonyms([key.name])
            source = SOURCE_STATIC_BROKER if key.name in self._config.given else SOURCE_DEFAULT
            sensitive = key.type is ConfigType.PASSWORD
            entries.append(
                Entry(
                    name=key.name,
                    value=None if sensitive else self._config.text(key.name),
                    read_only=True,
                    config_source=source,
                    is_sensitive=sensitive,
                    synonyms=synonyms,
                    config_type=key.type.wire,
                    documentation=key.doc,
                )
            )
        return entries

    def _broker_synonyms(self, names: Iterable[str]) -> list[Synonym]:
        """Where a value may come from on this broker, the strongest first."""
        given, defaults = [], []
        for name in names:
            if name in self._config.given:
                given.append(
                    Synonym(name=name, value=self._config.given[name].strip(), source=SOURCE_STATIC_BROKER)
                )
            default = BROKER_CONFIGS[name].default
            if default is not None:
                defaults.append(Synonym(name=name, value=default, source=SOURCE_DEFAULT))
        return given + defaults

    def _check_topic(self, topic: str) -> None:
        if not is_legal_topic_name(topic):
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic!r} is not a legal topic name")
        if self._cache.partitions(topic) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic}' does not exist.")

    # --- alter --------------------------------------------------------------------------------------

    async def incremental_alter(self, request: Request) -> IncrementalAlterConfigsResponse:
        message = request.decode(IncrementalAlterConfigsRequest)
        response = IncrementalAlterConfigsResponse()
        for resource in message.resources:
            result = AlterResult(
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            response.responses.append(result)
            try:
                if resource.resource_type == TOPIC:
                    await self._alter_topic(resource, validate_only=message.validate_only)
                elif resource.resource_type == BROKER:
                    names = ", ".join(sorted(c.name for c in resource.configs))
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: Set({names})"
                    )
                else:
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST,
                        f"resources of type {resource.resource_type} have no settings here",
                    )
            except KafkaError as e:
                result.error_code, result.error_message = e.code, e.message or None
        return response

    async def _alter_topic(
        self, resource: IncrementalAlterConfigsRequest.AlterConfigsResource, *, validate_only: bool
    ) -> None:
        topic = resource.resource_name
        self._check_topic(topic)
        names = [c.name for c in resource.configs]
        if len(set(names)) != len(names):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a setting is named twice")
        current = await self._topic_config(topic)
        new = dict(current)
        for change in resource.configs:
            apply_change(new, change, self._topic_defaults)
        for name in names:
            if name in new:
                problem = validate_topic_config(name, new[name])
                if problem is not None:
                    raise KafkaError(ErrorCode.INVALID_CONFIG, problem)
        if not validate_only:
            await self._alter_topic_config(topic, new)


def apply_change(
    settings: dict[str, str],
    change: IncrementalAlterConfigsRequest.AlterableConfig,
    defaults: dict[str, str],
) -> None:
    """One operation of KIP-339 on a topic's own settings. Raises KafkaError."""
    name = change.name
    key = TOPIC_CONFIGS.keys.get(name)
    if key is None:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, validate_topic_config(name, change.value) or f"unknown {name}"
        )
    if change.config_operation == DELETE:
        settings.pop(name, None)
        return
    if change.value is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {name}")
    if change.config_operation == SET:
        settings[name] = change.value
        return
    if change.config_operation not in (APPEND, SUBTRACT):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown operation {change.config_operation} for {name}")
    if key.type is not ConfigType.LIST:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{name} is not a list: it can be set, not appended to or subtracted from",
        )
    present = _items(settings.get(name, defaults[name]))
    values = _items(change.value)
    if change.config_operation == APPEND:
        present += [v for v in values if v not in present]
    else:
        present = [v for v in present if v not in values]
    settings[name] = ",".join(present)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _describe_error(
    message: DescribeConfigsRequest, version: int, code: ErrorCode, detail: str | None
) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[
            DescribeConfigsResponse.DescribeConfigsResult(
                error_code=code,
                error_message=detail,
                resource_type=r.resource_type,
                resource_name=r.resource_name,
            )
            for r in message.resources
        ]
    )


def _alter_error(
    message: IncrementalAlterConfigsRequest, version: int, code: ErrorCode, detail: str | None
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
        responses=[
            AlterResult(
                error_code=code,
                error_message=detail,
                resource_type=r.resource_type,
                resource_name=r.resource_name,
            )
            for r in message.resources
        ]
    )
