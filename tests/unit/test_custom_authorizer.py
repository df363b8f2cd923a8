"""Custom authorizers: what the server asks a user's class, and which classes a broker does not load."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.metadata.config import BrokerConfig
from ottla.metadata.config_def import ConfigError
from ottla.metadata.custom_authorizer import CustomAuthorizer, load_authorizer
from ottla.security.acls import Operation, ResourceType, bits
from ottla.security.authorizer import allowed_operations
from ottla.security.principals import Principal

ADMIN, EVE = Principal("User", "admin"), Principal("User", "eve")
TOPIC, READ, WRITE = ResourceType.TOPIC, Operation.READ, Operation.WRITE


class Recorder:
    """Allows READ on `mine`."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.configs: dict[str, str] = {}

    def configure(self, configs: dict[str, str]) -> None:
        self.configs = configs

    def authorize(self, *asked: Any) -> bool:
        self.asked.append(asked)
        return asked[2:] == (READ, TOPIC, "mine")

    def authorize_by_resource_type(self, *asked: Any) -> bool:
        self.asked.append(asked)
        return asked[2] is READ


class Asynchronous(Recorder):
    async def authorize(self, *asked: Any) -> bool:  # type: ignore[override]
        return True


class Unfinished:
    def authorize(self, *asked: Any) -> bool:
        return True


class Broken(Recorder):
    def configure(self, configs: dict[str, str]) -> None:
        raise KeyError("authorizer.teams.file")


def loaded(name: str, **settings: str) -> CustomAuthorizer:
    given = {"authorizer.class.name": f"{__name__}:{name}", "super.users": "User:admin", **settings}
    config = BrokerConfig.from_properties(given)
    assert config.warnings == []
    authorizer = load_authorizer(config.static)
    assert authorizer is not None
    return authorizer


def test_the_class_decides_for_all_but_super_users() -> None:
    authorizer = loaded("Recorder")
    recorder: Any = authorizer.instance
    assert authorizer.allows(EVE, "10.0.0.1", READ, TOPIC, "mine")
    assert not authorizer.allows(EVE, "10.0.0.1", WRITE, TOPIC, "mine")
    assert not authorizer.allows(EVE, "10.0.0.1", WRITE, ResourceType.CLUSTER)
    assert recorder.asked[0] == (EVE, "10.0.0.1", READ, TOPIC, "mine")
    assert recorder.asked[2][4] == "kafka-cluster"
    assert allowed_operations(authorizer, EVE, "10.0.0.1", TOPIC, "mine") == bits([READ])
    assert authorizer.allows_some(EVE, "10.0.0.1", READ, TOPIC)
    assert not authorizer.allows_some(EVE, "10.0.0.1", WRITE, TOPIC)
    recorder.asked.clear()
    assert authorizer.allows(ADMIN, "10.0.0.1", WRITE, TOPIC, "other")
    assert authorizer.allows_some(ADMIN, "10.0.0.1", WRITE, TOPIC)
    assert recorder.asked == []


def test_the_class_gets_the_brokers_settings_and_its_own() -> None:
    recorder: Any = loaded("Recorder", **{"authorizer.teams.file": "teams.json"}).instance
    assert recorder.configs["authorizer.teams.file"] == "teams.json"
    assert recorder.configs["super.users"] == "User:admin"


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_an_answer_that_is_not_true_denies() -> None:
    assert not loaded("Asynchronous").allows(EVE, "10.0.0.1", READ, TOPIC, "mine")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (f"{__name__}:Missing", "has no attribute 'Missing'"),
        ("no_such_module:Mine", "No module named 'no_such_module'"),
        (f"{__name__}:Unfinished", "it has no method authorize_by_resource_type"),
        (f"{__name__}:Broken", "authorizer.teams.file"),
    ],
)
def test_a_class_that_cannot_be_used_is_a_config_error(name: str, problem: str) -> None:
    with pytest.raises(ConfigError) as failed:
        load_authorizer({"authorizer.class.name": name})
    assert f"Invalid value {name} for authorizer.class.name: " in str(failed.value)
    assert problem in str(failed.value)


def test_kafkas_authorizer_is_not_a_custom_one() -> None:
    assert load_authorizer({}) is None
    assert load_authorizer({"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}) is None
