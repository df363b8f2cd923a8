"""Settings of topics, brokers and brokers' loggers (KIP-133, KIP-226, KIP-339, KIP-412, KIP-524, KIP-569)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final

from ottla.client import errors
from ottla.client.admin.fan_out import BROKER
from ottla.client.admin.network import AdminNetwork, outcome
from ottla.client.admin_types import (
    ConfigChange,
    ConfigEntry,
    ConfigOperation,
    ConfigResource,
    ConfigSynonym,
    ConfigType,
    Node,
    Results,
)
from ottla.client.errors import ClientError
from ottla.environment import environment
from ottla.protocol import messages as m

_ALL_BROKERS: Final = ""


async def describe_configs(
    network: AdminNetwork,
    resources: Iterable[ConfigResource],
    *,
    names: Collection[str] | None = None,
    synonyms: bool = False,
    documentation: bool = False,
) -> Results[ConfigResource, dict[str, ConfigEntry]]:
    """The settings of resources with their defaults; `names`: only these settings."""
    request = m.DescribeConfigsRequest
    keys = None if names is None else list(names)

    async def ask(
        node: Node, share: list[ConfigResource]
    ) -> dict[ConfigResource, dict[str, ConfigEntry] | ClientError]:
        rows = [
            request.DescribeConfigsResource(
                resource_type=each.type, resource_name=each.name, configuration_keys=keys
            )
            for each in share
        ]
        response = await network.send_to(
            node,
            request(resources=rows, include_synonyms=synonyms, include_documentation=documentation),
        )
        return {
            resource: outcome(row.error_code, row.error_message, resource)
            or {c.name: _entry(c) for c in row.configs}
            for row in response.results
            for resource in [ConfigResource(ConfigType(row.resource_type), row.resource_name)]
        }

    return await network.by_node(resources, partial(_find_brokers, network), ask, BROKER)


async def incremental_alter_configs(
    network: AdminNetwork,
    changes: Mapping[ConfigResource, Iterable[ConfigChange]],
    *,
    validate_only: bool = False,
) -> Results[ConfigResource, None]:
    """Set and delete single settings; others stay."""
    request = m.IncrementalAlterConfigsRequest

    async def ask(node: Node, share: list[ConfigResource]) -> dict[ConfigResource, ClientError | None]:
        rows = [
            request.AlterConfigsResource(
                resource_type=each.type,
                resource_name=each.name,
                configs=[
                    request.AlterableConfig(name=name, value=value, config_operation=operation)
                    for name, value, operation in changes[each]
                ],
            )
            for each in share
        ]
        return _altered(await network.send_to(node, request(resources=rows, validate_only=validate_only)))

    return await network.by_node(changes, partial(_find_brokers, network), ask, BROKER)


async def alter_configs(
    network: AdminNetwork, configs: Mapping[ConfigResource, Mapping[str, str]], *, validate_only: bool = False
) -> Results[ConfigResource, None]:
    """Replace all settings of resources: others go back to their defaults. For brokers without KIP-339."""
    request = m.AlterConfigsRequest

    async def ask(node: Node, share: list[ConfigResource]) -> dict[ConfigResource, ClientError | None]:
        rows = [
            request.AlterConfigsResource(
                resource_type=each.type,
                resource_name=each.name,
                configs=[request.AlterableConfig(name=k, value=v) for k, v in configs[each].items()],
            )
            for each in share
        ]
        return _altered(await network.send_to(node, request(resources=rows, validate_only=validate_only)))

    return await network.by_node(configs, partial(_find_brokers, network), ask, BROKER)


async def _find_brokers(
    network: AdminNetwork, keys: Collection[ConfigResource]
) -> Mapping[ConfigResource, Node | ClientError]:
    """Settings of a broker are served by that broker, all others by any broker."""
    nodes = (await network.describe_cluster()).brokers
    by_id = {str(node.id): node for node in nodes}
    random = environment.get().random
    any_node = random.choice(nodes) if nodes else errors.NetworkError("no broker is known")
    found: dict[ConfigResource, Node | ClientError] = {}
    for key in keys:
        if key.type is ConfigType.TOPIC or key == ConfigResource(ConfigType.BROKER, _ALL_BROKERS):
            found[key] = any_node
        else:
            missing = errors.BrokerNotAvailableError(f"broker {key.name} is not in the cluster")
            found[key] = by_id.get(key.name, missing)
    return found


# --- short forms ---


async def describe_topic_configs(
    network: AdminNetwork, topics: Iterable[str]
) -> Results[str, dict[str, ConfigEntry]]:
    """The settings of topics with their defaults (see `ConfigEntry.source`)."""
    found = await describe_configs(network, [ConfigResource(ConfigType.TOPIC, name) for name in topics])
    return Results({key.name: value for key, value in found.outcomes().items()})


async def describe_broker_configs(network: AdminNetwork, broker_id: int | None) -> dict[str, ConfigEntry]:
    """A broker's settings; None: the cluster-wide defaults. Raises KafkaError."""
    resource = _broker(broker_id)
    return (await describe_configs(network, [resource]))[resource]


async def alter_topic_config(
    network: AdminNetwork,
    topic: str,
    *,
    set_values: Mapping[str, str] | None = None,
    delete: Iterable[str] = (),
) -> None:
    """Change single settings of a topic; those in `delete` go back to the default. Raises KafkaError."""
    await _alter(network, ConfigResource(ConfigType.TOPIC, topic), set_values or {}, delete)


async def alter_broker_config(
    network: AdminNetwork,
    broker_id: int | None,
    *,
    set_values: Mapping[str, str] | None = None,
    delete: Iterable[str] = (),
) -> None:
    """Change dynamic settings of a broker; None: the cluster-wide defaults. Raises KafkaError."""
    await _alter(network, _broker(broker_id), set_values or {}, delete)


async def _alter(
    network: AdminNetwork, resource: ConfigResource, set_values: Mapping[str, str], delete: Iterable[str]
) -> None:
    changes = [ConfigChange(name, value) for name, value in set_values.items()]
    changes += [ConfigChange(name, None, ConfigOperation.DELETE) for name in delete]
    (await incremental_alter_configs(network, {resource: changes})).raise_first()


def _broker(broker_id: int | None) -> ConfigResource:
    return ConfigResource(ConfigType.BROKER, _ALL_BROKERS if broker_id is None else str(broker_id))


def _entry(row: m.DescribeConfigsResponse.DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        row.value,
        row.config_source,
        row.read_only,
        row.is_sensitive,
        tuple(ConfigSynonym(s.name, s.value, s.source) for s in row.synonyms),
        row.config_type,
        row.documentation,
    )


def _altered(response: Any) -> dict[ConfigResource, ClientError | None]:
    return {
        resource: outcome(row.error_code, row.error_message, resource)
        for row in response.responses
        for resource in [ConfigResource(ConfigType(row.resource_type), row.resource_name)]
    }
