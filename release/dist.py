"""`make dist`: the wheel and the sdist of the commit that is checked out, built and checked, in `dist/`.

They are built in two folders, whose files have other times and permissions, and have to be equal byte for
byte; a build of the sdist has to give the same wheel. They have to hold the files of the commit's packages
and their metadata, and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
SOURCES: Final = ("client", "broker", "operator", "pipeline", "console")
"""The folders whose content is the wheel's, without their own name."""
_OF_WHEEL: Final = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
_OF_SDIST: Final = ("README.md", "LICENSE", "pyproject.toml", ".gitignore", "PKG-INFO")
_BYTES_MAX: Final = 4 * 1024 * 1024
_RUNNING: Final = Path(sys.executable).parent


class Faulty(Exception):
    """A package that must not be released; the message says why."""


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist of HEAD, built and checked, in `folder`. Raises Faulty."""
    archive = folder / "head.tar"
    _run("git", "-C", str(ROOT), "archive", "--output", str(archive), "HEAD")
    built = [
        _build_archive(archive, folder / "one", 0o022),
        _build_archive(archive, folder / "two/deeper", 0o077),
    ]
    for one, two in zip(*built, strict=True):
        compare(one, two, "two builds")
    wheel, sdist = built[0]
    with tarfile.open(sdist) as file:
        file.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    (rebuilt,) = _build(unpacked, folder / "rebuilt", "--wheel")
    compare(wheel, rebuilt, "the builds of the commit and of the sdist")
    check_content(wheel, sdist, committed())
    _run(str(_RUNNING / "check-wheel-contents"), "--toplevel", ",".join(_packages()), str(wheel))
    _run(str(_RUNNING / "twine"), "check", "--strict", str(wheel), str(sdist))
    return wheel, sdist


def _build_archive(archive: Path, folder: Path, umask: int) -> tuple[Path, Path]:
    """The wheel and the sdist of the archive's files, with the time of now, without the rights of `umask`."""
    tree = folder / "ottla"
    tree.mkdir(parents=True)
    with tarfile.open(archive) as file:
        file.extractall(tree, filter="data")
    for path in tree.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)
        os.utime(path)
    sdist, wheel = _build(tree, folder / "built", "--sdist", "--wheel")
    return wheel, sdist


def _build(tree: Path, output: Path, *what: str) -> list[Path]:
    """What `build` makes of a tree: a sdist comes before a wheel."""
    epoch = _run("git", "-C", str(ROOT), "log", "-1", "--format=%ct").strip()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    command = [sys.executable, "-m", "build", "--no-isolation", *what, "--outdir", str(output), str(tree)]
    _run(*command, environment=environment)
    return sorted(output.iterdir(), key=lambda path: path.suffix == ".whl")


def committed() -> list[str]:
    """The names of the commit's files."""
    return _run("git", "-C", str(ROOT), "ls-tree", "-r", "--name-only", "HEAD").split()


def compare(one: Path, two: Path, what: str) -> None:
    """Raises Faulty unless both files have one name and one content."""
    if one.name != two.name or one.read_bytes() != two.read_bytes():
        raise Faulty(f"{what} differ: {one} and {two}")


def _packages() -> list[str]:
    return sorted({path.name for source in SOURCES for path in (ROOT / source).iterdir() if path.is_dir()})


def check_content(wheel: Path, sdist: Path, committed: Iterable[str]) -> None:
    """Raises Faulty unless both have the committed files of the packages, and their metadata."""
    of_packages = {name for name in committed if name.partition("/")[0] in SOURCES}
    stem = "-".join(wheel.name.split("-")[:2])
    with zipfile.ZipFile(wheel) as opened:
        _check_names(
            wheel,
            {entry.filename for entry in opened.infolist()},
            {name.partition("/")[2] for name in of_packages}
            | {f"{stem}.dist-info/{name}" for name in _OF_WHEEL},
        )
    with tarfile.open(sdist) as file:
        _check_names(sdist, set(file.getnames()), {f"{stem}/{name}" for name in of_packages.union(_OF_SDIST)})
    for path in (wheel, sdist):
        if path.stat().st_size > _BYTES_MAX:
            raise Faulty(f"{path.name} has {path.stat().st_size} bytes, more than {_BYTES_MAX}")


def _check_names(path: Path, names: set[str], expected: set[str]) -> None:
    if names != expected:
        raise Faulty(
            f"{path.name} lacks {sorted(expected - names)} and should not have {sorted(names - expected)}"
        )


def _run(*command: str, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise Faulty(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> int:
    if _run("git", "-C", str(ROOT), "status", "--porcelain").strip():
        print("changes that are not committed are not in these packages", file=sys.stderr)
    try:
        with tempfile.TemporaryDirectory() as folder:
            built = build(Path(folder))
            shutil.rmtree(DIST, ignore_errors=True)
            DIST.mkdir()
            for path in built:
                shutil.copy(path, DIST)
    except Faulty as error:
        print(error, file=sys.stderr)
        return 1
    for path in sorted(DIST.iterdir()):
        print(hashlib.sha256(path.read_bytes()).hexdigest(), f"dist/{path.name}", path.stat().st_size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
