"""DescribeConfigs 0 to 4, of topics, brokers and loggers.

Behaviour: each value has its source (the topic's setting, the dynamic setting of this broker or of all
brokers, the configuration file, Kafka's default), from version 1 its synonyms in order of precedence, from
version 3 its type and documentation. A broker describes itself under its id, and the cluster-wide dynamic
settings under "".

Left out on purpose: version 0's is_default, which Kafka does not fill in either; Kafka's settings for
features that Ottla does not have (KRaft, tiered storage); CLIENT_METRICS (KIP-714): INVALID_REQUEST.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from ottla.metadata.broker_config_table import OTTLA_CONFIGS
from ottla.metadata.cache import MetadataCache
from ottla.metadata.config import (
    BROKER_CONFIGS,
    QUOTA_CONFIGS,
    TOPIC_CONFIGS,
    BrokerConfig,
    ConfigKey,
    ConfigSource,
    ConfigType,
    Synonym,
    topic_defaults,
    topic_synonyms,
    without_listener,
)
from ottla.metadata.dynamic_broker_config import is_dynamic
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import DescribeConfigsRequest, DescribeConfigsResponse
from ottla.protocol.topics import is_legal_topic_name
from ottla.server.dispatch.dispatcher import Request, Route
from ottla.server.handlers.admin import loggers

TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8  # resource types
_LOGGER_SOURCE = 6
_UNKNOWN_TYPE = 0
_BROKER_TABLES = (BROKER_CONFIGS, QUOTA_CONFIGS, OTTLA_CONFIGS)

Entry = DescribeConfigsResponse.DescribeConfigsResourceResult
_Synonym = DescribeConfigsResponse.DescribeConfigsSynonym


class _TopicRow(NamedTuple):
    """The default of one topic setting."""

    key: ConfigKey
    default: str
    synonyms: list[_Synonym]


class ConfigsHandler:
    def __init__(
        self,
        config: BrokerConfig,
        cache: MetadataCache,
        topic_config: Callable[[str], Awaitable[dict[str, str]]],
    ) -> None:
        self._config = config
        self._cache = cache
        self._topic_config = topic_config

    def routes(self) -> list[Route]:
        return [Route(DescribeConfigsRequest, self.describe, _describe_error)]

    async def describe(self, request: Request) -> DescribeConfigsResponse:
        message = request.decode(DescribeConfigsRequest)
        response = DescribeConfigsResponse()
        topics = await self._topics(r.resource_name for r in message.resources if r.resource_type == TOPIC)
        rows = self._topic_rows() if topics else []
        for resource in message.resources:
            result = DescribeConfigsResponse.DescribeConfigsResult(
                error_message="",
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            response.results.append(result)
            try:
                if resource.resource_type == TOPIC:
                    entries = self._describe_topic(resource.resource_name, topics, rows)
                else:
                    entries = self._describe(resource.resource_type, resource.resource_name)
            except KafkaError as e:
                # As in Kafka, this error has no message; clients have their own.
                known = e.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                result.error_code, result.error_message = e.code, e.message if known else ""
                continue
            wanted = resource.configuration_keys
            result.configs = [e for e in entries if not wanted or e.name in wanted]
            for entry in result.configs:
                if not message.include_synonyms:
                    entry.synonyms = []
                if not message.include_documentation:
                    entry.documentation = None
        return response

    def _describe(self, kind: int, name: str) -> list[Entry]:
        if kind == BROKER:
            return self._describe_broker(name)
        if kind == BROKER_LOGGER:
            return self._describe_loggers(name)
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")

    # --- topics -------------------------------------------------------------------------------------

    async def _topics(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """The settings of those topics that exist, read from the store in parallel."""
        known = [name for name in names if self._cache.partitions(name) is not None]
        return dict(zip(known, await asyncio.gather(*map(self._topic_config, known)), strict=True))

    def _topic_rows(self) -> list[_TopicRow]:
        """The defaults of topic settings."""
        defaults = topic_defaults(self._config)
        return [
            _TopicRow(key, defaults[name], _shown(topic_synonyms(self._config, name)))
            for name, key in TOPIC_CONFIGS.keys.items()
        ]

    def _describe_topic(
        self, topic: str, topics: dict[str, dict[str, str]], rows: list[_TopicRow]
    ) -> list[Entry]:
        if not is_legal_topic_name(topic):
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic!r} is not a legal topic name")
        own = topics.get(topic)
        if own is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        entries = []
        for key, default, synonyms in rows:
            if key.name in own:
                value = _canonical(key, own[key.name])
                first = _Synonym(name=key.name, value=value, source=ConfigSource.TOPIC)
                entries.append(_entry(key.name, value, [first, *synonyms], key))
            else:
                entries.append(_entry(key.name, default, synonyms, key))
        return entries

    # --- brokers ------------------------------------------------------------------------------------

    def _describe_broker(self, name: str) -> list[Entry]:
        config = self._config
        if name == "":
            return [self._broker_entry(n, text, shared=True) for n, text in config.of_cluster.items()]
        check_broker_id(name, config.broker_id, f"{config.broker_id} or empty string,")
        given = {**config.static, **config.of_cluster, **config.of_broker}
        known = {n: config.text(n) for n in BROKER_CONFIGS.keys}
        rates = {n: config.text(n) for n in QUOTA_CONFIGS.keys if n in given}
        return [self._broker_entry(n, text) for n, text in {**given, **known, **rates}.items()]

    def _broker_entry(self, name: str, value: str | None, *, shared: bool = False) -> Entry:
        """`shared`: a cluster-wide setting; this broker's own settings are not among its synonyms."""
        base = without_listener(name)
        key = next((table[base] for table in _BROKER_TABLES if base in table), None)
        synonyms = self._config.synonyms(name)
        if shared:
            synonyms = [s for s in synonyms if s.source == ConfigSource.DYNAMIC_CLUSTER]
        # Values of unknown settings may be secrets, and are left out like those of passwords.
        sensitive = key is None or key.type is ConfigType.PASSWORD
        entry = _entry(name, value, _shown(synonyms, sensitive=sensitive), key, sensitive=sensitive)
        entry.read_only = name in QUOTA_CONFIGS or not is_dynamic(name)
        return entry

    def _describe_loggers(self, name: str) -> list[Entry]:
        if name == "":
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        check_broker_id(name, self._config.broker_id, str(self._config.broker_id))
        return [
            Entry(name=logger, value=level, config_source=_LOGGER_SOURCE, documentation=None)
            for logger, level in loggers.levels().items()
        ]


def check_broker_id(name: str, broker_id: int, expected: str) -> None:
    """Raises INVALID_REQUEST unless `name` is this broker's id: a broker describes only itself."""
    try:
        same = int(name) == broker_id
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}"
        ) from None
    if not same:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {expected} but received {name}"
        )


def _shown(synonyms: Iterable[Synonym], *, sensitive: bool = False) -> list[_Synonym]:
    return [_Synonym(name=s.name, value=None if sensitive else s.text, source=s.source) for s in synonyms]


def _entry(
    name: str,
    value: str | None,
    synonyms: list[_Synonym],
    key: ConfigKey | None,
    *,
    sensitive: bool = False,
) -> Entry:
    return Entry(
        name=name,
        value=None if sensitive else value,
        config_source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        is_sensitive=sensitive,
        synonyms=synonyms,
        config_type=_UNKNOWN_TYPE if key is None else key.type.wire,
        documentation=None if key is None else key.doc,
    )


def _canonical(key: ConfigKey, text: str) -> str | None:
    try:
        return key.show(key.parse(text))
    except ValueError:
        return text  # an invalid value in the store is shown as it is


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
