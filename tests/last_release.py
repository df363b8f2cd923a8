"""The last release, which `release/last_release.toml` names, from this clone's history."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path
from typing import Any

from tests.selection import ROOT

_FOLDERS = ("client", "broker", "operator", "pipeline", "console")


def named() -> tuple[str, str]:
    """Its version and commit."""
    found: dict[str, Any] = tomllib.loads((ROOT / "release/last_release.toml").read_text())
    return found["version"], found["commit"]


def export(folder: Path, commit: str = "") -> None:
    """Write its files, or another commit's, into a new folder. Raises LookupError where the clone does not
    have the commit."""
    version, released = named()
    commit = commit or released
    git = ["git", "-C", str(ROOT)]
    if subprocess.run(
        [*git, "cat-file", "-e", f"{commit}^{{commit}}"], capture_output=True, check=False
    ).returncode:
        known = f", the commit of {version}" if commit == released else ""
        raise LookupError(
            f"this clone does not have {commit}{known}: `git fetch --unshallow`, "
            "or fetch-depth: 0 of actions/checkout"
        )
    archive = folder.with_suffix(".tar")
    subprocess.run([*git, "archive", "--output", str(archive), commit], check=True)
    folder.mkdir()
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder)], check=True)
    archive.unlink()


def python_path(folder: Path) -> str:
    """PYTHONPATH of its packages, which come before those of this tree."""
    return ":".join(str(folder / name) for name in _FOLDERS if (folder / name).is_dir())
