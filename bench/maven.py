"""Downloads jars from Maven Central once, into the user's cache folder.

Called by the benchmarks and by the tests that use Java programs as oracles. Needs Maven.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

CACHE: Final = Path("~/.cache/ottla").expanduser()
_POM: Final = """\
<project><modelVersion>4.0.0</modelVersion>
<groupId>dev.ottla</groupId><artifactId>oracles</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies></project>
"""
_DEPENDENCY: Final = (
    "<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version></dependency>"
)
_FETCH_TIMEOUT_S: Final = 600
_TRIES: Final = 3
"""Attempts of a download."""


class JarsUnavailable(Exception):
    """Maven is missing, or could not download the jars; the message says which."""


class Artifact(NamedTuple):
    group: str
    name: str
    version: str


def fetch_jars(folder_name: str, artifacts: Sequence[Artifact]) -> Path:
    """The folder with these artifacts and their dependencies. Raises JarsUnavailable."""
    folder = CACHE / folder_name
    done, pom = folder / ".complete", folder / "pom.xml"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"pom.{os.getpid()}"
        partial.write_text(_POM.format(dependencies="".join(_DEPENDENCY.format(*a) for a in artifacts)))
        partial.replace(pom)
        run_maven(done, "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={folder}")
    return folder


def run_maven(done: Path, *arguments: str) -> None:
    """Run Maven unless the file `done` exists, and create it. Raises JarsUnavailable.

    A lock admits one process at a time: neither Maven's cache nor this one supports two writers.
    """
    if done.exists():
        return
    if shutil.which("mvn") is None:
        raise JarsUnavailable(f"needs Maven for {done.parent.name}")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "maven.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        output = ""
        for _ in range(_TRIES):
            if done.exists():
                return
            try:
                ran = subprocess.run(
                    ["mvn", "-q", "-B", *arguments],
                    capture_output=True,
                    text=True,
                    timeout=_FETCH_TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                output = str(error)
                continue
            if ran.returncode == 0:
                done.touch()
            output = ran.stdout[-800:]
        if not done.exists():
            raise JarsUnavailable(f"Maven could not download {done.parent.name}: {output}")
