"""The pytest plugin: fixtures with a broker. `pip install 'ottla[testing]'` installs its dependencies.

    def test_orders_are_written(ottla_broker, ottla_topic):
        my_producer(ottla_broker.bootstrap).send(ottla_topic, b"one")
        (record,) = ottla_broker.wait_for_records(ottla_topic, 1)
        assert record.value == b"one"

It also runs the tests of `ottla.testing.simulation` once for each seed.

pytest loads it by the entry point `pytest11` in every run where Ottla is installed, so it imports nothing
until a fixture is used. docs/guides/testing.md describes it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from ottla.testing import DevBroker

_TOPIC_NAME_MAX = 249
_MARKER = (
    "ottla(partitions=1, config={}, settings={}): of `ottla_topic`, its partitions and settings; of "
    "`fresh_ottla_broker`, its settings, as in server.properties"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("ottla").addoption(
        "--ottla-seed",
        metavar="SEED|FIRST-LAST",
        type=_seeds,
        help="seeds of the simulated tests, instead of those that each test names",
    )
    parser.addini(
        "ottla_settings",
        "NAME=VALUE, a line each: settings of the shared broker, as in server.properties",
        type="linelist",
        default=[],
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test of `ottla.testing.simulation.simulated` once for each seed."""
    seeds = getattr(metafunc.function, "ottla_seeds", None)
    if seeds is not None:
        metafunc.parametrize("ottla_seed", metafunc.config.getoption("--ottla-seed") or seeds)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Rejects a test that has settings for a broker that it does not use: they would have no effect."""
    of_test = any("settings" in marker.kwargs for marker in item.own_markers if marker.name == "ottla")
    if of_test and "fresh_ottla_broker" not in getattr(item, "fixturenames", ()):
        raise pytest.UsageError(
            "@pytest.mark.ottla(settings=…) needs the fixture `fresh_ottla_broker`; "
            "`ottla_settings` in pytest.ini has the settings of the shared broker"
        )


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    try:
        found = range(int(first), int(last or first) + 1)
    except ValueError:
        found = range(0)
    if not found:
        raise argparse.ArgumentTypeError(f"{text}: must be a number or FIRST-LAST")
    return found


@pytest.fixture(scope="session")
def ottla_broker(request: pytest.FixtureRequest) -> Iterator[DevBroker]:
    """One broker for all tests of this process. After each test, faults are removed and the broker is
    running."""
    from ottla.testing import DevBroker

    with DevBroker(_settings(request.config)) as broker:
        healer = _Healer(broker)
        request.config.pluginmanager.register(healer)
        try:
            yield broker
        finally:
            request.config.pluginmanager.unregister(healer)


@pytest.fixture
def fresh_ottla_broker(request: pytest.FixtureRequest) -> Iterator[DevBroker]:
    """A broker for one test, started in half a second; for tests that break it or need their own settings."""
    from ottla.testing import DevBroker

    with DevBroker({**_settings(request.config), **_marked(request).get("settings", {})}) as broker:
        yield broker


@pytest.fixture
def ottla_topic(ottla_broker: DevBroker, request: pytest.FixtureRequest) -> str:
    """The name of a new topic on the shared broker, derived from the test's name."""
    marked = _marked(request)
    tail = f"-{uuid4().hex[:8]}"
    legal = re.sub(r"[^a-zA-Z0-9._-]", "_", request.node.name)
    name = legal[: _TOPIC_NAME_MAX - len(tail)] + tail
    ottla_broker.create_topic(name, marked.get("partitions", 1), marked.get("config"))
    return name


class _Healer:
    """A plugin that removes faults of the shared broker after each test."""

    def __init__(self, broker: DevBroker) -> None:
        self._broker = broker

    @pytest.hookimpl(tryfirst=True)  # before the finalizers of fixtures
    def pytest_runtest_teardown(self) -> None:
        self._broker.heal()


def _settings(config: pytest.Config) -> dict[str, str]:
    settings = {}
    for line in config.getini("ottla_settings"):
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise pytest.UsageError(f"ottla_settings: {line}: must be NAME=VALUE")
        settings[name.strip()] = value.strip()
    return settings


def _marked(request: pytest.FixtureRequest) -> dict[str, Any]:
    marker = request.node.get_closest_marker("ottla")
    if marker is None:
        return {}
    unknown = sorted({*marker.kwargs} - {"partitions", "config", "settings"})
    if unknown or marker.args:
        raise pytest.UsageError(f"@pytest.mark.{_MARKER}; not {', '.join(unknown) or marker.args}")
    return dict(marker.kwargs)
