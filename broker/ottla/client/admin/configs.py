"""Settings of topics and brokers (KIP-133, KIP-226, KIP-339)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ottla.client.admin.base import Family
from ottla.client.admin_types import ConfigEntry, Node
from ottla.client.routing import raise_first
from ottla.protocol import messages as m

_TOPIC: Final = 2
_BROKER: Final = 4
_SET, _DELETE = 0, 1
_ALL_BROKERS: Final = ""


class Configs(Family):
    async def describe_topic_configs(self, topics: Iterable[str]) -> dict[str, dict[str, ConfigEntry]]:
        """The settings of topics, those that are not the topic's own included (see `ConfigEntry.source`)."""
        return await self._describe_configs(_TOPIC, topics)

    async def describe_broker_configs(self, broker_id: int | None) -> dict[str, ConfigEntry]:
        """A broker's settings; None: what is set for all brokers together."""
        if broker_id is None:
            return (await self._describe_configs(_BROKER, [_ALL_BROKERS]))[_ALL_BROKERS]
        node = await self._brokers.node(broker_id)
        return (await self._describe_configs(_BROKER, [str(broker_id)], node))[str(broker_id)]

    async def _describe_configs(
        self, kind: int, names: Iterable[str], node: Node | None = None
    ) -> dict[str, dict[str, ConfigEntry]]:
        resources = [
            m.DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=None
            )
            for name in names
        ]
        if not resources:
            return {}
        request = m.DescribeConfigsRequest(resources=resources)
        response = await (self._brokers.to(node, request) if node else self._brokers.any(request))
        raise_first((r.error_code, r.error_message) for r in response.results)
        return {
            r.resource_name: {c.name: ConfigEntry(c.value, c.config_source, c.read_only) for c in r.configs}
            for r in response.results
        }

    async def alter_topic_config(
        self, topic: str, *, set_values: Mapping[str, str] | None = None, delete: Iterable[str] = ()
    ) -> None:
        """Change single settings of a topic; those in `delete` go back to the default (KIP-339)."""
        await self._alter(_TOPIC, topic, set_values or {}, delete)

    async def alter_broker_config(
        self,
        broker_id: int | None,
        *,
        set_values: Mapping[str, str] | None = None,
        delete: Iterable[str] = (),
    ) -> None:
        """Change dynamic settings of a broker, or with None of all that have no value of their own."""
        if broker_id is None:
            await self._alter(_BROKER, _ALL_BROKERS, set_values or {}, delete)
        else:
            node = await self._brokers.node(broker_id)
            await self._alter(_BROKER, str(broker_id), set_values or {}, delete, node)

    async def _alter(
        self,
        kind: int,
        name: str,
        set_values: Mapping[str, str],
        delete: Iterable[str],
        node: Node | None = None,
    ) -> None:
        alterable = m.IncrementalAlterConfigsRequest.AlterableConfig
        changes = [alterable(name=k, config_operation=_SET, value=v) for k, v in set_values.items()]
        changes += [alterable(name=k, config_operation=_DELETE, value=None) for k in delete]
        resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=kind, resource_name=name, configs=changes
        )
        request = m.IncrementalAlterConfigsRequest(resources=[resource])
        response = await (self._brokers.to(node, request) if node else self._brokers.any(request))
        raise_first((r.error_code, r.error_message) for r in response.responses)
