"""Dynamic configs (ZkConfigManager): /config/topics, brokers, clients, users, ips, and /config/changes.

Called by the broker, which follows changes, and by the handlers that alter configurations. A change writes
the entity's node, and then a sequential notification with the entity's path, which every broker reads again.
Late and repeated notifications are harmless. A callback for a deleted node gets an empty mapping.

Invariant: after `start`, and after every notification, the callbacks have got each entity's configuration of
that time or later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from ottla.metadata import znodes
from ottla.metadata.config import TOPIC_CONFIGS
from ottla.metadata.notifications import Notifications
from ottla.metadata.store import (
    MetadataStore,
    NodeExists,
    NoNode,
    StoreUnavailable,
    children_of_many,
    delete_recursively,
)
from ottla.protocol.topics import is_legal_topic_name

log = logging.getLogger(__name__)

CLIENTS, USERS, IPS = "clients", "users", "ips"
QUOTA_TYPES = (CLIENTS, USERS, IPS)
"""Entity types of quotas. An entity is a node's name, or `<user>/clients/<client>`."""

OnTopicConfig = Callable[[str, dict[str, str]], None]
OnBrokerConfig = Callable[[str, dict[str, str]], None]
OnQuotaConfig = Callable[[str, str, dict[str, str]], None]


class DynamicConfigs:
    """Loads, follows and alters the configurations of topics, brokers, users, clients and IP addresses.

    `on_topic_config(topic, overrides)`; `on_broker_config(broker_id or "<default>", overrides)`;
    `on_quota_config(entity type, node name of the entity, settings)`. `clock` returns wall time in ms; with
    it, old notifications are deleted.
    """

    def __init__(
        self,
        store: MetadataStore,
        on_topic_config: OnTopicConfig,
        on_broker_config: OnBrokerConfig | None = None,
        on_quota_config: OnQuotaConfig | None = None,
        *,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._store = store
        self._on_topic_config = on_topic_config
        self._on_broker_config = on_broker_config
        self._on_quota_config = on_quota_config
        self._notifications = Notifications(store, znodes.CONFIG_CHANGES, "settings", self._on_changes, clock)

    async def start(self) -> None:
        """Load all configurations, with a callback for each entity, then follow the changes."""
        await self._notifications.watch()
        await self.load_topics(await self._store.children(znodes.CONFIG_TOPICS))
        for entity in await self._store.children(znodes.CONFIG_BROKERS):
            await self._reload("brokers", entity)
        if self._on_quota_config is not None:
            for entity_type in QUOTA_TYPES:
                for entity in await self.entities(entity_type):
                    await self._reload(entity_type, entity)
        self._notifications.follow()

    async def stop(self) -> None:
        await self._notifications.stop()

    async def load_topics(self, topics: Iterable[str]) -> None:
        """Read these topics' configurations, with a callback for each.

        Also for LeaderAndIsr, which can come before the notification of a topic's configuration.
        """
        names = legal_topics(topics)
        found = await self._store.get_many([znodes.topic_config_path(name) for name in names])
        for name, entry in zip(names, found, strict=True):
            self._call_topic(name, entry[0] if entry else b"")

    async def topic_config(self, topic: str) -> dict[str, str]:
        """The topic's overrides, read from the store."""
        return await self.entity_config("topics", topic)

    async def broker_config(self, broker: str) -> dict[str, str]:
        """The overrides of a broker id, or of "<default>", read from the store."""
        return await self.entity_config("brokers", broker)

    async def entities(self, entity_type: str) -> list[str]:
        """All entities of a type with a node; those of USERS include the users' clients."""
        root = f"{znodes.CONFIG}/{entity_type}"
        names = await self._store.children(root)
        if entity_type == USERS:
            clients = await children_of_many(self._store, [f"{root}/{name}/{CLIENTS}" for name in names])
            names += [
                f"{user}/{CLIENTS}/{client}"
                for user, found in zip(names, clients, strict=True)
                for client in found
            ]
        return names

    async def entity_config(self, entity_type: str, entity: str) -> dict[str, str]:
        """The configuration of an entity, empty without a node. Raises StoreError, InvalidNode."""
        path = znodes.config_path(entity_type, entity)
        found = await self._store.get(path)
        return znodes.decode_config(path, found[0]) if found else {}

    async def alter_topic_config(self, topic: str, new: Mapping[str, str]) -> None:
        """Replace the topic's overrides, and notify all brokers. Raises StoreError."""
        await self.alter_entity("topics", topic, new)

    async def alter_broker_config(self, broker: str, new: Mapping[str, str]) -> None:
        """Replace the overrides of a broker id, or of "<default>", and notify all brokers."""
        await self.alter_entity("brokers", broker, new)

    async def alter_entity(self, entity_type: str, entity: str, new: Mapping[str, str]) -> None:
        """Replace the configuration of an entity, and notify all brokers. Raises StoreError.

        Empty nodes of quotas are deleted, as in Kafka.
        """
        if new or entity_type not in QUOTA_TYPES or not await self._remove_empty(entity_type, entity):
            await self._write(entity_type, entity, new)
        await self._store.create(
            znodes.CONFIG_CHANGE_PREFIX,
            znodes.encode_config_change(f"{entity_type}/{entity}"),
            sequential=True,
            make_parents=True,
        )

    async def _remove_empty(self, entity_type: str, entity: str) -> bool:
        """Delete an entity's node, and its user's if that is empty as well. False if the node has
        children."""
        path = znodes.config_path(entity_type, entity)
        if await self._store.children(path):
            return False
        user, is_client, client = entity.partition(f"/{CLIENTS}/")
        if is_client:
            user_path = znodes.config_path(USERS, user)
            if await self._store.children(f"{user_path}/{CLIENTS}") == [client]:
                path = f"{user_path}/{CLIENTS}"
                if await self._store.children(user_path) == [CLIENTS] and not await self.entity_config(
                    USERS, user
                ):
                    path = user_path
        await delete_recursively(self._store, path)
        return True

    async def _write(self, entity_type: str, entity: str, new: Mapping[str, str]) -> None:
        path, data = znodes.config_path(entity_type, entity), znodes.encode_config(new)
        try:
            await self._store.set(path, data)
        except NoNode:
            try:
                await self._store.create(path, data, make_parents=True)
            except NodeExists:
                await self._store.set(path, data)

    async def _on_changes(self, changes: list[bytes]) -> None:
        entities: dict[str, None] = {}
        for data in changes:
            try:
                entities[znodes.decode_config_change(data)] = None
            except znodes.InvalidNode as error:
                log.error("Ignoring a config change notification: %s", error)
        for path in entities:
            entity_type, _, entity = path.partition("/")
            try:
                await self._reload(entity_type, entity)
            except StoreUnavailable:
                raise
            except Exception:
                # The notifications of other entities must still be processed.
                log.exception("Processing the config change of %s failed", path)

    async def _reload(self, entity_type: str, entity: str) -> None:
        if entity_type == "topics":
            await self.load_topics([entity])
        elif entity_type == "brokers" and self._on_broker_config is not None:
            try:
                config = await self.entity_config("brokers", entity)
            except znodes.InvalidNode as error:
                log.error("Ignoring a broker configuration: %s", error)
                return
            self._on_broker_config(entity, config)
        elif entity_type in QUOTA_TYPES and self._on_quota_config is not None:
            try:
                self._on_quota_config(entity_type, entity, await self.entity_config(entity_type, entity))
            except ValueError as error:  # InvalidNode among them
                log.error("Ignoring the quotas of %s/%s: %s", entity_type, entity, error)

    def _call_topic(self, topic: str, data: bytes) -> None:
        try:
            config = usable_topic_config(topic, znodes.decode_config(znodes.topic_config_path(topic), data))
        except znodes.InvalidNode as error:
            log.error("Ignoring a topic configuration: %s", error)
            return
        try:
            self._on_topic_config(topic, config)
        except Exception:
            log.exception("Applying the configuration of topic %s failed", topic)


def legal_topics(names: Iterable[str]) -> list[str]:
    """The legal topic names among these; the others are logged, and must not become part of a path."""
    legal: list[str] = []
    for name in names:
        if is_legal_topic_name(name):
            legal.append(name)
        else:
            log.error("Ignoring the configuration of %r: not a legal topic name", name)
    return legal


def usable_topic_config(topic: str, stored: Mapping[str, str]) -> dict[str, str]:
    """The valid settings of a stored topic configuration. Invalid ones are logged."""
    good: dict[str, str] = {}
    for name, text in stored.items():
        problem = TOPIC_CONFIGS.problem(name, text)
        if problem is None:
            good[name] = text
        else:
            log.error("Ignoring a stored setting of topic %s: %s", topic, problem)
    return good
