"""What each dynamic setting changes in a broker that runs.

Called by the broker at its start, when the rooms are there. Who reads `BrokerConfig` each time needs nothing
from here; this is for what was made from a setting, and has to be told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.controller.controller import Controller
from ottla.metadata import znodes
from ottla.metadata.config import TOPIC_SYNONYMS, topic_defaults
from ottla.metadata.dynamic_broker_config import DynamicBrokerConfig
from ottla.metadata.store import MetadataStore
from ottla.quotas.broker import BrokerQuotas
from ottla.replication.manager import ReplicaManager
from ottla.server.logs import log_cleaner
from ottla.server.logs.log_cleaner import LogCleaner
from ottla.storage.log_manager import LogManager

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LOG_DIRS_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
RATES: Final = (LEADER_RATE, FOLLOWER_RATE, LOG_DIRS_RATE)

_TOPIC_DEFAULTS: Final = frozenset(name for synonyms in TOPIC_SYNONYMS.values() for name, _ in synonyms)


async def load(settings: DynamicBrokerConfig, store: MetadataStore) -> None:
    """The dynamic settings as stored, before anything is made from settings: they win over the given ones."""
    for entity in (znodes.DEFAULT_ENTITY, str(settings.config.broker_id)):
        path = znodes.config_path("brokers", entity)
        found = await store.get(path)
        if found is None:
            continue
        try:
            stored = znodes.decode_config(path, found[0])
            present = settings.with_present_secret(stored)
            if present != stored:
                await store.set(path, znodes.encode_config(present))
            settings.on_entity_changed(entity, present)
        except znodes.InvalidNode as problem:
            settings.ignored(problem)


def follow(
    settings: DynamicBrokerConfig,
    *,
    monotonic_clock: Callable[[], int],
    logs: LogManager,
    replicas: ReplicaManager,
    controller: Controller,
    quotas: BrokerQuotas,
    cleaner: LogCleaner,
) -> None:
    """Have every later change reach whom it concerns."""
    config = settings.config

    def topic_defaults_changed() -> None:
        logs.registry.defaults = topic_defaults(config)
        now_ms = monotonic_clock()
        for partition in replicas.partitions():
            partition.config_changed(replicas.log_config(partition.topic), now_ms)

    def producer_id_expiration_changed() -> None:
        logs.maintenance.producer_id_expiration_ms = config.get_int("producer.id.expiration.ms")

    def rates_changed() -> None:
        quotas.replication_rates_changed(*[config.get_int(name) for name in RATES])

    effects: list[tuple[frozenset[str], Callable[[], None]]] = [
        (_TOPIC_DEFAULTS, topic_defaults_changed),
        (frozenset({"unclean.leader.election.enable"}), controller.unclean_default_changed),
        (frozenset({"producer.id.expiration.ms"}), producer_id_expiration_changed),
        (frozenset(RATES), rates_changed),
        (log_cleaner.SETTINGS, cleaner.settings_changed),
    ]

    def changed(names: frozenset[str]) -> None:
        for concerned, effect in effects:
            if not concerned.isdisjoint(names):
                effect()

    rates_changed()
    settings.on_change.append(changed)
