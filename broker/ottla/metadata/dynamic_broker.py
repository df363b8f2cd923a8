"""Broker settings that change while brokers run (KIP-226): what may be stored, and what follows from it.

Called by the handler of AlterConfigs (`check`, before anything is stored) and by the broker (`heard`, at the
start and after each change notification of `dynamic`). Pure: nothing here reads or writes the store.

Stored is one mapping per broker id and one for all brokers, /config/brokers/<default>. What another version
or a hand has left there and cannot be used is logged and ignored; it never stops a broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from ottla.metadata import stored_passwords
from ottla.metadata.broker_config_table import PER_BROKER, WITHOUT_EFFECT
from ottla.metadata.config import (
    BROKER_CONFIGS,
    QUOTA_CONFIGS,
    BrokerConfig,
    ConfigError,
    ConfigType,
    is_refused,
)
from ottla.metadata.listener_settings import (
    OF_ALL_BROKERS,
    base_name,
    is_limit,
    limit_problem,
    listener_key,
)
from ottla.metadata.ottla_config_table import OTTLA_CONFIGS
from ottla.metadata.security import prefixed_problem, unprefixed
from ottla.metadata.security_config_table import NAMES, STORE_SETTINGS
from ottla.metadata.znodes import DEFAULT_ENTITY

log = logging.getLogger(__name__)

# Kafka resizes these pools by at most a factor of two at a time. We have no such pools, and its rules.
_THREADS: Final = (
    "background.threads",
    "num.io.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "num.network.threads",
)

_THREADS_REFUSED: Final = "Dynamic thread count update validation failed for"

Check = Callable[[Mapping[str, str]], str | None]
"""What is wrong with this as the dynamic settings of the broker, or None."""
OnChange = Callable[[frozenset[str]], None]


class Refused(Exception):
    """Settings that may not be stored; the message is for the client."""


class DynamicBrokerConfig:
    """Keeps the dynamic layers of `config` current, and tells of every setting whose value changed."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.on_change: list[OnChange] = []
        self.checks: list[Check] = []
        """Of those who can tell more than the tables: a key store has to open."""

    # --- before something is stored -----------------------------------------------------------------

    def check(self, new: Mapping[str, str], *, per_broker: bool) -> None:
        """Whether `new` may become all the dynamic settings of this broker, or of all. Raises Refused."""
        for words, names in _misplaced(new, per_broker=per_broker):
            if names:
                raise Refused(f"{words}{', '.join(names)})")
        try:
            if per_broker:
                values = self.config.overlaid(new, self.config.of_cluster)
            else:
                values = self.config.overlaid(self.config.of_broker, new)
        except ConfigError as error:
            raise Refused(error.problems[0]) from None
        self._check_changes(values)
        self._check_listeners(new, per_broker=per_broker)
        if any(_is_security(name) for name in new):
            for check in self.checks:
                refusal = check(new)
                if refusal is not None:
                    raise Refused(refusal)

    def _check_listeners(self, new: Mapping[str, str], *, per_broker: bool) -> None:
        """The threads of each listener that is open."""
        config = self.config
        below, above = (config.of_cluster, new) if per_broker else (new, config.of_broker)
        before = {**config.given, **config.of_cluster, **config.of_broker}
        after = {**config.given, **below, **above}
        for listener in config.listeners:
            threads = listener_key(listener.name, "num.network.threads")
            present = int(before.get(threads, config.get_int("num.network.threads")))
            _check_count(
                present, int(after.get(threads, present)), f"{_THREADS_REFUSED} num.network.threads="
            )

    def _check_changes(self, values: Mapping[str, object]) -> None:
        for name in (*_THREADS, "log.cleaner.threads"):
            words = f"{_THREADS_REFUSED} {name}=" if name in _THREADS else f"{name}="
            new = values[name]
            assert isinstance(new, int)
            _check_count(self.config.get_int(name), new, words)

    def to_store(self, new: Mapping[str, str]) -> dict[str, str]:
        """As it is stored: passwords encrypted. Raises NoSecret."""
        return stored_passwords.encoded(new, stored_passwords.encoder(self.config))

    def with_present_secret(self, stored: Mapping[str, str]) -> dict[str, str]:
        """What is stored, with the passwords that the old secret still opens encrypted by the present one."""
        present = stored_passwords.encoder(self.config)
        old = stored_passwords.encoder(self.config, stored_passwords.OLD_SECRET)
        if present is None or old is None:
            return dict(stored)
        return stored_passwords.encoded_anew(stored, old, present)

    # --- after it was -------------------------------------------------------------------------------

    def heard(self, entity: str, stored: Mapping[str, str]) -> None:
        """The settings of `entity`, a broker id or "<default>", are `stored` now."""
        config = self.config
        before = {**config.of_cluster, **config.of_broker}
        if entity == DEFAULT_ENTITY:
            layers = (config.of_broker, self.usable(stored, per_broker=False))
        elif entity == str(config.broker_id):
            layers = (self.usable(stored, per_broker=True), config.of_cluster)
        else:
            return
        try:
            changed = config.overlay(*layers)
        except ConfigError as error:
            log.error("the dynamic settings of %s are not applied: %s", entity, error)
            return
        self._warn_of({**config.of_cluster, **config.of_broker}, before)
        if not changed:
            return
        shown = ", ".join(f"{name}={_shown(config, name)}" for name in sorted(changed))
        log.info("dynamic settings of %s: %s", entity, shown)
        for tell in self.on_change:
            try:
                tell(changed)
            except Exception:
                log.exception("applying dynamic settings failed: %s", ", ".join(sorted(changed)))

    def _warn_of(self, now: Mapping[str, str], before: Mapping[str, str]) -> None:
        """Say of what was just set that it changes nothing, or nothing yet."""
        for name in sorted(name for name, text in now.items() if before.get(name) != text):
            base = unprefixed(name) or base_name(name) or name
            if base in WITHOUT_EFFECT:
                log.warning("%s is a setting of Kafka's that has no effect in Ottla yet", name)
            elif self.config.listeners_are_open and _is_security(name) and base not in STORE_SETTINGS:
                log.warning("%s is stored; it takes effect when the broker restarts", name)

    def usable(self, stored: Mapping[str, str], *, per_broker: bool) -> dict[str, str]:
        """What can be applied of the settings stored for this broker, or for all, passwords decrypted; the
        rest is logged."""
        good = stored_passwords.decoded(stored, stored_passwords.encoder(self.config))
        for name, text in list(good.items()):
            try:
                for words, names in _misplaced({name: text}, per_broker=per_broker):
                    if names:
                        raise Refused(f"{words}{name})")
            except Refused as problem:
                log.error("a stored dynamic setting is ignored: %s", problem)
                del good[name]
        return good

    def ignored(self, problem: Exception) -> None:
        """What is stored cannot be read at all."""
        log.error("ignoring broker settings: %s", problem)


def is_dynamic(name: str) -> bool:
    """Whether a broker's setting of this name changes while it runs."""
    return (name in BROKER_CONFIGS and BROKER_CONFIGS[name].dynamic) or name in QUOTA_CONFIGS


def _misplaced(new: Mapping[str, str], *, per_broker: bool) -> Iterator[tuple[str, list[str]]]:
    """What may not be set so, in the order and the words of Kafka's answers (DynamicBrokerConfig.
    validateConfigs). Raises Refused for values."""
    yield "Cannot update these configs dynamically: Set(", sorted(n for n in new if not _may_be_set(n))
    yield (
        "These security configs can be dynamically updated only per-listener using the listener prefix: "
        "HashSet(",
        sorted(STORE_SETTINGS.intersection(new)),
    )
    for name, text in new.items():
        problem = _problem(name, text)
        if problem is not None:
            raise Refused(problem)
    if not per_broker:
        yield (
            "Cannot update these configs at default cluster level, broker id must be specified: Set(",
            sorted(name for name in new if _is_of_one_broker(name)),
        )


def _may_be_set(name: str) -> bool:
    """Unknown names may be stored, as in Kafka, whose plugins read settings of their own."""
    if name in BROKER_CONFIGS or name in QUOTA_CONFIGS or name in OTTLA_CONFIGS:
        return is_dynamic(name)
    return not is_refused(name)


def _is_of_one_broker(name: str) -> bool:
    base = base_name(name)
    return name in PER_BROKER if base is None else base not in OF_ALL_BROKERS


def _is_security(name: str) -> bool:
    return (unprefixed(name) or name) in NAMES


def _check_count(before: int, new: int, prefix: str) -> None:
    if new == before:
        return
    if new < 1:
        raise Refused(f"{prefix}{new}, value should be at least 1")
    if new < before // 2:
        raise Refused(f"{prefix}{new}, value should be at least half the current value {before}")
    if new > before * 2:
        raise Refused(f"{prefix}{new}, value should not be greater than double the current value {before}")


def _problem(name: str, text: str) -> str | None:
    if is_limit(name):
        return limit_problem(name, text)
    base = base_name(name) or name
    if is_dynamic(base):
        table = BROKER_CONFIGS if base in BROKER_CONFIGS else QUOTA_CONFIGS
        if table[base].type is ConfigType.CLASS and text != table[base].default:
            return f"Invalid value {text} for configuration {base}: Class {text} could not be found."
        return table.problem_in_kafka(base, text)
    # Kafka looks at the others when the listener is made.
    return None if unprefixed(name) is None else prefixed_problem(name, text)


def _shown(config: BrokerConfig, name: str) -> str | None:
    key = BROKER_CONFIGS.keys.get(name)
    return "[hidden]" if key is not None and key.type is ConfigType.PASSWORD else config.text(name)
