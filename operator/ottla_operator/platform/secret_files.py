"""The `Secrets` interface of `ottla up`: a folder for each Secret, with a file for each entry.

The files `<data>/secrets/<name>/<entry>` are readable by their owner only, like Secrets mounted in pods. A
folder that the operator wrote has the key of its resource in `.owner`; users may add other folders for
passwords that they choose. Invariant: a file is replaced atomically.
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
                raise StepFailed("SecretConflict", f"{folder} exists and {owner.key} does not own it")
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # First: after an interruption, the folder must be recognized as owned.
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
    """Replace a file atomically, with mode 0600."""
    partial = path.with_name(f".{path.name}.tmp")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(value)
    partial.replace(path)
