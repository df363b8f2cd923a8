"""Distributes a call about many items to the brokers that serve them, concurrently.

Called by the API families of `AdminClient`. `find` looks up the broker of each item; `ask` sends one request
with the broker's items to each broker. An item that fails with a retriable error (its broker has moved, is
gone or is not ready) is looked up and sent again after a backoff, until it has a result or the deadline
passes, as in Kafka's AdminClient. Invariant: an item with a result is not sent again.
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
"""Returns the broker of each item, or the error of the look-up."""
Ask: TypeAlias = Callable[[Node, list[K]], Awaitable[Mapping[K, V | ClientError]]]
"""Sends a request for these items to a broker; returns the result or error of each. Raises what `Brokers.to`
raises, and KafkaError for an error of all items."""

_CONNECTION: Final = frozenset({ErrorCode.NETWORK_EXCEPTION})
CONTROLLER: Final = _CONNECTION | {ErrorCode.NOT_CONTROLLER}
"""Retriable errors of requests to the controller."""
COORDINATOR: Final = _CONNECTION | {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
}
"""Retriable errors of requests to a coordinator."""
LEADER: Final = _CONNECTION | {
    code
    for code in ErrorCode
    if code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    and issubclass(errors.class_of(code), errors.InvalidMetadataError)
}
BROKER: Final = _CONNECTION | {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
"""Retriable errors of requests to a given broker."""


@dataclass(frozen=True)
class RetryPolicy:
    """The deadline, the number of retries and the backoff of admin calls."""

    timeout_s: float
    retries: int
    backoff_ms: float
    backoff_max_ms: float
    uniform: Uniform


async def fan_out(
    keys: Iterable[K], find: Find[K], ask: Ask[K, V], retriable: Collection[ErrorCode], policy: RetryPolicy
) -> Results[K, V]:
    """Get the results of all items. `retriable`: errors after which an item is sent again. Raises
    ClientError if a look-up fails because no broker responds."""
    wanted = list(dict.fromkeys(keys))
    outcomes: dict[K, V | ClientError] = {}
    pending: dict[K, ClientError] = dict.fromkeys(
        wanted, errors.RequestTimedOutError("no broker has responded")
    )
    deadline = asyncio.get_running_loop().time() + policy.timeout_s
    attempt = 0
    try:
        async with asyncio.timeout_at(deadline):
            while pending:
                for key, outcome in (await _once(list(pending), find, ask)).items():
                    if isinstance(outcome, errors.BrokerError) and outcome.code in retriable:
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
    for results in await asyncio.gather(*(_ask_broker(node, share, ask) for node, share in shares.items())):
        outcomes.update(results)
    return outcomes


async def _ask_broker(node: Node, keys: list[K], ask: Ask[K, V]) -> Mapping[K, V | ClientError]:
    """The results of one broker's items; an error of the whole request is the error of each item."""
    try:
        results = await ask(node, keys)
    except (KafkaError, OSError, UnsupportedApi) as problem:
        error = client_error(problem, f"broker {node.id} at {node.host}:{node.port}")
        return dict.fromkeys(keys, error)
    missing = errors.UnknownServerError(f"broker {node.id} returned no result for the item")
    return {key: results.get(key, missing) for key in keys}


def client_error(problem: Exception, where: str) -> ClientError:
    """Convert an exception of the wire layer to a ClientError; a request without a response is
    NETWORK_EXCEPTION, as in Kafka."""
    if isinstance(problem, KafkaError):
        return errors.typed(problem)
    if isinstance(problem, UnsupportedApi):
        return errors.UnsupportedVersionError(str(problem))
    error = errors.NetworkError(f"{where}: {str(problem) or type(problem).__name__}")
    error.__cause__ = problem
    return error
