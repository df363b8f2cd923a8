"""Settings that a listener may have of its own: `listener.name.<listener>.<setting>`.

Called by `config` and `dynamic_broker`, which check and keep them. These are the limits of connections; they
may change while the broker runs.
"""

from __future__ import annotations

import re
from typing import Final

from ottla.metadata.broker_config_table import BROKER_CONFIGS

PREFIX: Final = "listener.name."
LIMITS: Final = ("max.connections", "max.connection.creation.rate")
OF_ALL_BROKERS: Final = (*LIMITS, "num.network.threads")
"""What may be set for a listener of all brokers (DynamicBrokerConfig.ClusterLevelListenerConfigs)."""
_PREFIXED: Final = re.compile(r"listener\.name\.[^.]*\.(.*)", re.DOTALL)


def listener_key(listener: str, name: str) -> str:
    """The setting's own name for a listener, which is written in small letters there."""
    return f"{PREFIX}{listener.lower()}.{name}"


def base_name(name: str) -> str | None:
    """What follows `listener.name.<listener>.`; None where a name does not begin so."""
    match = _PREFIXED.fullmatch(name)
    return match[1] if match else None


def is_limit(name: str) -> bool:
    """Whether it is one of LIMITS, for some listener."""
    return _limit(name) is not None


def limit_problem(name: str, text: str) -> str | None:
    """What is wrong with the value of such a setting, or None. Nobody at all may be no limit, as in Kafka."""
    limit = _limit(name)
    assert limit is not None
    problem = BROKER_CONFIGS.problem_in_kafka(limit, text)
    if problem is None and int(text) <= 0:
        return f"Invalid {limit} {text}"
    return problem


def _limit(name: str) -> str | None:
    if not name.startswith(PREFIX):
        return None
    listener, _, rest = name.removeprefix(PREFIX).partition(".")
    return rest if listener and rest in LIMITS else None
