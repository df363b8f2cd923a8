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
    development = pins("dev.txt")
    for file, tool in (("build.txt", "hatchling"), ("sbom.txt", "cyclonedx-bom")):
        locked = pins(file)
        assert tool in locked
        assert {name: development[name] for name in locked} == locked


def test_the_image_installs_nothing_from_an_index_without_hashes() -> None:
    commands = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"pip install[^&;\n]*", commands)
    assert len(installs) == 4
    for install in installs:
        assert "--require-hashes" in install or "--no-deps /tmp/wheel/" in install, install


def test_the_context_of_the_image_has_what_it_copies() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}
    commands = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    copied = [found.split()[:-1] for found in re.findall(r"^COPY ((?!--from)[^\n]*)", commands, re.MULTILINE)]
    assert copied
    for source in (each for sources in copied for each in sources):
        assert kept & {source, source.partition("/")[0]}, source


def test_the_image_has_labels_a_list_of_its_packages_and_no_root() -> None:
    text = (ROOT / "Dockerfile").read_text()
    labels = set(re.findall(r"org\.opencontainers\.image\.([\w.]+)=", text))
    assert labels >= {"version", "revision", "source", "licenses", "base.name"}
    assert "--output-file /opt/ottla/sbom.cdx.json" in text
    (user,) = re.findall(r"^USER (.*)", text, re.MULTILINE)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), "Kubernetes' runAsNonRoot needs a number"
