"""Custom policies: how a broker finds them, and how it treats their exceptions."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from ottla.metadata import policies
from ottla.metadata.config import BrokerConfig
from ottla.metadata.config_def import ConfigError
from ottla.metadata.policies import (
    ALTER_CONFIG,
    CREATE_TOPIC,
    CreateTopicMetadata,
    PolicyViolation,
    load_policy,
)
from ottla.protocol.errors import ErrorCode, KafkaError

REQUEST = CreateTopicMetadata("orders", 3, 1, None, {"retention.ms": "1"})


class Recorder:
    """A policy that records its arguments, and raises `problem`."""

    problem: Exception | None = None

    def configure(self, configs: Mapping[str, str]) -> None:
        self.configs = configs

    def validate(self, request: CreateTopicMetadata) -> None:
        self.request, self.thread = request, threading.current_thread()
        if self.problem is not None:
            raise self.problem


class Unwilling:
    def configure(self, configs: Mapping[str, str]) -> None:
        raise ValueError("my.limit is not set")

    def validate(self, request: object) -> None: ...


class Bad:
    def validate(self, request: object) -> None: ...

    def close(self) -> None:
        raise RuntimeError("too late")


def test_a_class_is_made_and_configured_with_the_brokers_settings() -> None:
    properties = {CREATE_TOPIC: f"{__name__}:Recorder", "my.limit": "3"}
    policy = load_policy(CREATE_TOPIC, properties)
    assert isinstance(policy, Recorder)
    assert policy.configs == properties
    assert load_policy(ALTER_CONFIG, properties) is None


def test_an_entry_point_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints([EntryPoint("limits", f"{__name__}:Recorder", policies.ENTRY_POINTS)])
    monkeypatch.setattr(policies, "entry_points", lambda **of: points.select(**of))
    assert isinstance(load_policy(ALTER_CONFIG, {ALTER_CONFIG: "limits"}), Recorder)
    with pytest.raises(ConfigError, match="neither module:Class nor an entry point in the group"):
        load_policy(ALTER_CONFIG, {ALTER_CONFIG: "other"})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("com.example.Policy", "it is neither module:Class nor an entry point"),
        ("no.such.module:Policy", "ModuleNotFoundError"),
        (f"{__name__}:Missing", "has no attribute 'Missing'"),
        ("ottla.metadata.policies:PolicyViolation", "it has no method validate"),
        ("ottla.metadata.policies:load_policy", "missing 2 required positional arguments"),
        (f"{__name__}:Unwilling", "ValueError('my.limit is not set')"),
    ],
)
def test_an_unavailable_policy_is_an_error_of_its_setting(name: str, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_policy(CREATE_TOPIC, {CREATE_TOPIC: name})
    (problem,) = refused.value.problems
    assert problem.startswith(f"Invalid value {name} for {CREATE_TOPIC}: ")
    assert expected in problem


def test_a_deletion_policy_is_one_that_names_segments() -> None:
    with pytest.raises(ConfigError, match="it has no method deletable"):
        policies.load(policies.DELETION, f"{__name__}:Recorder", {}, "deletable")


def test_the_default_deletion_policy_must_exist() -> None:
    default, classes = "ottla.log.deletion.policies", policies.DELETION
    BrokerConfig.from_properties({default: "time,a:B", classes: "a:B"})
    with pytest.raises(ConfigError, match=f"{default}: unknown policy a:B; .* size, time, c:D"):
        BrokerConfig.from_properties({default: "time,a:B", classes: "c:D"})
    with pytest.raises(ConfigError, match="time: is built in"):
        BrokerConfig.from_properties({classes: "a:B,time"})
    with pytest.raises(ConfigError, match="names of policies, each once"):
        BrokerConfig.from_properties({classes: "a:B,a:B"})


def check(policy: policies.Policy | None) -> KafkaError | None:
    try:
        asyncio.run(policies.check(policy, REQUEST))
    except KafkaError as error:
        return error
    return None


def test_a_policy_is_called_outside_of_the_event_loop() -> None:
    policy = Recorder()
    assert check(policy) is None
    assert policy.request is REQUEST
    assert policy.thread is not threading.current_thread()
    assert check(None) is None


def test_a_violation_goes_to_the_client_and_anything_else_to_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    policy = Recorder()
    policy.problem = PolicyViolation("too few replicas")
    error = check(policy)
    assert error is not None
    assert (error.code, error.message) == (ErrorCode.POLICY_VIOLATION, "too few replicas")
    policy.problem = RuntimeError("a secret")
    with caplog.at_level(logging.ERROR):
        error = check(policy)
    assert error is not None
    assert (error.code, error.message) == (ErrorCode.UNKNOWN_SERVER_ERROR, "")
    assert "Recorder failed to validate CreateTopicMetadata(topic='orders'" in caplog.text
    assert "a secret" in caplog.text


def test_a_policy_that_fails_to_close_does_not_keep_a_broker_from_stopping(
    caplog: pytest.LogCaptureFixture,
) -> None:
    policies.close(Recorder())
    policies.close(Bad())
    assert "Bad failed to close" in caplog.text


def test_the_settings_are_no_longer_ignored() -> None:
    config = BrokerConfig.from_properties(
        {CREATE_TOPIC: "a:B", ALTER_CONFIG: "c:D", "zookeeper.connect": "h:1"}
    )
    assert config.warnings == []
