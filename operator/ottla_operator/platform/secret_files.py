"""Secrets as folders of files, an entry each: the `Secrets` port of `ottla up`.

`<data>/secrets/<name>/<entry>`, readable by their owner alone, as pods have Secrets mounted. A folder of
ours says whose it is in `.owner`; others may be put there by hand, for passwords of one's own. Invariant: a
file is replaced whole.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from ottla_operator.planning.observed import Secret
from ottla_operator.platform.interfaces import StepFailed
from ottla_operator.resources import AnyResource

_OWNER: Final = ".owner"


class SecretFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, name: str, entry: str = "") -> Path:
        return (self._folder / name / entry).absolute()

    async def read(self, names: Collection[str]) -> Mapping[str, Secret]:
        found = {}
        for name in names:
            if self.path(name).is_dir():
                found[name] = self._read(name)
        return found

    def _read(self, name: str) -> Secret:
        data, versions = {}, []
        for path in sorted(self.path(name).iterdir()):
            if path.is_file() and not path.name.startswith("."):
                data[path.name] = path.read_bytes()
                status = path.stat()
                versions.append(f"{path.name}:{status.st_ino}:{status.st_mtime_ns}")
        return Secret(name, data, self._owner(name), " ".join(versions))

    def _owner(self, name: str) -> str:
        try:
            return self.path(name, _OWNER).read_text().strip()
        except OSError:
            return ""

    async def put(self, owner: AnyResource, name: str, data: Mapping[str, bytes]) -> None:
        folder = self.path(name)
        try:
            if folder.exists() and self._owner(name) != owner.key:
                raise StepFailed("SecretConflict", f"{folder} is there, and is not of {owner.key}")
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # First of all: what is left of an interruption is to be known as ours.
            write_private(folder / _OWNER, f"{owner.key}\n".encode())
            for entry, value in data.items():
                write_private(folder / entry, value)
            for path in folder.iterdir():
                if path.name != _OWNER and path.name not in data:
                    path.unlink()
        except OSError as error:
            raise StepFailed("SecretFailed", f"{folder}: {error.strerror}") from None

    async def delete(self, owner: AnyResource, name: str) -> None:
        if self._owner(name) == owner.key:
            self._remove(self.path(name))

    async def release(self, owner: AnyResource) -> None:
        for marker in self._folder.glob(f"*/{_OWNER}"):
            await self.delete(owner, marker.parent.name)

    def _remove(self, folder: Path) -> None:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise StepFailed("SecretFailed", f"{folder}: {error.strerror}") from None


def write_private(path: Path, value: bytes) -> None:
    """Replace a file whole, readable by its owner alone."""
    partial = path.with_name(f".{path.name}.tmp")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(value)
    partial.replace(path)
