"""Broker settings that change while brokers run (KIP-226): what may be stored, and what follows from it.

Called by the handler of AlterConfigs (`check`, before anything is stored) and by the broker (`heard`, at the
start and after each change notification of `dynamic`). Pure: nothing here reads or writes the store.

Stored is one mapping per broker id and one for all brokers, /config/brokers/<default>. What another version
or a hand has left there and cannot be used is logged and ignored; it never stops a broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from ottla.metadata import stored_passwords
from ottla.metadata.config import (
    BROKER_CONFIGS,
    QUOTA_CONFIGS,
    BrokerConfig,
    ConfigError,
    is_refused,
)
from ottla.metadata.listener_settings import PREFIX, is_limit, limit_problem
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
        fixed = sorted(name for name in new if not _is_dynamic(name))
        if fixed:
            raise Refused(f"Cannot update these configs dynamically: Set({', '.join(fixed)})")
        bare = sorted(STORE_SETTINGS.intersection(new))
        if bare:
            raise Refused(
                "These security configs can be dynamically updated only per-listener using the listener "
                f"prefix: Set({', '.join(bare)})"
            )
        for name, text in new.items():
            problem = _problem(name, text)
            if problem is not None:
                raise Refused(problem)
        of_listeners = sorted(name for name in new if unprefixed(name) is not None)
        if of_listeners and not per_broker:
            raise Refused(
                "Cannot update these configs at default cluster level, broker id must be specified: "
                f"Set({', '.join(of_listeners)})"
            )
        try:
            if per_broker:
                values = self.config.overlaid(new, self.config.of_cluster)
            else:
                values = self.config.overlaid(self.config.of_broker, new)
        except ConfigError as error:
            raise Refused(error.problems[0]) from None
        self._check_changes(values)
        for check in self.checks:
            refusal = check(new) if of_listeners else None
            if refusal is not None:
                raise Refused(refusal)

    def _check_changes(self, values: Mapping[str, object]) -> None:
        for name in _THREADS:
            self._check_count(
                name, values[name], f"Dynamic thread count update validation failed for {name}="
            )
        self._check_count("log.cleaner.threads", values["log.cleaner.threads"], "log.cleaner.threads=")

    def _check_count(self, name: str, new: object, prefix: str) -> None:
        before = self.config.get_int(name)
        assert isinstance(new, int)
        if new == before:
            return
        if new < 1:
            raise Refused(f"{prefix}{new}, value should be at least 1")
        if new < before // 2:
            raise Refused(f"{prefix}{new}, value should be at least half the current value {before}")
        if new > before * 2:
            raise Refused(
                f"{prefix}{new}, value should not be greater than double the current value {before}"
            )

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
        if entity == DEFAULT_ENTITY:
            layers = (config.of_broker, self.usable(stored))
        elif entity == str(config.broker_id):
            layers = (self.usable(stored), config.of_cluster)
        else:
            return
        try:
            changed = config.overlay(*layers)
        except ConfigError as error:
            log.error("the dynamic settings of %s are not applied: %s", entity, error)
            return
        if not changed:
            return
        log.info(
            "dynamic settings of %s: %s", entity, ", ".join(f"{n}={config.text(n)}" for n in sorted(changed))
        )
        for tell in self.on_change:
            try:
                tell(changed)
            except Exception:
                log.exception("applying dynamic settings failed: %s", ", ".join(sorted(changed)))

    def usable(self, stored: Mapping[str, str]) -> dict[str, str]:
        """What can be applied of the stored settings, passwords decrypted; the rest is logged."""
        return _usable(stored_passwords.decoded(stored, stored_passwords.encoder(self.config)))

    def ignored(self, problem: Exception) -> None:
        """What is stored cannot be read at all."""
        log.error("ignoring broker settings: %s", problem)


def _usable(stored: Mapping[str, str]) -> dict[str, str]:
    good: dict[str, str] = {}
    for name, text in stored.items():
        problem = _problem(name, text) if _is_dynamic(name) else f"{name} does not change while a broker runs"
        if problem is None:
            good[name] = text
        else:
            log.error("a stored dynamic setting is ignored: %s", problem)
    return good


def is_dynamic(name: str) -> bool:
    """Whether a broker's setting of this name changes while it runs."""
    return (name in BROKER_CONFIGS and BROKER_CONFIGS[name].dynamic) or name in QUOTA_CONFIGS


def _is_dynamic(name: str) -> bool:
    """Unknown names may be stored, as in Kafka, whose plugins read settings of their own."""
    of_listener = unprefixed(name)
    if of_listener is not None:
        return of_listener in STORE_SETTINGS
    if name in NAMES and name not in STORE_SETTINGS:
        return False  # of listeners, which do not change
    if name in BROKER_CONFIGS or name in QUOTA_CONFIGS:
        return is_dynamic(name)
    return not is_refused(name) and (not name.startswith(PREFIX) or is_limit(name))


def _problem(name: str, text: str) -> str | None:
    if unprefixed(name) is not None:
        return prefixed_problem(name, text)
    if is_limit(name):
        return limit_problem(name, text)
    for table in (BROKER_CONFIGS, QUOTA_CONFIGS):
        if name in table:
            return table.problem_in_kafka(name, text)
    return None
