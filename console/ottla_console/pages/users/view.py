"""The view models of the SCRAM credentials of users. A password is in none of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.client.admin_types import ScramUpsertion
from ottla_console.cluster.problems import Problem
from ottla_console.cluster.snapshot import Part
from ottla_console.views.tables import Column, Query, Table, table_of

MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
"""Kafka's bounds."""
_TEXT_MAX: Final = 1_000


class Invalid(ValueError):
    """A form that is no credential; the message says what is allowed, and has no password."""


@dataclass(frozen=True, slots=True)
class UserRow:
    """A user with credentials."""

    name: str
    credentials: tuple[tuple[str, int], ...]
    """Mechanism and iterations."""


COLUMNS: Final[tuple[Column[UserRow], ...]] = (
    Column("name", "User", lambda row: row.name.casefold()),
    Column("credentials", "Credentials", lambda row: row.credentials),
    Column("rights", "May do"),
    Column("actions", ""),
)


@dataclass(frozen=True, slots=True)
class Users:
    """The list."""

    table: Table[UserRow]
    me: str
    """The principal who looks; empty without a log-in."""
    problems: tuple[Problem, ...]


def users_of(found: Part[dict[str, dict[str, int]]], me: str, query: Query) -> Users:
    rows = [UserRow(user, tuple(sorted(has.items()))) for user, has in (found.value or {}).items() if has]
    return Users(
        table_of(rows, COLUMNS, query, text=lambda row: row.name, default_sort="name"), me, found.problems
    )


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a credential; a password is never filled in."""

    user: str = ""
    mechanism: str = MECHANISMS[0]
    iterations: str = str(ITERATIONS_MIN)
    existing: Mapping[str, int] = field(default_factory=dict)
    """Credentials of the user, which are replaced."""
    me: bool = False
    """The user who is logged in."""
    problems: tuple[Problem, ...] = ()

    @property
    def mechanisms(self) -> tuple[str, ...]:
        return MECHANISMS

    @property
    def bounds(self) -> tuple[int, int]:
        return ITERATIONS_MIN, ITERATIONS_MAX


def credential_of(form: Mapping[str, str]) -> ScramUpsertion:
    """The credential of a form. Raises Invalid."""
    user, mechanism, password = (form.get(each, "") for each in ("user", "mechanism", "password"))
    if not user.strip() or len(user) > _TEXT_MAX:
        raise Invalid("a user must have a name")
    if mechanism not in MECHANISMS:
        raise Invalid(f"the mechanism must be one of {', '.join(MECHANISMS)}")
    if not password or len(password) > _TEXT_MAX:
        raise Invalid("a credential must have a password")
    if password != form.get("again", ""):
        raise Invalid("the passwords differ")
    try:
        iterations = int(form.get("iterations", ""))
    except ValueError:
        iterations = 0
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise Invalid(f"iterations must be a number from {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    return ScramUpsertion(user, mechanism, password, iterations)
