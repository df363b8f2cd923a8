"""Tables: rows are searched, sorted and cut into pages by the query of the URL. Pure.

A page's view model declares its columns once. Everything that a reader chooses (search, order, page) is part
of the URL, so that a view can be linked, and works without scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

R = TypeVar("R")

ROWS: Final = 25
ROWS_MAX: Final = 200
QUERY_MAX: Final = 300
"""Characters of a search text that count."""


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """A column; `key` is its name in URLs."""

    key: str
    label: str
    sort: Callable[[R], Any] | None = None
    """None: cannot be sorted by. A value of None sorts last."""
    numeric: bool = False
    """Aligned to the right; the first click sorts the largest first."""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Query:
    """What the reader chose."""

    text: str = ""
    sort: str = ""
    descending: bool = False
    page: int = 1
    rows: int = ROWS
    others: Mapping[str, str] | None = None
    """Further parameters of the page, which links keep."""

    @classmethod
    def of(cls, params: Mapping[str, str], *others: str, rows: int = ROWS) -> Query:
        """From the parameters of a URL: q, sort (`-size` for descending), page, rows; and `others`, which
        the page understands. Invalid numbers count as not given."""
        sort = params.get("sort", "")
        return cls(
            params.get("q", "").strip()[:QUERY_MAX],
            sort.removeprefix("-"),
            sort.startswith("-"),
            _number(params.get("page"), 1, 1_000_000),
            _number(params.get("rows"), rows, ROWS_MAX),
            {name: params[name] for name in others if params.get(name)},
        )

    def link(self, **changes: str | int | None) -> str:
        """The query string of this query with changes; None removes a parameter."""
        given: dict[str, str | int | None] = {
            "q": self.text or None,
            "sort": f"{'-' if self.descending else ''}{self.sort}" if self.sort else None,
            "page": self.page if self.page > 1 else None,
            "rows": self.rows if self.rows != ROWS else None,
            **(self.others or {}),
            **changes,
        }
        return "?" + urlencode({name: value for name, value in given.items() if value not in (None, "")})

    def other(self, name: str) -> str:
        return (self.others or {}).get(name, "")


def _number(text: str | None, default: int, most: int) -> int:
    try:
        return min(max(int(text or ""), 1), most)
    except ValueError:
        return default


@dataclass(frozen=True, slots=True)
class Table(Generic[R]):
    """The rows of one page of a table, and what its header and footer need."""

    columns: Sequence[Column[R]]
    rows: Sequence[R]
    query: Query
    total: int
    """Before the search."""
    matching: int
    page: int
    pages: int
    first: int
    """The number of the first row, from 1; 0 without rows."""

    def sort_link(self, column: Column[R]) -> str:
        """Sorts by a column; by the same column again, in the other direction."""
        descending = not self.query.descending if self.query.sort == column.key else column.numeric
        return self.query.link(sort=f"{'-' if descending else ''}{column.key}", page=None)

    def sorted_by(self, column: Column[R]) -> str:
        """The value of aria-sort, empty for other columns."""
        if self.query.sort != column.key:
            return ""
        return "descending" if self.query.descending else "ascending"

    def page_link(self, page: int) -> str:
        return self.query.link(page=page if page > 1 else None)

    @property
    def last(self) -> int:
        return self.first + len(self.rows) - 1 if self.rows else 0


def table_of(
    rows: Iterable[R],
    columns: Sequence[Column[R]],
    query: Query,
    *,
    text: Callable[[R], str],
    default_sort: str,
    descending: bool = False,
) -> Table[R]:
    """Search, sort and cut. `text`: what the search looks in, without case; each word of the search must
    occur."""
    given = list(rows)
    words = query.text.casefold().split()
    found = [row for row in given if all(word in text(row).casefold() for word in words)] if words else given
    by_key = {column.key: column for column in columns if column.sort is not None}
    if query.sort not in by_key:
        query = Query(query.text, default_sort, descending, query.page, query.rows, query.others)
    sort = by_key[query.sort].sort
    assert sort is not None
    known = [(value, row) for row in found if (value := sort(row)) is not None]
    unknown = [row for row in found if sort(row) is None]
    known.sort(key=lambda pair: pair[0], reverse=query.descending)
    ordered = [row for _, row in known] + unknown
    pages = max(1, -(-len(ordered) // query.rows))
    page = min(query.page, pages)
    start = (page - 1) * query.rows
    part = ordered[start : start + query.rows]
    return Table(columns, part, query, len(given), len(ordered), page, pages, start + 1 if part else 0)
