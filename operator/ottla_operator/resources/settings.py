"""Validates Kafka settings in a spec with the brokers' configuration tables, before a broker starts.

Called by the Topic and BrokerCluster models. The only table here is that of the settings that the operator
sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.metadata.broker_config_table import BROKER_CONFIGS
from ottla.metadata.config import BrokerConfig, ConfigError, is_connect_string, validate_topic_config
from ottla.metadata.dynamic_broker_config import THREAD_COUNTS, is_of_all_brokers, nearest_count
from ottla.metadata.listeners import base_name

__all__ = [
    "DEFAULT_PROTOCOL_VERSION",
    "PROTOCOL_VERSION",
    "RESERVED_BROKER_SETTINGS",
    "THROTTLED_REPLICAS",
    "broker_settings_problems",
    "is_connect_string",
    "is_live_setting",
    "next_value",
    "release_of",
    "topic_setting_problem",
    "version_problem",
]

PROTOCOL_VERSION: Final = "inter.broker.protocol.version"
DEFAULT_PROTOCOL_VERSION: Final = str(BROKER_CONFIGS[PROTOCOL_VERSION].default)

THROTTLED_REPLICAS: Final = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)
"""A topic's throttled replicas (KIP-73), which a reassignment tool sets during a reassignment."""

RESERVED_BROKER_SETTINGS: Final = {
    "advertised.listeners": "from spec.listeners",
    "broker.id": "it is the broker's ordinal",
    "broker.id.generation.enable": "broker ids are ordinals",
    "broker.rack": "from spec.rack",
    "inter.broker.listener.name": "from spec.listeners",
    "listener.security.protocol.map": "from spec.listeners",
    "listeners": "from spec.listeners",
    "log.dir": "on the broker's volume",
    "log.dirs": "on the broker's volume",
    "security.inter.broker.protocol": "from spec.listeners",
    "zookeeper.connect": "from spec.zookeeper",
}


def topic_setting_problem(name: str, value: str) -> str | None:
    """Why a topic's setting is invalid, or None."""
    return validate_topic_config(name, value)


def is_live_setting(name: str) -> bool:
    """Whether brokers alter the setting while they run, for all of them together, as the brokers' own table
    says. Dynamic settings of a single broker are not: they belong to its listeners and have an effect at its
    next start. Nor are those that exist as dynamic ones only: the operator has the replication throttle."""
    return (base_name(name) or name) in BROKER_CONFIGS and is_of_all_brokers(name)


def next_value(
    name: str, wanted: str | None, dynamic: Mapping[str, str | None], of_files: Mapping[str, str]
) -> str | None:
    """The value to set now on the way to `wanted`; None is the default. Brokers change a number of threads by
    at most a factor of two at a time. `dynamic`: the dynamic settings; `of_files`: those that running brokers
    have in their files."""
    base = base_name(name) or name
    if base not in THREAD_COUNTS:
        return wanted
    default = _count(of_files.get(base)) or _count(str(BROKER_CONFIGS[base].default)) or 1
    if name != base:
        default = _count(of_files.get(name)) or _count(dynamic.get(base)) or default
    before, after = _count(dynamic.get(name)) or default, _count(wanted) or default
    nearest = nearest_count(before, after)
    return wanted if nearest == after else str(nearest)


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def release_of(version: str) -> str:
    """The release of a version: `3.9` for `3.9.1` and for `3.9-IV0`."""
    return ".".join(version.partition("-")[0].split(".")[:2])


def version_problem(version: str) -> str | None:
    """Why brokers do not support this inter.broker.protocol.version, or None."""
    problems, _ = broker_settings_problems({PROTOCOL_VERSION: release_of(version)})
    return problems[0][1] if problems else None


def broker_settings_problems(settings: Mapping[str, str]) -> tuple[list[tuple[str, str]], list[str]]:
    """((setting, message) for each invalid setting, warnings about settings without effect)."""
    problems = [
        (name, f"is set by the operator: {RESERVED_BROKER_SETTINGS[name]}")
        for name in settings
        if name in RESERVED_BROKER_SETTINGS
    ]
    free = {name: value for name, value in settings.items() if name not in RESERVED_BROKER_SETTINGS}
    try:
        return problems, BrokerConfig.from_properties(free).warnings
    except ConfigError as error:
        problems += [_named(line) for line in error.problems]
        return problems, []


def _named(line: str) -> tuple[str, str]:
    """A line `name=value: reason` or `name: reason` of ConfigError as (name, message)."""
    setting, _, reason = line.partition(": ")
    name, equals, value = setting.partition("=")
    return name, f"{value!r} is not allowed: {reason}" if equals else reason
