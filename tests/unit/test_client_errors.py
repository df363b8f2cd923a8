"""Errors of the client: a class for each code, kinds to catch, and whether to retry."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.client import errors, errors_by_code, errors_source
from ottla.protocol.errors import ErrorCode, KafkaError

CODES = [code for code in ErrorCode if code]


def test_the_classes_are_those_of_the_table() -> None:
    written = Path(errors_by_code.__file__).read_text()
    assert written == errors_source.source(), "run python -m ottla.client.errors_source"
    assert set(errors.BY_CODE) == {int(code) for code in CODES}


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_an_error_has_its_codes_name_message_and_retriability(code: ErrorCode) -> None:
    error = errors.for_code(code)
    assert (error.code, error.name, error.retriable) == (code, code.name, code.retriable)
    assert isinstance(error, errors.RetriableError) is code.retriable
    assert str(error) == f"{code.name}: {code.message}"


def test_an_error_is_caught_by_class_by_category_and_as_the_protocols_error() -> None:
    error = errors.for_code(6, "orders-3 on broker 1")
    assert type(error) is errors.NotLeaderOrFollowerError
    for kind in (errors.InvalidMetadataError, errors.RetriableError, errors.ClientError, KafkaError):
        assert isinstance(error, kind)
    assert str(error) == "NOT_LEADER_OR_FOLLOWER: orders-3 on broker 1"
    from_below = errors.typed(KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "group billing"))
    assert isinstance(from_below, errors.AuthorizationError)
    assert from_below.message == "group billing"
    assert errors.typed(error) is error


def test_a_code_of_a_later_kafka_keeps_its_number() -> None:
    error = errors.for_code(999, "what the broker said")
    assert type(error) is errors.UnknownServerError
    assert str(error).endswith("error code 999, which Kafka 3.9 does not have: what the broker said")


def test_timeouts_are_also_pythons_timeout_error() -> None:
    with pytest.raises(TimeoutError, match="REQUEST_TIMED_OUT: orders-0: 120 s are over"):
        raise errors.DeliveryTimeoutError("orders-0: 120 s are over")
    assert errors.BufferExhaustedError.retriable


@pytest.mark.parametrize(
    "error",
    [
        errors.for_code(7, "said"),
        errors.for_code(3),
        errors.DeliveryTimeoutError("late"),
        errors.ConfigError("acks: 7"),
        errors.DeserializationError("orders", 1, 42, "not JSON"),
        errors.LogTruncationError("orders", 1, 42, 40),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_can_be_pickled(error: errors.ClientError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)


def test_the_errors_module_does_not_import_asyncio() -> None:
    script = "import ottla.client.errors, sys; assert 'asyncio' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
