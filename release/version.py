"""The version of this tree: `python -m release.version --check`, or with a VERSION to change it.

`ottla.__version__` is the one place. The wheel, the commands, the console and the metrics read it; the charts
and the plain manifests, which cannot, are held against it by `--check` and written by a change.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "client/ottla/__init__.py"
CHANGELOG = ROOT / "CHANGELOG.md"
_IN_SOURCE = re.compile(r'(?<=^__version__ = ")[^"]+', re.MULTILINE)
_IMAGES = r"\bottla(?:-spark|-connect)?:)[\w.-]+"


def current() -> str:
    found = _IN_SOURCE.search(SOURCE.read_text())
    assert found, SOURCE
    return found[0]


def semantic(version: str) -> str:
    """The version of a chart, which has to be a semantic version: 0.2.0-rc.1 for 0.2.0rc1."""
    return re.sub(r"\.?(a|b|rc|dev)(\d+)$", r"-\1.\2", version)


def texts(version: str) -> dict[Path, str]:
    """The files that have the version, and what each should hold."""
    chart, name = semantic(version), f'"{version}"'
    early = "true" if Version(version).is_prerelease else "false"
    found: dict[Path, str] = {SOURCE: _IN_SOURCE.sub(version, SOURCE.read_text())}
    for path in sorted(ROOT.glob("charts/*/Chart.yaml")):
        text = re.sub(r"(?<=^version: ).*", chart, path.read_text(), flags=re.MULTILINE)
        text = re.sub(r"(?<=^appVersion: ).*", name, text, flags=re.MULTILINE)
        text = re.sub(r'(?<=/prerelease: ").*(?=")', early, text)
        found[path] = re.sub(rf"({_IMAGES}", rf"\g<1>{version}", text)
    manifest = ROOT / "manifests/operator.yaml"
    text = re.sub(r"(?<=app.kubernetes.io/version: ).*", name, manifest.read_text())
    found[manifest] = re.sub(rf"((?:image|value): \"{_IMAGES}", rf"\g<1>{version}", text)
    return found


def problems() -> list[str]:
    version = current()
    found = [
        f"{path.relative_to(ROOT)} is not of {version}: run `python -m release.version {version}`"
        for path, text in texts(version).items()
        if path.read_text() != text
    ]
    if not Version(version).is_devrelease and f"\n## {version} - " not in CHANGELOG.read_text():
        found.append(f"CHANGELOG.md has no section of the release {version}")
    return found


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        found = problems()
        for problem in found:
            print(problem, file=sys.stderr)
        return 1 if found else 0
    try:
        (version,) = arguments
        if str(Version(version)) != version:
            raise InvalidVersion(f"{version} is not in the normal form, {Version(version)}")
    except (InvalidVersion, ValueError) as error:
        print(f"{error}\nusage: python -m release.version --check | VERSION", file=sys.stderr)
        return 2
    for path, text in texts(version).items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
