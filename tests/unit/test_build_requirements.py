"""The image's build requirements are pinned to the versions and hashes of the lock file, and its build has
the files that it copies."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENTRY = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>[^ ]+)(?P<hashes>(?: \\\n    --hash=\S+)+)", re.MULTILINE
)


def pins(file: str) -> dict[str, tuple[str, str]]:
    text = (ROOT / "requirements" / file).read_text()
    return {found["name"]: (found["version"], found["hashes"]) for found in ENTRY.finditer(text)}


def test_the_build_requirements_are_those_of_the_development_lock() -> None:
    build, development = pins("build.txt"), pins("dev.txt")
    assert "hatchling" in build
    assert {name: development[name] for name in build} == build


def test_the_image_installs_nothing_from_an_index_without_hashes() -> None:
    commands = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"pip install[^&;\n]*", commands)
    assert len(installs) == 3
    for install in installs:
        assert "--require-hashes" in install or "--no-deps /tmp/wheel/" in install, install


def test_the_context_of_the_image_has_what_it_copies() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}
    commands = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    copied = [found.split()[:-1] for found in re.findall(r"^COPY ((?!--from)[^\n]*)", commands, re.MULTILINE)]
    assert copied
    for source in (each for sources in copied for each in sources):
        assert kept & {source, source.partition("/")[0]}, source
