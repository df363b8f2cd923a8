"""Dynamic broker settings (DynamicBrokerConfig, KIP-226): validation, and application to the running broker.

Called by the handler of AlterConfigs (`check`, before the store is written) and by the broker
(`on_entity_changed`, at the start and after each notification of `dynamic_configs`). Does not access the
store.

The store has one mapping per broker id, and one for all brokers, /config/brokers/<default>. Stored settings
that are invalid are logged and ignored; they never stop a broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from ottla.metadata import stored_passwords
from ottla.metadata.broker_config_table import OTTLA_CONFIGS, PER_BROKER, WITHOUT_EFFECT
from ottla.metadata.config import (
    BROKER_CONFIGS,
    QUOTA_CONFIGS,
    BrokerConfig,
    ConfigError,
    ConfigType,
    is_unsupported,
)
from ottla.metadata.listener_security import prefixed_problem, unprefixed
from ottla.metadata.listeners import (
    OF_ALL_BROKERS,
    base_name,
    is_limit,
    limit_problem,
    listener_key,
)
from ottla.metadata.security_config_table import NAMES, STORE_SETTINGS
from ottla.metadata.znodes import DEFAULT_ENTITY

log = logging.getLogger(__name__)

# Kafka resizes these thread pools by at most a factor of two at a time. Ottla has Kafka's validation without
# pools.
_THREADS: Final = (
    "background.threads",
    "num.io.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "num.network.threads",
)

THREAD_COUNTS: Final = frozenset((*_THREADS, "log.cleaner.threads"))
"""Settings that change by at most a factor of two at a time; also those of one listener."""

_THREADS_INVALID: Final = "Dynamic thread count update validation failed for"

Check = Callable[[Mapping[str, str]], str | None]
"""Returns the error of these dynamic settings of the broker, or None."""
OnChange = Callable[[frozenset[str]], None]


class ConfigRejected(Exception):
    """Invalid dynamic settings; the message is for the client."""


class DynamicBrokerConfig:
    """Keeps the dynamic layers of `config` up to date, and calls `on_change` with the changed settings."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.on_change: list[OnChange] = []
        self.checks: list[Check] = []
        """Further validators, for example of key stores, which must open."""

    # --- validation before the store is written -----------------------------------------------------

    def check(self, new: Mapping[str, str], *, per_broker: bool) -> None:
        """Validate `new` as all dynamic settings of this broker, or of all brokers. Raises ConfigRejected."""
        for message, names in _misplaced(new, per_broker=per_broker):
            if names:
                raise ConfigRejected(f"{message}{', '.join(names)})")
        try:
            if per_broker:
                values = self.config.with_dynamic(new, self.config.of_cluster)
            else:
                values = self.config.with_dynamic(self.config.of_broker, new)
        except ConfigError as error:
            raise ConfigRejected(error.problems[0]) from None
        self._check_changes(values)
        self._check_listeners(new, per_broker=per_broker)
        if any(_is_security(name) for name in new):
            for check in self.checks:
                problem = check(new)
                if problem is not None:
                    raise ConfigRejected(problem)

    def _check_listeners(self, new: Mapping[str, str], *, per_broker: bool) -> None:
        """Validate the thread counts of the open listeners."""
        config = self.config
        below, above = (config.of_cluster, new) if per_broker else (new, config.of_broker)
        before = {**config.static, **config.of_cluster, **config.of_broker}
        after = {**config.static, **below, **above}
        for listener in config.listeners:
            threads = listener_key(listener.name, "num.network.threads")
            present = int(before.get(threads, config.get_int("num.network.threads")))
            _check_count(
                present, int(after.get(threads, present)), f"{_THREADS_INVALID} num.network.threads="
            )

    def _check_changes(self, values: Mapping[str, object]) -> None:
        for name in sorted(THREAD_COUNTS):
            message = f"{_THREADS_INVALID} {name}=" if name in _THREADS else f"{name}="
            new = values[name]
            assert isinstance(new, int)
            _check_count(self.config.get_int(name), new, message)

    def to_store(self, new: Mapping[str, str]) -> dict[str, str]:
        """The settings for the store, with encrypted passwords. Raises NoSecret."""
        return stored_passwords.encoded(new, stored_passwords.encoder(self.config))

    def with_current_secret(self, stored: Mapping[str, str]) -> dict[str, str]:
        """The stored settings, with passwords of the old secret encrypted with the current one."""
        current = stored_passwords.encoder(self.config)
        old = stored_passwords.encoder(self.config, stored_passwords.OLD_SECRET)
        if current is None or old is None:
            return dict(stored)
        return stored_passwords.re_encoded(stored, old, current)

    # --- applying stored settings -------------------------------------------------------------------

    def on_entity_changed(self, entity: str, stored: Mapping[str, str]) -> None:
        """Apply the stored settings of `entity`, a broker id or "<default>"."""
        config = self.config
        before = {**config.of_cluster, **config.of_broker}
        if entity == DEFAULT_ENTITY:
            layers = (config.of_broker, self.usable(stored, per_broker=False))
        elif entity == str(config.broker_id):
            layers = (self.usable(stored, per_broker=True), config.of_cluster)
        else:
            return
        try:
            changed = config.apply_dynamic(*layers)
        except ConfigError as error:
            log.error("Ignoring the dynamic settings of %s: %s", entity, error)
            return
        self._warn({**config.of_cluster, **config.of_broker}, before)
        if not changed:
            return
        shown = ", ".join(f"{name}={_display_text(config, name)}" for name in sorted(changed))
        log.info("Dynamic settings of %s: %s", entity, shown)
        for callback in self.on_change:
            try:
                callback(changed)
            except Exception:
                log.exception("Applying dynamic settings failed: %s", ", ".join(sorted(changed)))

    def _warn(self, now: Mapping[str, str], before: Mapping[str, str]) -> None:
        """Log new settings without effect, and those that take effect after a restart."""
        for name in sorted(name for name, text in now.items() if before.get(name) != text):
            base = unprefixed(name) or base_name(name) or name
            if base in WITHOUT_EFFECT:
                log.warning("%s is a setting of Kafka that has no effect in Ottla", name)
            elif self.config.listeners_are_open and _is_security(name) and base not in STORE_SETTINGS:
                log.warning("%s is stored; it takes effect when the broker restarts", name)

    def usable(self, stored: Mapping[str, str], *, per_broker: bool) -> dict[str, str]:
        """The valid settings of those stored for this broker, or for all, with passwords decrypted.
        Invalid ones are logged."""
        good = stored_passwords.decoded(stored, stored_passwords.encoder(self.config))
        for name, text in list(good.items()):
            try:
                for message, names in _misplaced({name: text}, per_broker=per_broker):
                    if names:
                        raise ConfigRejected(f"{message}{name})")
            except ConfigRejected as problem:
                log.error("Ignoring a stored dynamic setting: %s", problem)
                del good[name]
        return good


def is_dynamic(name: str) -> bool:
    """Whether this broker setting can change while the broker runs."""
    return (name in BROKER_CONFIGS and BROKER_CONFIGS[name].dynamic) or name in QUOTA_CONFIGS


def is_of_all_brokers(name: str) -> bool:
    """Whether this broker setting can be set for all brokers together while they run."""
    return is_dynamic(base_name(name) or name) and not _is_of_one_broker(name)


def nearest_count(before: int, wanted: int) -> int:
    """The thread count nearest to `wanted` that brokers with `before` threads accept."""
    return min(max(wanted, before // 2, 1), before * 2)


def _misplaced(new: Mapping[str, str], *, per_broker: bool) -> Iterator[tuple[str, list[str]]]:
    """Kafka's error messages in order, each with the names it applies to
    (DynamicBrokerConfig.validateConfigs). Raises ConfigRejected for invalid values."""
    yield "Cannot update these configs dynamically: Set(", sorted(n for n in new if not _may_be_set(n))
    yield (
        "These security configs can be dynamically updated only per-listener using the listener prefix: "
        "HashSet(",
        sorted(STORE_SETTINGS.intersection(new)),
    )
    for name, text in new.items():
        problem = _problem(name, text)
        if problem is not None:
            raise ConfigRejected(problem)
    if not per_broker:
        yield (
            "Cannot update these configs at default cluster level, broker id must be specified: Set(",
            sorted(name for name in new if _is_of_one_broker(name)),
        )


def _may_be_set(name: str) -> bool:
    """Whether the setting can be stored. Unknown names can, as in Kafka, where plugins define settings."""
    if name in BROKER_CONFIGS or name in QUOTA_CONFIGS or name in OTTLA_CONFIGS:
        return is_dynamic(name)
    return not is_unsupported(name)


def _is_of_one_broker(name: str) -> bool:
    base = base_name(name)
    return name in PER_BROKER if base is None else base not in OF_ALL_BROKERS


def _is_security(name: str) -> bool:
    return (unprefixed(name) or name) in NAMES


def _check_count(before: int, new: int, prefix: str) -> None:
    if new == before:
        return
    if new < 1:
        raise ConfigRejected(f"{prefix}{new}, value should be at least 1")
    if new < before // 2:
        raise ConfigRejected(f"{prefix}{new}, value should be at least half the current value {before}")
    if new > before * 2:
        raise ConfigRejected(
            f"{prefix}{new}, value should not be greater than double the current value {before}"
        )


def _problem(name: str, text: str) -> str | None:
    if is_limit(name):
        return limit_problem(name, text)
    base = base_name(name) or name
    if is_dynamic(base):
        table = BROKER_CONFIGS if base in BROKER_CONFIGS else QUOTA_CONFIGS
        if table[base].type is ConfigType.CLASS and text != table[base].default:
            return f"Invalid value {text} for configuration {base}: Class {text} could not be found."
        return table.problem_in_kafka(base, text)
    # As in Kafka, other settings are validated when the listener is created.
    return None if unprefixed(name) is None else prefixed_problem(name, text)


def _display_text(config: BrokerConfig, name: str) -> str | None:
    key = BROKER_CONFIGS.keys.get(name)
    return "[hidden]" if key is not None and key.type is ConfigType.PASSWORD else config.text(name)
