"""The admin client's requests about many items: results, the brokers to ask, and retries."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Collection
from dataclasses import replace

import pytest

from ottla.client import blocking, errors
from ottla.client.admin import AdminClient, QuotaEntity, Results
from ottla.client.admin.fan_out import COORDINATOR, RetryPolicy, fan_out
from ottla.client.core.types import Node
from ottla.client.errors import ClientError, ConfigError
from ottla.wire.connection import ConnectionLost, UnsupportedApi
from tests.worlds.clocks import run_in_virtual_time

HERE, THERE = Node(1, "h", 1), Node(2, "h", 2)
RETRY_POLICY = RetryPolicy(
    timeout_s=60, retries=1000, backoff_ms=1, backoff_max_ms=1, uniform=lambda least, most: least
)
HASTY = replace(RETRY_POLICY, timeout_s=1, retries=1_000_000)


def test_results_and_errors_partition_the_items() -> None:
    refused = errors.TopicAlreadyExistsError("t")
    found = Results({"a": 1, "t": refused, "b": None})
    assert (dict(found), found.errors) == ({"a": 1, "b": None}, {"t": refused})
    assert (found.get("a"), found.get("t"), found.get("t", 7), "t" in found) == (1, None, 7, False)
    with pytest.raises(errors.TopicAlreadyExistsError):
        found["t"]
    with pytest.raises(KeyError):
        found["never asked for"]
    with pytest.raises(errors.TopicAlreadyExistsError):
        found.raise_first()
    assert Results({"a": 1}).raise_first() == {"a": 1}
    assert found.outcomes() == {"a": 1, "t": refused, "b": None}


async def everybody(keys: Collection[str]) -> dict[str, Node | ClientError]:
    """Capital letters are keys with the result THERE."""
    return {key: THERE if key.isupper() else HERE for key in keys}


def test_every_broker_gets_one_request_for_its_items_concurrently() -> None:
    asked: list[tuple[int, list[str]]] = []

    async def run() -> Results[str, str]:
        both = asyncio.Barrier(2)

        async def ask(node: Node, keys: list[str]) -> dict[str, str | ClientError]:
            asked.append((node.id, keys))
            await both.wait()
            return {key: key * 2 for key in keys}

        return await fan_out("abXaY", everybody, ask, COORDINATOR, RETRY_POLICY)

    assert list(asyncio.run(run()).items()) == [("a", "aa"), ("b", "bb"), ("X", "XX"), ("Y", "YY")]
    assert sorted(asked) == [(1, ["a", "b"]), (2, ["X", "Y"])]


def test_only_items_that_moved_are_requested_again() -> None:
    asked: Counter[str] = Counter()
    found: Counter[str] = Counter()

    async def find(keys: Collection[str]) -> dict[str, Node | ClientError]:
        found.update(keys)
        unknown = errors.CoordinatorNotAvailableError("not yet")
        return {key: unknown if key == "late" and found[key] < 3 else HERE for key in keys}

    async def ask(node: Node, keys: list[str]) -> dict[str, str | ClientError]:
        asked.update(keys)
        moved = errors.NotCoordinatorError("moved")
        answers = {
            "fine": "fine",
            "refused": errors.GroupAuthorizationFailedError("no"),
            "moved": moved if asked["moved"] < 3 else "there",
            "late": "at last",
        }
        return {key: answers[key] for key in keys}

    results = asyncio.run(fan_out(["fine", "refused", "moved", "late"], find, ask, COORDINATOR, RETRY_POLICY))
    assert dict(results) == {"fine": "fine", "moved": "there", "late": "at last"}
    assert [error.name for error in results.errors.values()] == ["GROUP_AUTHORIZATION_FAILED"]
    assert asked == {"fine": 1, "refused": 1, "moved": 3, "late": 1}


def test_an_unreachable_broker_fails_only_its_own_items() -> None:
    attempts = 0

    async def ask(node: Node, keys: list[str]) -> dict[str, str | ClientError]:
        nonlocal attempts
        if node is THERE:
            attempts += 1
            raise ConnectionLost("gone")
        return {key: key for key in keys if key != "forgotten"}

    results = run_in_virtual_time(fan_out(["a", "forgotten", "X"], everybody, ask, COORDINATOR, HASTY))
    assert dict(results) == {"a": "a"}
    assert [type(results.errors[key]) for key in ("forgotten", "X")] == [
        errors.UnknownServerError,
        errors.RequestTimedOutError,
    ]
    assert "broker 2 at h:2: gone" in str(results.errors["X"])
    assert isinstance(results.errors["X"], TimeoutError)
    assert attempts > 3


@pytest.mark.parametrize(
    ("problem", "error"),
    [
        (UnsupportedApi("versions"), errors.UnsupportedVersionError),
        (errors.SaslAuthenticationFailedError("who?"), errors.SaslAuthenticationFailedError),
    ],
)
def test_permanent_errors_are_not_retried(problem: Exception, error: type[ClientError]) -> None:
    attempts = 0

    async def ask(node: Node, keys: list[str]) -> dict[str, str | ClientError]:
        nonlocal attempts
        attempts += 1
        raise problem

    results = asyncio.run(fan_out("ab", everybody, ask, COORDINATOR, RETRY_POLICY))
    assert [type(each) for each in results.errors.values()] == [error, error]
    assert attempts == 1


def test_retries_bound_the_attempts() -> None:
    attempts = 0

    async def ask(node: Node, keys: list[str]) -> dict[str, str | ClientError]:
        nonlocal attempts
        attempts += 1
        return dict.fromkeys(keys, errors.NotCoordinatorError("moved"))

    twice = RetryPolicy(60, 2, 1, 1, lambda least, most: least)
    results = asyncio.run(fan_out("a", everybody, ask, COORDINATOR, twice))
    assert (attempts, results.errors["a"].name) == (3, "NOT_COORDINATOR")


def test_the_blocking_admin_client_has_every_call() -> None:
    found = inspect.getmembers(AdminClient, inspect.iscoroutinefunction)
    calls = {name for name, _ in found if not name.startswith("_")}
    assert len(calls) > 50
    for name in calls - {"close"}:
        theirs = getattr(blocking.AdminClient, name)
        assert theirs.__doc__ == getattr(AdminClient, name).__doc__, name


def test_settings_are_those_of_kafkas_admin_client() -> None:
    config = AdminClient({"bootstrap.servers": "h:1", "retries": "3"}, request_timeout_ms=5).config
    assert (config.retries, config.request_timeout_ms, config.client_id) == (3, 5, "adminclient-ottla")
    with pytest.raises(ConfigError, match=r"did you mean default.api.timeout.ms"):
        AdminClient(bootstrap_servers="h:1", default_api_timeout=5)


def test_a_quota_entity_is_a_key() -> None:
    one, same = QuotaEntity({"user": "u", "client-id": None}), QuotaEntity({"client-id": None, "user": "u"})
    assert (one, hash(one), str(one)) == (same, hash(same), str(same))
    assert one == {"user": "u", "client-id": None}
