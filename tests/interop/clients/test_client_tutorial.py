"""docs/tutorials/client.md, run as its reader would: each program is saved, and prints what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

from ottla.testing import DevBroker
from tests.selection import ROOT

PAGE = ROOT / "docs/tutorials/client.md"
BROKER = "127.0.0.1:9092"
"""As the page has it."""
SECONDS_MAX = 60


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def sessions() -> list[tuple[str, str]]:
    """The commands of the page and what each prints; `…` stands for anything."""
    found = []
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            found.append((command, printed))
    return found


def test_the_tutorial_works(tmp_path: Path) -> None:
    programs = {block.splitlines()[0].removeprefix("# "): block for block in blocks("python")}
    assert {command.split()[1] for command, _ in sessions() if command.startswith("python ")} == set(programs)
    with DevBroker(settings={"num.partitions": "3"}) as broker:
        for name, text in programs.items():
            assert BROKER in text, f"{name} talks to another broker"
            (tmp_path / name).write_text(text.replace(BROKER, broker.bootstrap))
        for command, printed in sessions():
            assert run(command, tmp_path, broker.bootstrap) == Printed(printed), command


def run(command: str, directory: Path, bootstrap: str) -> str:
    program, *arguments = command.split()
    if program == "ottla":
        arguments = ["-m", "ottla.cli.main", *arguments, "--bootstrap", bootstrap]
    finished = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


class Printed(str):
    """Equal to what it matches, so that a failure shows both."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        pattern = self.replace("[", "[[]").replace("…", "*").strip()
        return isinstance(other, str) and fnmatchcase(
            re.sub(r" +$", "", other, flags=re.MULTILINE).strip(), pattern
        )
