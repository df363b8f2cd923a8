"""The packages of `make dist`: reproducible, complete, and installed by pip in empty environments.

The checks are those of `release.dist`; planted faults show that they find something. The environments get
their dependencies as a user's do, from the index that pip is configured for.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

import ottla
from release import dist

PYTHONS = ("3.11", "3.12", "3.13")
READY = re.compile(r"ready bootstrap=(\S+)")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return dist.build(tmp_path_factory.mktemp("dist"))


def python(version: str) -> Path:
    """An interpreter of this machine; a version that is not installed skips the test."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for found in (*sorted(pyenv.glob(f"{version}.*/bin/python")), Path(f"/usr/bin/python{version}")):
        if found.exists():
            return found
    found_on_path = shutil.which(f"python{version}")
    if found_on_path is None:
        pytest.skip(f"Python {version} is not installed")
    return Path(found_on_path)


def run(*command: str | Path, given: str = "") -> str:
    """A program without this tree on its path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=240, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def dev_broker(command: Path) -> Iterator[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with Popen([command, "dev", "--port", "0"], stdout=PIPE, text=True, env=environment) as broker:
        try:
            assert broker.stdout is not None
            ready = READY.fullmatch(broker.stdout.readline().strip())
            assert ready
            yield ready[1]
        finally:
            broker.terminate()


# pip resolves and unpacks the dependencies; the machine's other processes slow it down.
@pytest.mark.budget(60)
@pytest.mark.parametrize("version", PYTHONS)
def test_the_wheel_runs_the_quick_start(built: tuple[Path, Path], tmp_path: Path, version: str) -> None:
    wheel, _ = built
    run(python(version), "-m", "venv", "--without-pip", tmp_path / "env")
    commands = tmp_path / "env/bin"
    pip = (sys.executable, "-m", "pip", "--python", commands / "python")
    run(*pip, "install", "--quiet", f"ottla[broker] @ {wheel.as_uri()}")
    run(*pip, "check")
    assert run(commands / "ottla", "--version") == f"ottla, version {ottla.__version__}\n"
    with dev_broker(commands / "ottla") as bootstrap:
        run(commands / "ottla", "topics", "create", "clicks", "-b", bootstrap)
        run(commands / "ottla", "produce", "clicks", "-b", bootstrap, given="one\ntwo\n")
        assert run(commands / "ottla", "consume", "clicks", "--tail", "2", "-b", bootstrap) == "one\ntwo\n"


def _with_file(wheel: Path, sdist: Path) -> None:
    with zipfile.ZipFile(wheel, "a") as opened:
        opened.writestr("ottla/left_over.txt", "")


def _without_file(wheel: Path, sdist: Path) -> None:
    with tarfile.open(sdist, "w:gz"):
        pass


@pytest.mark.parametrize(
    ("plant", "says"),
    [
        (_with_file, r"should not have \['ottla/left_over.txt'\]"),
        (_without_file, r"lacks \['ottla-.*LICENSE'"),
    ],
)
def test_a_package_with_other_files_is_refused(
    built: tuple[Path, Path], tmp_path: Path, plant: Callable[[Path, Path], None], says: str
) -> None:
    wheel, sdist = (Path(shutil.copy(path, tmp_path)) for path in built)
    plant(wheel, sdist)
    with pytest.raises(dist.Faulty, match=says):
        dist.check_content(wheel, sdist, dist.committed())


def test_builds_that_differ_are_refused(built: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, _ = built
    other = Path(shutil.copy(wheel, tmp_path))
    other.write_bytes(wheel.read_bytes() + b"\0")
    with pytest.raises(dist.Faulty, match="two builds differ"):
        dist.compare(wheel, other, "two builds")
