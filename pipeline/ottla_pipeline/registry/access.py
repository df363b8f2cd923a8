"""Access control of the registry: users with hashed passwords, and the subjects that they may read and write.

Called by `app`, which authenticates requests, and by `api`, which lists only readable subjects. The file
of `--access` has users and rules (docs/guides/pipeline/registry.md); without it everything is permitted.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from enum import Enum
from pathlib import Path
from typing import Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, StrictStr, ValidationError, field_validator

from ottla_pipeline.registry import errors

EVERYBODY: Final = "*"
EVERYTHING: Final = "*"
_SCHEME: Final = "scrypt"
_COST: Final = 2**14
_BLOCK: Final = 8
_SALT_BYTES: Final = 16


class Operation(Enum):
    READ = "Read"
    WRITE = "Write"


class Rule(BaseModel):
    """`user` is permitted to `allow` (read, or write, which includes read) `subjects`: names, prefixes
    that end with `*`, or `*` for all subjects, the global configuration and the global mode."""

    model_config = ConfigDict(extra="forbid")
    user: StrictStr
    allow: Literal["read", "write"]
    subjects: list[StrictStr] = Field(min_length=1)

    def permits(self, name: str, operation: Operation, subject: str | None) -> bool:
        if self.user not in (name, EVERYBODY) or (operation is Operation.WRITE and self.allow == "read"):
            return False
        if subject is None:
            return EVERYTHING in self.subjects
        return any(
            subject.startswith(each[:-1]) if each.endswith("*") else subject == each for each in self.subjects
        )


class Access(BaseModel):
    """The content of the access file. `users` are password hashes by names, as `hashed` returns them."""

    model_config = ConfigDict(extra="forbid")
    users: dict[StrictStr, StrictStr] = Field(default_factory=dict)
    rules: list[Rule] = Field(default_factory=list)

    @field_validator("users")
    @classmethod
    def _whole(cls, users: dict[str, str]) -> dict[str, str]:
        for name, text in users.items():
            if not name or ":" in name:
                raise ValueError(f"'{name}': a user name must not be empty or contain a colon")
            if _parts(text) is None:
                raise ValueError(f"{name}: not a hash as ottla-registry --hash-password prints one")
        return users


class User:
    """The authenticated user of a request. Without `access` everything is permitted."""

    def __init__(self, name: str | None, access: Access | None) -> None:
        self.name = name
        self._access = access

    def may(self, operation: Operation, subject: str | None) -> bool:
        if self._access is None:
            return True
        return any(rule.permits(self.name or "", operation, subject) for rule in self._access.rules)


def may(user: User, operation: Operation, subject: str | None) -> bool:
    return user.may(operation, subject)


def check(user: User, operation: Operation, subject: str | None) -> None:
    """Raises Refused if the user lacks the permission."""
    if not user.may(operation, subject):
        raise errors.denied(user.name or "", operation.value, EVERYTHING if subject is None else subject)


def read(path: Path) -> Access:
    """Reads the access file. Raises ValueError with the first error in it, and OSError."""
    try:
        return Access.model_validate(yaml.safe_load(path.read_text()) or {})
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not YAML: {str(error).splitlines()[0]}") from None
    except ValidationError as error:
        first = error.errors(include_input=False)[0]  # which may be a password
        raise ValueError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def hashed(password: str) -> str:
    """The hash of a password, as the access file has it."""
    salt = os.urandom(_SALT_BYTES)
    parts = (base64.b64encode(each).decode() for each in (salt, _digest(password, salt, _COST)))
    return "$".join((_SCHEME, str(_COST), *parts))


class Passwords:
    """Verifies passwords. The first successful verification takes some 50 ms of a thread; later ones
    compare a keyed hash that is kept in memory."""

    def __init__(self, users: dict[str, str]) -> None:
        self._users = users
        self._key = os.urandom(32)
        self._right: dict[str, bytes] = {}
        self._nobody = hashed("")

    def is_known(self, name: str, password: str) -> bool:
        return hmac.compare_digest(self._right.get(name, b""), self._mark(name, password))

    def verify(self, name: str, password: str) -> bool:
        """Takes the same time for unknown names, to reveal nothing about users."""
        parts = _parts(self._users.get(name, self._nobody))
        assert parts is not None
        cost, salt, expected = parts
        right = hmac.compare_digest(_digest(password, salt, cost), expected) and name in self._users
        if right:
            self._right[name] = self._mark(name, password)
        return right

    def _mark(self, name: str, password: str) -> bytes:
        return hmac.digest(self._key, f"{name}:{password}".encode(errors="surrogateescape"), "sha256")


def credentials(header: str) -> tuple[str, str] | None:
    """The user and password of a Basic Authorization header; None for any other header."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
    return (name, password) if colon else None


def _parts(text: str) -> tuple[int, bytes, bytes] | None:
    try:
        scheme, cost, salt, digest = text.split("$")
        found = int(cost), base64.b64decode(salt, validate=True), base64.b64decode(digest, validate=True)
    except ValueError:
        return None
    power_of_two = 1 < found[0] <= 2**17 and found[0] & (found[0] - 1) == 0
    return found if scheme == _SCHEME and power_of_two and found[1] and len(found[2]) == 32 else None


def _digest(password: str, salt: bytes, cost: int) -> bytes:
    return hashlib.scrypt(
        password.encode(), salt=salt, n=cost, r=_BLOCK, p=1, maxmem=256 * cost * _BLOCK, dklen=32
    )
