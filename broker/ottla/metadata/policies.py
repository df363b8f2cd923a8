"""Custom policies for new topics and changed settings (KIP-108, KIP-133), and for deletion of segments.

    class Replicated:
        def validate(self, request: CreateTopicMetadata) -> None:
            if request.replication_factor is not None and request.replication_factor < 3:
                raise PolicyViolation("replication factor: at least 3")

`create.topic.policy.class.name` and `alter.config.policy.class.name` name a class: `module:Class`, or an
entry point in the group `ottla.policies`. A broker creates one instance, without arguments, when it starts.
The optional `configure` gets the broker's settings; the optional `close` is called when the broker stops. The
classes in `ottla.log.deletion.policy.classes` are loaded in the same way (`storage.retention` calls them), as
are custom authorizers (`custom_authorizer`).

Invariant: `validate` runs in a worker thread, so a slow policy delays its own request only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final, NamedTuple, Protocol, cast

from ottla.metadata.config_def import ConfigError
from ottla.protocol.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)

CREATE_TOPIC: Final = "create.topic.policy.class.name"
ALTER_CONFIG: Final = "alter.config.policy.class.name"
DELETION: Final = "ottla.log.deletion.policy.classes"
ENTRY_POINTS: Final = "ottla.policies"


class PolicyViolation(Exception):
    """The request does not satisfy the policy. The client gets its text with POLICY_VIOLATION."""


class CreateTopicMetadata(NamedTuple):
    """The topic in a CreateTopics request."""

    topic: str
    num_partitions: int | None
    """None if replicas_assignments is given, as is replication_factor."""
    replication_factor: int | None
    replicas_assignments: Mapping[int, Sequence[int]] | None
    """Brokers by partition, if the request names them."""
    configs: Mapping[str, str | None]


class AlterConfigMetadata(NamedTuple):
    """The settings in an AlterConfigs request."""

    resource_type: str
    """TOPIC or BROKER."""
    resource_name: str
    """Empty for the settings of all brokers."""
    configs: Mapping[str, str | None]
    """The settings of the request: None to delete; the items of append and subtract."""


class Policy(Protocol):
    """`configure(configs: Mapping[str, str])` and `close()` are optional."""

    def validate(self, request: Any) -> None:
        """Raise PolicyViolation to reject the request. Other exceptions are logged, and the client gets
        UNKNOWN_SERVER_ERROR."""


def load_policy(setting: str, properties: Mapping[str, str]) -> Policy | None:
    """The configured policy of a setting; None if it is not set. Raises ConfigError."""
    name = properties.get(setting, "")
    return cast(Policy, load(setting, name, properties, "validate")) if name else None


def load(setting: str, name: str, properties: Mapping[str, str], *methods: str) -> Any:
    """The configured policy of that name, which must have these methods. Raises ConfigError."""
    try:
        policy = _class(name)()
        for method in methods:
            if not callable(getattr(policy, method, None)):
                raise TypeError(f"it has no method {method}")
        if hasattr(policy, "configure"):
            policy.configure(dict(properties))
    except Exception as problem:  # whatever its module and its own code raise
        text = f"{problem}" if isinstance(problem, LookupError | TypeError) else f"{problem!r}"
        raise ConfigError([f"Invalid value {name} for {setting}: {text}"]) from problem
    return policy


def _class(name: str) -> Any:
    module, separator, attribute = name.partition(":")
    if separator:
        return getattr(import_module(module), attribute)
    found = entry_points(group=ENTRY_POINTS, name=name)
    if not found:
        raise LookupError(f"it is neither module:Class nor an entry point in the group {ENTRY_POINTS}")
    return next(iter(found)).load()


async def check(policy: Policy | None, request: CreateTopicMetadata | AlterConfigMetadata) -> None:
    """Raise KafkaError if there is a policy and it rejects the request."""
    if policy is None:
        return
    try:
        await asyncio.to_thread(policy.validate, request)
    except PolicyViolation as violation:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, str(violation)) from None
    except Exception:
        log.exception("%s failed to validate %s", type(policy).__name__, request)
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "") from None


def close(policy: object) -> None:
    if hasattr(policy, "close"):
        try:
            policy.close()
        except Exception:
            log.exception("%s failed to close", type(policy).__name__)
