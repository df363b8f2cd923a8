"""Settings that change while brokers run: /config/topics, brokers, clients, users, ips, and /config/changes.

Called by the broker (to hear of changes) and by the handlers that alter settings. A change is the entity's
node plus a sequential notification, which says only *what* to read again; so hearing twice, or late, does
no harm. A callback also runs when an entity's node has gone (with an empty mapping).

Invariant: after `start`, and after every notification, the callbacks have seen each entity's state as it was
at that time or later.
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
    get_many,
)
from ottla.protocol.topic_names import is_legal_topic_name

log = logging.getLogger(__name__)

CLIENTS, USERS, IPS = "clients", "users", "ips"
QUOTA_TYPES = (CLIENTS, USERS, IPS)
"""Entity types whose settings are quotas. An entity is a node's name, or `<user>/clients/<client>`."""

OnTopicConfig = Callable[[str, dict[str, str]], None]
OnBrokerConfig = Callable[[str, dict[str, str]], None]
OnQuotaConfig = Callable[[str, str, dict[str, str]], None]


class DynamicConfigs:
    """Loads and follows the settings of topics, brokers, users, clients and addresses.

    `on_topic_config(topic, overrides)`; `on_broker_config(broker_id or "<default>", overrides)`;
    `on_quota_config(entity type, entity, settings)`, where entities go by their nodes' names.
    `clock` gives wall time in ms; with one, old notifications are purged.
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
        self._news = Notifications(store, znodes.CONFIG_CHANGES, "settings", self._take, clock)

    async def start(self) -> None:
        """Load all settings, calling back for each entity, then follow the changes."""
        await self._news.watch()
        await self.load_topics(await self._store.children(znodes.CONFIG_TOPICS))
        for entity in await self._store.children(znodes.CONFIG_BROKERS):
            await self._reload("brokers", entity)
        if self._on_quota_config is not None:
            for entity_type in QUOTA_TYPES:
                for entity in await self.entities(entity_type):
                    await self._reload(entity_type, entity)
        self._news.follow()

    async def stop(self) -> None:
        await self._news.stop()

    async def load_topics(self, topics: Iterable[str]) -> None:
        """Read these topics' settings and call back for each.

        For the broker that is told of a topic (LeaderAndIsr) before it has heard of its settings.
        """
        names = legal_topics(topics)
        found = await get_many(self._store, [znodes.topic_config_path(name) for name in names])
        for name, entry in zip(names, found, strict=True):
            self._call_topic(name, entry[0] if entry else b"")

    async def topic_config(self, topic: str) -> dict[str, str]:
        """The topic's overrides as the store has them now."""
        return await self.entity_config("topics", topic)

    async def broker_config(self, broker: str) -> dict[str, str]:
        """The overrides of a broker id, or of "<default>"."""
        return await self.entity_config("brokers", broker)

    async def entities(self, entity_type: str) -> list[str]:
        """All entities of a type that have a node; users' clients among the users."""
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
        """The settings of any entity, empty if there are none. Raises StoreError, InvalidNode."""
        path = znodes.config_path(entity_type, entity)
        found = await self._store.get(path)
        return znodes.decode_config(path, found[0]) if found else {}

    async def alter_topic_config(self, topic: str, new: Mapping[str, str]) -> None:
        """Replace the topic's overrides, and tell all brokers. Raises StoreError."""
        await self.alter_entity("topics", topic, new)

    async def alter_broker_config(self, broker: str, new: Mapping[str, str]) -> None:
        """Replace the overrides of a broker id, or of "<default>", and tell all brokers."""
        await self.alter_entity("brokers", broker, new)

    async def alter_entity(self, entity_type: str, entity: str, new: Mapping[str, str]) -> None:
        """Replace the settings of any entity, and tell all brokers. Raises StoreError.

        Nodes of quotas that hold nothing any more are removed, as Kafka does: clients come and go.
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
        """Remove an entity's node, and its user's if that holds nothing else. False if it has children."""
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

    async def _take(self, changes: list[bytes]) -> None:
        entities: dict[str, None] = {}
        for data in changes:
            try:
                entities[znodes.decode_config_change(data)] = None
            except znodes.InvalidNode as error:
                log.error("ignoring a config change: %s", error)
        for path in entities:
            entity_type, _, entity = path.partition("/")
            try:
                await self._reload(entity_type, entity)
            except StoreUnavailable:
                raise
            except Exception:
                # One entity's trouble must keep nobody from hearing of the others.
                log.exception("taking over the settings of %s failed", path)

    async def _reload(self, entity_type: str, entity: str) -> None:
        if entity_type == "topics":
            await self.load_topics([entity])
        elif entity_type == "brokers" and self._on_broker_config is not None:
            try:
                config = await self.entity_config("brokers", entity)
            except znodes.InvalidNode as error:
                log.error("ignoring broker settings: %s", error)
                return
            self._on_broker_config(entity, config)
        elif entity_type in QUOTA_TYPES and self._on_quota_config is not None:
            try:
                self._on_quota_config(entity_type, entity, await self.entity_config(entity_type, entity))
            except ValueError as error:  # InvalidNode among them
                log.error("ignoring the quotas of %s/%s: %s", entity_type, entity, error)

    def _call_topic(self, topic: str, data: bytes) -> None:
        try:
            config = usable_topic_config(topic, znodes.decode_config(znodes.topic_config_path(topic), data))
        except znodes.InvalidNode as error:
            log.error("ignoring topic settings: %s", error)
            return
        try:
            self._on_topic_config(topic, config)
        except Exception:
            log.exception("applying the settings of topic %s failed", topic)


def legal_topics(names: Iterable[str]) -> list[str]:
    """Those that a topic can be called; the others, which are logged, must become part of no path."""
    legal: list[str] = []
    for name in names:
        if is_legal_topic_name(name):
            legal.append(name)
        else:
            log.error("ignoring settings of %r, which no topic can be called", name)
    return legal


def usable_topic_config(topic: str, stored: Mapping[str, str]) -> dict[str, str]:
    """What can be applied of a topic's settings as stored. A hand may have written the rest: it is logged."""
    good: dict[str, str] = {}
    for name, text in stored.items():
        problem = TOPIC_CONFIGS.problem(name, text)
        if problem is None:
            good[name] = text
        else:
            log.error("a stored setting of topic %s is ignored: %s", topic, problem)
    return good
