"""The view models of client quotas: the list by entity, and the form of one entity. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ottla.client.admin_types import QuotaEntity
from ottla_console.cluster.problems import Problem
from ottla_console.cluster.snapshot import Part
from ottla_console.views import formats
from ottla_console.views.tables import Column, Query, Table, table_of


class Invalid(ValueError):
    """A form that is no quota; the message says what is allowed."""


@dataclass(frozen=True, slots=True)
class QuotaKind:
    """A quota that an entity can have."""

    key: str
    label: str
    unit: str
    text: Callable[[float], str]
    of_ip: bool = False


def _percent(value: float) -> str:
    return f"{value:g} %"


def _per_second(value: float) -> str:
    return f"{value:g}/s"


KINDS: Final = (
    QuotaKind("producer_byte_rate", "Produce", "bytes per second, on each broker", formats.byte_rate),
    QuotaKind("consumer_byte_rate", "Fetch", "bytes per second, on each broker", formats.byte_rate),
    QuotaKind(
        "request_percentage", "Requests", "percent of the time of one thread, on each broker", _percent
    ),
    QuotaKind(
        "controller_mutation_rate",
        "Mutations",
        "partitions created and deleted per second, in the cluster",
        _per_second,
    ),
    QuotaKind(
        "connection_creation_rate",
        "Connections",
        "new connections per second, on each broker",
        _per_second,
        of_ip=True,
    ),
)
TYPES: Final = ("user", "client-id", "ip")
LABELS: Final[Mapping[str, str]] = {"user": "user", "client-id": "client id", "ip": "address"}


def _order(item: tuple[str, str | None]) -> int:
    return TYPES.index(item[0]) if item[0] in TYPES else len(TYPES)


def entity_text(entity: Mapping[str, str | None]) -> str:
    """`user anna, client id etl`; `each user` for the default: those without quotas of their own."""
    return ", ".join(
        f"{LABELS.get(kind, kind)} {name}" if name is not None else f"each other {LABELS.get(kind, kind)}"
        for kind, name in sorted(entity.items(), key=_order)
    )


def entity_params(entity: Mapping[str, str | None]) -> dict[str, str]:
    """The parameters of a URL that name an entity: `user=anna`; `user.default=1` for the default."""
    return {
        (kind if name is not None else f"{kind}.default"): name if name is not None else "1"
        for kind, name in entity.items()
    }


def entity_of(params: Mapping[str, str]) -> QuotaEntity:
    """The entity that parameters or fields name. Raises Invalid."""
    parts: dict[str, str | None] = {}
    for kind in TYPES:
        name = params.get(kind, "")
        if params.get(f"{kind}.default"):
            parts[kind] = None
        elif name:
            parts[kind] = name
    if not parts:
        raise Invalid("name a user, a client id, both, or an address")
    if "ip" in parts and len(parts) > 1:
        raise Invalid("an address stands alone: without a user or a client id")
    return QuotaEntity(parts)


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """An entity with quotas."""

    entity: QuotaEntity
    values: Mapping[str, float]

    @property
    def name(self) -> str:
        return entity_text(self.entity)

    @property
    def params(self) -> dict[str, str]:
        return entity_params(self.entity)

    def shown(self, kind: QuotaKind) -> str:
        value = self.values.get(kind.key)
        return formats.NONE if value is None else kind.text(value)


def _columns() -> tuple[Column[QuotaRow], ...]:
    def value(key: str) -> Callable[[QuotaRow], float | None]:
        return lambda row: row.values.get(key)

    return (
        Column("entity", "Entity", lambda row: row.name.casefold()),
        *(Column(kind.key, kind.label, value(kind.key), numeric=True, hint=kind.unit) for kind in KINDS),
        Column("actions", ""),
    )


COLUMNS: Final = _columns()


@dataclass(frozen=True, slots=True)
class Quotas:
    """The list."""

    table: Table[QuotaRow]
    user: str
    """Only those that can apply to this user; empty: all."""
    problems: tuple[Problem, ...]

    @property
    def kinds(self) -> tuple[QuotaKind, ...]:
        return KINDS


def quotas_of(found: Part[dict[QuotaEntity, dict[str, float]]], query: Query) -> Quotas:
    """The list; with `user`, the quotas of this user, of each other user and of client ids."""
    rows = [QuotaRow(entity, values) for entity, values in (found.value or {}).items() if values]
    user = query.other("user")
    if user:
        rows = [row for row in rows if "ip" not in row.entity and row.entity.get("user") in (user, None)]
    table = table_of(rows, COLUMNS, query, text=lambda row: row.name, default_sort="entity")
    return Quotas(table, user, found.problems)


@dataclass(frozen=True, slots=True)
class Form:
    """The quotas of one entity; of a new one, if `entity` is None."""

    entity: QuotaEntity | None
    values: Mapping[str, str]
    """By field, as typed."""
    problems: tuple[Problem, ...] = ()

    @property
    def name(self) -> str:
        return entity_text(self.entity) if self.entity else ""

    @property
    def params(self) -> dict[str, str]:
        return entity_params(self.entity) if self.entity else {}

    @property
    def kinds(self) -> tuple[QuotaKind, ...]:
        """The quotas that the entity can have."""
        if self.entity is None:
            return KINDS
        return tuple(kind for kind in KINDS if kind.of_ip == ("ip" in self.entity))


def form_of(entity: QuotaEntity | None, values: Mapping[str, float]) -> Form:
    return Form(entity, {key: f"{value:.15g}" for key, value in values.items()})


def changes_of(
    entity: QuotaEntity, form: Mapping[str, str], present: Mapping[str, float]
) -> dict[str, float | None]:
    """What to set, and with None what to remove: an empty field removes its quota. Raises Invalid."""
    found: dict[str, float | None] = {}
    for kind in KINDS:
        text = form.get(kind.key, "").strip().replace(",", "")
        if kind.of_ip != ("ip" in entity):
            if text:
                raise Invalid(f"{kind.key} is {'only' if kind.of_ip else 'not'} a quota of addresses")
            continue
        if not text:
            if kind.key in present:
                found[kind.key] = None
            continue
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise Invalid(f"{kind.key} must be a number above 0, or empty for none")
        if present.get(kind.key) != value:
            found[kind.key] = value
    return found
