"""Policies of the operator's own for new topics and changed settings (KIP-108, KIP-133), and for deletion.

    class Replicated:
        def validate(self, request: CreateTopicMetadata) -> None:
            if request.replication_factor is not None and request.replication_factor < 3:
                raise PolicyViolation("replication factor: at least 3")

`create.topic.policy.class.name` and `alter.config.policy.class.name` name a class: `module:Class`, or an
entry point in the group `ottla.policies`. A broker makes one object of it, without arguments, when it starts.
`configure`, if it is there, gets the broker's settings; `close` is called when the broker stops. The classes
in `ottla.log.deletion.policy.classes` are loaded likewise; `storage.retention` calls them.

Invariant: `validate` runs in a worker thread, so a slow policy holds up its request and nothing else of the
broker's loop.
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
    """The request does not satisfy the policy. Its text goes to the client, with POLICY_VIOLATION."""


class CreateTopicMetadata(NamedTuple):
    """A topic that is about to be created."""

    topic: str
    num_partitions: int | None
    """None if replicas_assignments is given, as is replication_factor."""
    replication_factor: int | None
    replicas_assignments: Mapping[int, Sequence[int]] | None
    """Brokers by partition, if the request names them."""
    configs: Mapping[str, str | None]


class AlterConfigMetadata(NamedTuple):
    """Settings that are about to be changed."""

    resource_type: str
    """TOPIC or BROKER."""
    resource_name: str
    """Empty for what holds for all brokers."""
    configs: Mapping[str, str | None]
    """Those of the request: None is deleted; of append and subtract, the items."""


class Policy(Protocol):
    """`configure(configs: Mapping[str, str])` and `close()` are optional."""

    def validate(self, request: Any) -> None:
        """Raises PolicyViolation. Anything else that it raises is logged; the client gets
        UNKNOWN_SERVER_ERROR."""


def load_policy(setting: str, properties: Mapping[str, str]) -> Policy | None:
    """The policy that a setting names, configured; None if it is not set. Raises ConfigError."""
    name = properties.get(setting, "")
    return cast(Policy, load(setting, name, properties, "validate")) if name else None


def load(setting: str, name: str, properties: Mapping[str, str], method: str) -> Any:
    """The policy of that name, which has this method, configured. Raises ConfigError."""
    try:
        policy = _class(name)()
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
    """Raises KafkaError if the policy, if there is one, does not allow the request."""
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
