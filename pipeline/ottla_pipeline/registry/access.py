"""Who may ask the registry what: users with hashed passwords, and which subjects they may read and write.

Called by `app`, which finds out who asks, and by `api`, which shows what that user may read. A file of
`--access` has both (docs/pipeline-registry.md); without one everybody may do everything.
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
    """`user` may do `allow` with `subjects`: names, prefixes with a `*` at their end, or `*` for all, which
    the configuration and mode for all belong to. Who may write may read."""

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
    """`users`: password hashes by names, as `hashed` makes them."""

    model_config = ConfigDict(extra="forbid")
    users: dict[StrictStr, StrictStr] = Field(default_factory=dict)
    rules: list[Rule] = Field(default_factory=list)

    @field_validator("users")
    @classmethod
    def _whole(cls, users: dict[str, str]) -> dict[str, str]:
        for name, text in users.items():
            if not name or ":" in name:
                raise ValueError(f"'{name}': a user's name has no colon and is not empty")
            if _parts(text) is None:
                raise ValueError(f"{name}: not a hash as ottla-registry --hash-password prints one")
        return users


class User:
    """Who asks. Without `access` everything is allowed."""

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
    """Raises Refused for what a user may not do."""
    if not user.may(operation, subject):
        raise errors.denied(user.name or "", operation.value, EVERYTHING if subject is None else subject)


def read(path: Path) -> Access:
    """Raises ValueError with what is wrong in the file, OSError."""
    try:
        return Access.model_validate(yaml.safe_load(path.read_text()) or {})
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not YAML: {str(error).splitlines()[0]}") from None
    except ValidationError as error:
        first = error.errors(include_input=False)[0]  # which may be a password
        raise ValueError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def hashed(password: str) -> str:
    """A password as the file holds it."""
    salt = os.urandom(_SALT_BYTES)
    parts = (base64.b64encode(each).decode() for each in (salt, _digest(password, salt, _COST)))
    return "$".join((_SCHEME, str(_COST), *parts))


class Passwords:
    """Verifies passwords. `verify` takes some 50 ms of a thread the first time, and none when it was right
    before: what was right is remembered by a keyed hash."""

    def __init__(self, users: dict[str, str]) -> None:
        self._users = users
        self._key = os.urandom(32)
        self._right: dict[str, bytes] = {}
        self._nobody = hashed("")

    def is_known(self, name: str, password: str) -> bool:
        return hmac.compare_digest(self._right.get(name, b""), self._mark(name, password))

    def verify(self, name: str, password: str) -> bool:
        """As long for a name that is not known as for another one."""
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
    """User and password of an Authorization header; None if it has none."""
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
