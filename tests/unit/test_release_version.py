"""All versions are those of `ottla.__version__`."""

from __future__ import annotations

import re
import tomllib

import pytest
from click.testing import CliRunner
from packaging.version import Version

import ottla
from ottla.cli.main import main as ottla_command
from ottla.server.handlers.cluster.api_versions import _SOFTWARE_NAME
from ottla.wire.handshake import SOFTWARE_VERSION
from ottla_console.web.rendering import environment
from ottla_operator.kubectl.command import main as plugin
from ottla_operator.kubernetes.metrics import Metrics
from release import version


def test_charts_and_manifests_have_the_version() -> None:
    assert version.current() == ottla.__version__
    assert version.problems() == []
    assert version.main(["--check"]) == 0


def test_a_change_of_the_version_reaches_every_file() -> None:
    texts = version.texts("1.2.3rc4")
    assert {path.name for path in texts} == {"__init__.py", "Chart.yaml", "Dockerfile", "operator.yaml"}
    for path, text in texts.items():
        assert "1.2.3rc4" in text, path
        assert ottla.__version__ not in text, path
        assert path.name != "Chart.yaml" or "\nversion: 1.2.3-rc.4\n" in text


@pytest.mark.parametrize("arguments", [[], ["1.0.0.RC1"], ["one"], ["1.0.0", "2.0.0"]])
def test_what_is_no_version_changes_nothing(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert version.main(arguments) == 2
    assert "usage: " in capsys.readouterr().err
    assert version.problems() == []


@pytest.mark.parametrize(
    ("given", "chart"),
    [("0.2.0", "0.2.0"), ("0.2.0.dev0", "0.2.0-dev.0"), ("1.0.0rc2", "1.0.0-rc.2"), ("1.0.0a1", "1.0.0-a.1")],
)
def test_versions_of_charts_are_semantic(given: str, chart: str) -> None:
    assert version.semantic(given) == chart


def test_the_last_release_is_older() -> None:
    last = tomllib.loads((version.ROOT / "release/last_release.toml").read_text())
    assert Version(last["version"]) < Version(ottla.__version__)
    assert re.fullmatch("[0-9a-f]{40}", last["commit"])
    assert f"\n## {last['version']} - " in version.CHANGELOG.read_text()


def test_commands_metrics_and_the_console_show_the_version() -> None:
    runner = CliRunner()
    assert runner.invoke(ottla_command, ["--version"]).output == f"ottla, version {ottla.__version__}\n"
    assert runner.invoke(plugin, ["--version"]).output == f"kubectl ottla, version {ottla.__version__}\n"
    assert Metrics().registry.get_sample_value("ottla_build_info", {"version": ottla.__version__}) == 1
    assert environment().globals["version"] == ottla.__version__


def test_brokers_accept_the_version_of_the_client() -> None:
    assert _SOFTWARE_NAME.fullmatch(SOFTWARE_VERSION)
    assert Version(ottla.__version__).base_version == SOFTWARE_VERSION
