"""Jars from Maven Central, kept outside the tree under the user's cache folder, and fetched once.

Called for what the benches measure and what the tests have as their judges. Needs Maven itself.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

CACHE: Final = Path("~/.cache/ottla").expanduser()
_POM: Final = """\
<project><modelVersion>4.0.0</modelVersion>
<groupId>dev.ottla</groupId><artifactId>judges</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies></project>
"""
_DEPENDENCY: Final = (
    "<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version></dependency>"
)
_FETCH_TIMEOUT_S: Final = 600


class JarsUnavailable(Exception):
    """Maven is missing, or could not get the jars; the message says which."""


class Artifact(NamedTuple):
    group: str
    name: str
    version: str


def fetch_jars(folder_name: str, artifacts: Sequence[Artifact]) -> Path:
    """The folder with these artifacts and all they depend on. Raises JarsUnavailable."""
    folder = CACHE / folder_name
    done = folder / ".complete"
    if done.exists():
        return folder
    if shutil.which("mvn") is None:
        raise JarsUnavailable(f"needs Maven for the jars of {folder_name}")
    folder.mkdir(parents=True, exist_ok=True)
    pom = folder / "pom.xml"
    pom.write_text(_POM.format(dependencies="".join(_DEPENDENCY.format(*a) for a in artifacts)))
    command = [
        "mvn",
        "-q",
        "-B",
        "-f",
        str(pom),
        "dependency:copy-dependencies",
        f"-DoutputDirectory={folder}",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False)
    if ran.returncode:
        raise JarsUnavailable(f"Maven could not get the jars of {folder_name}: {ran.stdout[-800:]}")
    done.touch()
    return folder
