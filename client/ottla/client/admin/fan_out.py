"""One call about many items: each goes to the broker that has to do with it, all brokers at a time.

Called by the families of `AdminClient`. Who is asked about what is found out first (`find`), then every
broker is asked for its share in one request (`ask`). An item whose broker has moved, is gone, or cannot serve
it yet is looked up and asked for again, with growing pauses, until it has its answer or the time is over: as
Kafka's own AdminClient does. Items that are done are never asked for twice.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from ottla.client import errors
from ottla.client.admin_types import Results
from ottla.client.core.backoff import Uniform, backoff_s
from ottla.client.core.types import Node
from ottla.client.errors import ClientError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.wire.connection import UnsupportedApi

K = TypeVar("K")
V = TypeVar("V")
Find: TypeAlias = Callable[[Collection[K]], Awaitable[Mapping[K, Node | ClientError]]]
"""The broker of each item, or why there is none."""
Ask: TypeAlias = Callable[[Node, list[K]], Awaitable[Mapping[K, V | ClientError]]]
"""What a broker says of its items. Raises what `Brokers.to` raises, and KafkaError for all of them."""

_CONNECTION: Final = frozenset({ErrorCode.NETWORK_EXCEPTION})
CONTROLLER: Final = _CONNECTION | {ErrorCode.NOT_CONTROLLER}
"""Errors after which an item is tried again, where the controller is asked."""
COORDINATOR: Final = _CONNECTION | {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
}
LEADER: Final = _CONNECTION | {
    code
    for code in ErrorCode
    if code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    and issubclass(errors.class_of(code), errors.InvalidMetadataError)
}
BROKER: Final = _CONNECTION | {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
"""Where a certain broker is asked."""


@dataclass(frozen=True)
class RetryPolicy:
    """How long, and with which pauses."""

    timeout_s: float
    retries: int
    backoff_ms: float
    backoff_max_ms: float
    uniform: Uniform


async def fan_out(
    keys: Iterable[K], find: Find[K], ask: Ask[K, V], again: Collection[ErrorCode], policy: RetryPolicy
) -> Results[K, V]:
    """`again`: the errors after which an item is tried again. Raises ClientError when no broker answers that
    could tell whom to ask."""
    wanted = list(dict.fromkeys(keys))
    outcomes: dict[K, V | ClientError] = {}
    pending: dict[K, ClientError] = dict.fromkeys(
        wanted, errors.RequestTimedOutError("no broker has answered")
    )
    deadline = asyncio.get_running_loop().time() + policy.timeout_s
    attempt = 0
    try:
        async with asyncio.timeout_at(deadline):
            while pending:
                for key, outcome in (await _once(list(pending), find, ask)).items():
                    if isinstance(outcome, errors.BrokerError) and outcome.code in again:
                        pending[key] = outcome
                    else:
                        outcomes[key] = outcome
                        pending.pop(key, None)
                if pending and attempt >= policy.retries:
                    break
                if pending:
                    await asyncio.sleep(
                        backoff_s(
                            attempt,
                            policy.backoff_ms,
                            policy.backoff_max_ms,
                            policy.uniform,
                        )
                    )
                    attempt += 1
    except TimeoutError:
        pending = {key: _late(policy.timeout_s, last) for key, last in pending.items()}
    outcomes.update(pending)
    return Results({key: outcomes[key] for key in wanted})


def _late(timeout_s: float, last: ClientError) -> ClientError:
    error = errors.RequestTimedOutError(f"not done within {timeout_s:g} s; at last: {last}")
    error.__cause__ = last
    return error


async def _once(keys: list[K], find: Find[K], ask: Ask[K, V]) -> dict[K, V | ClientError]:
    outcomes: dict[K, V | ClientError] = {}
    shares: defaultdict[Node, list[K]] = defaultdict(list)
    for key, found in (await find(keys)).items():
        if isinstance(found, ClientError):
            outcomes[key] = found
        else:
            shares[found].append(key)
    for told in await asyncio.gather(*(_share(node, share, ask) for node, share in shares.items())):
        outcomes.update(told)
    return outcomes


async def _share(node: Node, keys: list[K], ask: Ask[K, V]) -> Mapping[K, V | ClientError]:
    """What one broker says; an error instead of an answer is that of all of them."""
    try:
        told = await ask(node, keys)
    except (KafkaError, OSError, UnsupportedApi) as problem:
        error = client_error(problem, f"broker {node.id} at {node.host}:{node.port}")
        return dict.fromkeys(keys, error)
    missing = errors.UnknownServerError(f"broker {node.id} left it out of its answer")
    return {key: told.get(key, missing) for key in keys}


def client_error(problem: Exception, where: str) -> ClientError:
    """An exception from below the client as one of its own; a request that was not answered is
    NETWORK_EXCEPTION, as in Kafka."""
    if isinstance(problem, KafkaError):
        return errors.typed(problem)
    if isinstance(problem, UnsupportedApi):
        return errors.UnsupportedVersionError(str(problem))
    error = errors.NetworkError(f"{where}: {str(problem) or type(problem).__name__}")
    error.__cause__ = problem
    return error
