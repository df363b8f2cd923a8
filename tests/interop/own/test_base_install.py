"""`pip install ottla` in a new virtual environment: the client library works, each command names its extra.

The environment gets the wheel of this tree and links to the installed packages that its base requirements
(and pytest's) name, so that no index is needed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest

from ottla.extras import EXTRAS
from tests.selection import ROOT

NAME = re.compile(r"[\w.-]+")
MODULES = {"prometheus-client": "prometheus_client", "pyyaml": "yaml"}
"""Import names that differ from the distribution's."""


def _run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


def _link(name: str, site: Path, linked: set[str]) -> None:
    """Link an installed distribution and what it requires into `site`."""
    if name in linked:
        return
    linked.add(name)
    found = distribution(name)
    for top in {Path(str(file)).parts[0] for file in found.files or () if not str(file).startswith("..")}:
        if not (site / top).exists():
            (site / top).symlink_to(Path(str(found.locate_file(top))))
    for requirement in found.requires or ():
        if ";" not in requirement:
            _link(NAME.match(requirement)[0], site, linked)  # type: ignore[index]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment with `pip install ottla pytest`."""
    folder = tmp_path_factory.mktemp("base")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    built = _run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder / "wheel", ROOT, cwd=folder)
    assert not built.returncode, built.stderr
    (wheel,) = (folder / "wheel").iterdir()
    made = _run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    assert not made.returncode, made.stderr
    bin_folder = folder / "venv" / "bin"
    added = _run(
        *pip, "--python", bin_folder / "python", "install", "--no-deps", "--no-index", wheel, cwd=folder
    )
    assert not added.returncode, added.stderr
    (site,) = (folder / "venv" / "lib").glob("*/site-packages")
    with (ROOT / "pyproject.toml").open("rb") as file:
        requirements = tomllib.load(file)["project"]["dependencies"]
    linked: set[str] = set()
    for requirement in (*requirements, "pytest"):
        _link(NAME.match(requirement)[0], site, linked)  # type: ignore[index]
    return bin_folder


def test_the_base_is_the_client_with_two_dependencies() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    assert {NAME.match(each)[0] for each in project["dependencies"]} == {"cramjam", "crc32c"}  # type: ignore[index]
    for extra, packages in EXTRAS.items():
        names = [NAME.match(each)[0] for each in project["optional-dependencies"][extra]]  # type: ignore[index]
        assert set(packages) <= {MODULES.get(name, name) for name in names}, extra


def test_the_base_has_the_clients(base: Path, tmp_path: Path) -> None:
    code = """
import ottla.client.blocking, ottla.client.serialization, ottla.client.metrics
from ottla.client import AdminClient, Consumer, Producer, RequestClient
print("imported")
"""
    done = _run(base / "python", "-c", code, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("imported\n", "")


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("ottla topics list", "broker"),
        ("kubectl-ottla get", "operator"),
        ("ottla-pipeline audit", "pipeline"),
        ("ottla-registry", "pipeline"),
        ("python -m ottla.cli.main topics", "broker"),
        ("python -m ottla.dev {}", "broker"),
        ("python -m ottla.local.zookeeper", "broker"),
        ("python -m ottla_operator.resources.crds", "operator"),
        ("python -m ottla_pipeline.command", "pipeline"),
    ],
)
def test_a_command_without_its_extra_names_it(base: Path, tmp_path: Path, command: str, extra: str) -> None:
    name, *arguments = command.split()
    done = _run(base / name, *arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch(rf".* needs the package \w+: pip install 'ottla\[{extra}\]'\n", done.stderr)


def test_the_pytest_plugin_does_nothing_without_its_extra(base: Path, tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text("def test_own(): pass\n")
    done = _run(base / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    listed = _run(base / "python", "-m", "pytest", "--fixtures", "-p", "no:cacheprovider", cwd=tmp_path)
    assert "ottla_broker" in listed.stdout, "the plugin is loaded"
