"""The configuration of a broker: settings, policies and security, and what a dynamic change of them updates.

Called by ottla.server.assembly.broker: `load_configuration` before anything is made from settings, and
`follow_settings` once the components exist that are made from them. Code that reads `BrokerConfig` at each
use needs nothing from here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from ottla.controller.controller import Controller
from ottla.metadata import policies, znodes
from ottla.metadata.client_quotas import quota_listener
from ottla.metadata.config import TOPIC_SYNONYMS, BrokerConfig, topic_defaults
from ottla.metadata.custom_authorizer import CustomAuthorizer, load_authorizer
from ottla.metadata.delegation_tokens import DelegationTokens
from ottla.metadata.dynamic_broker_config import DynamicBrokerConfig
from ottla.metadata.dynamic_configs import DynamicConfigs, OnQuotaConfig
from ottla.metadata.policies import Policy
from ottla.metadata.scram_credentials import ScramCredentials
from ottla.metadata.security_config_table import NAMES
from ottla.metadata.store import MetadataStore
from ottla.ports import Ports
from ottla.ports.tasks import TaskSet
from ottla.quotas.broker import BrokerQuotas
from ottla.replication.manager import ReplicaManager
from ottla.security.clients import ClientSecurity
from ottla.server.logs import log_cleaner
from ottla.server.logs.log_cleaner import LogCleaner
from ottla.server.network.secure_listeners import SecureListeners, SecurityProblem
from ottla.storage.log_manager import LogManager
from ottla.storage.retention import BUILT_IN, DeletionPolicy

log = logging.getLogger(__name__)

REPLICATION_RATES: Final = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)

_TOPIC_DEFAULTS: Final = frozenset(name for synonyms in TOPIC_SYNONYMS.values() for name, _ in synonyms)


@dataclass(frozen=True)
class BrokerContext:
    """What exists before the first stage. Every stage registers on `undo` how to stop what it starts."""

    config: BrokerConfig
    store: MetadataStore
    undo: AsyncExitStack
    ports: Ports
    broker_epoch: Callable[[], int]
    """The epoch of the registration; -1 before the first."""
    on_failure: Callable[[], None]
    """Called when the broker cannot go on."""

    @property
    def clock(self) -> Callable[[], int]:
        """Wall time in ms, which may step."""
        return self.ports.clock.wall_ms

    @property
    def monotonic_clock(self) -> Callable[[], int]:
        """Ms of a clock that never steps."""
        return self.ports.clock.monotonic_ms


class BrokerSecurity:
    """Credentials, delegation tokens, the secure listeners, and how this broker connects to other brokers."""

    def __init__(self, settings: DynamicBrokerConfig, loop: asyncio.AbstractEventLoop, ports: Ports) -> None:
        """Raises SecurityProblem."""
        config = settings.config
        self.credentials = ScramCredentials(ports.random)
        self.tokens = DelegationTokens(config, ports.clock.wall_ms)
        self.listeners = SecureListeners(
            config, loop, credentials=self.credentials, tokens=self.tokens.lookup, ports=ports
        )

        settings.checks.append(self.listeners.problem)
        self.inter_broker = _inter_broker_security(config)
        """None: brokers connect to one another by PLAINTEXT."""
        config.open_listeners()

    def with_credentials(self, on_quota_config: OnQuotaConfig) -> OnQuotaConfig:
        """A listener for users' settings: it updates the SCRAM credentials in them and then calls
        `on_quota_config`."""

        def on_user_config(entity_type: str, entity: str, settings: dict[str, str]) -> None:
            self.credentials.on_entity_changed(entity_type, entity, settings)
            on_quota_config(entity_type, entity, settings)

        return on_user_config

    def tick(self, *, is_controller: bool) -> None:
        """About once a second: load renewed certificates, and expire tokens on the controller."""
        self.listeners.renew()
        self.tokens.expire(is_controller=is_controller)

    async def close(self) -> None:
        await self.tokens.stop()
        await self.listeners.stop()


def _inter_broker_security(config: BrokerConfig) -> ClientSecurity | None:
    """From the settings of the inter-broker listener: its key store serves for connecting, too. Raises
    SecurityProblem."""
    name = config.inter_broker_listener
    protocol = next(listener.protocol for listener in config.listeners if listener.name == name)
    if protocol == "PLAINTEXT":
        return None
    security = config.security(name)
    mechanism = security.get("sasl.mechanism.inter.broker.protocol") or ""

    def get(setting: str) -> str | None:
        """Of those that brokers have: some are of clients only."""
        return security.of_mechanism(mechanism, setting) if setting in NAMES else None

    try:
        return ClientSecurity(protocol, get, mechanism, get("sasl.jaas.config"))
    except ValueError as problem:
        raise SecurityProblem(f"inter-broker connections, listener {name}: {problem}") from None


@dataclass(frozen=True)
class Configuration:
    """What the first stage makes."""

    settings: DynamicBrokerConfig
    security: BrokerSecurity
    create_topic_policy: Policy | None
    alter_config_policy: Policy | None
    deletion_policies: dict[str, DeletionPolicy]
    custom_authorizer: CustomAuthorizer | None


async def load_configuration(context: BrokerContext) -> Configuration:
    """Load policies, the custom authorizer, the stored dynamic settings, and security. Raises StoreError,
    SecurityProblem, ConfigError."""
    create_topic_policy = _load_policy(context, policies.CREATE_TOPIC)
    alter_config_policy = _load_policy(context, policies.ALTER_CONFIG)
    deletion_policies = _load_deletion_policies(context)
    custom_authorizer = _load_custom_authorizer(context)
    settings = DynamicBrokerConfig(context.config)
    await load_dynamic_settings(settings, context.store)
    security = BrokerSecurity(settings, asyncio.get_running_loop(), context.ports)
    context.undo.push_async_callback(security.close)
    await security.listeners.start()
    await security.tokens.start(context.store)
    return Configuration(
        settings, security, create_topic_policy, alter_config_policy, deletion_policies, custom_authorizer
    )


def _load_policy(context: BrokerContext, setting: str) -> Policy | None:
    policy = policies.load_policy(setting, context.config.static)
    context.undo.callback(policies.close, policy)
    return policy


def _load_deletion_policies(context: BrokerContext) -> dict[str, DeletionPolicy]:
    by_name: dict[str, DeletionPolicy] = dict(BUILT_IN)
    names = context.config[policies.DELETION]
    assert isinstance(names, tuple)
    for name in names:
        by_name[name] = policies.load(policies.DELETION, name, context.config.static, "deletable")
        context.undo.callback(policies.close, by_name[name])
    return by_name


def _load_custom_authorizer(context: BrokerContext) -> CustomAuthorizer | None:
    authorizer = load_authorizer(context.config.static)
    if authorizer is not None:
        context.undo.callback(policies.close, authorizer.instance)
    return authorizer


async def load_dynamic_settings(settings: DynamicBrokerConfig, store: MetadataStore) -> None:
    """Apply the stored dynamic settings: they override the configuration file. Raises StoreError."""
    for entity in (znodes.DEFAULT_ENTITY, str(settings.config.broker_id)):
        path = znodes.config_path("brokers", entity)
        node = await store.get(path)
        if node is None:
            continue
        try:
            stored = znodes.decode_config(path, node[0])
            current = settings.with_current_secret(stored)
            if current != stored:
                await store.set(path, znodes.encode_config(current))
            settings.on_entity_changed(entity, current)
        except znodes.InvalidNode as problem:
            log.error("Ignoring a broker configuration: %s", problem)


async def follow_settings(
    context: BrokerContext,
    configuration: Configuration,
    *,
    logs: LogManager,
    replicas: ReplicaManager,
    controller: Controller,
    quotas: BrokerQuotas,
    cleaner: LogCleaner,
) -> DynamicConfigs:
    """Load the settings of topics, brokers and quotas from the store, and apply every later change. Raises
    StoreError."""
    config, settings = context.config, configuration.settings

    def topic_config_changed(topic: str, overrides: dict[str, str]) -> None:
        replicas.topic_config_changed(topic, overrides)
        quotas.topic_config_changed(topic, overrides)

    def topic_defaults_changed() -> None:
        logs.registry.defaults = topic_defaults(config)
        now_ms = context.monotonic_clock()
        for partition in replicas.partitions():
            partition.config_changed(replicas.log_config(partition.topic), now_ms)

    def producer_id_expiration_changed() -> None:
        logs.maintenance.producer_id_expiration_ms = config.get_int("producer.id.expiration.ms")

    def replication_rates_changed() -> None:
        quotas.replication_rates_changed(*[config.get_int(name) for name in REPLICATION_RATES])

    effects: list[tuple[frozenset[str], Callable[[], None]]] = [
        (_TOPIC_DEFAULTS, topic_defaults_changed),
        (frozenset({"unclean.leader.election.enable"}), controller.unclean_default_changed),
        (frozenset({"producer.id.expiration.ms"}), producer_id_expiration_changed),
        (frozenset(REPLICATION_RATES), replication_rates_changed),
        (log_cleaner.SETTINGS, cleaner.settings_changed),
    ]

    def broker_config_changed(names: frozenset[str]) -> None:
        for affected_by, effect in effects:
            if not affected_by.isdisjoint(names):
                effect()

    lookups = TaskSet()
    context.undo.push_async_callback(lookups.stop)
    dynamic = DynamicConfigs(
        context.store,
        topic_config_changed,
        settings.on_entity_changed,
        on_quota_config=configuration.security.with_credentials(
            quota_listener(quotas.client_config_changed, quotas.address_config_changed, lookups)
        ),
        clock=context.clock,
    )
    replication_rates_changed()
    settings.on_change.append(broker_config_changed)
    context.undo.push_async_callback(dynamic.stop)
    await dynamic.start()
    return dynamic
