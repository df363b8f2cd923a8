"""Markdown tables, and the docstrings of attributes, for the generated pages."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Sequence
from functools import cache


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return "\n".join([*lines, *(f"| {' | '.join(cell(text) for text in row)} |" for row in rows), ""])


def cell(text: str) -> str:
    """A text on one line of a table. A bar ends a cell, also in code."""
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")


def code(text: object) -> str:
    return f"`{text}`"


def plain(text: str) -> str:
    """A text in which nothing is markup: `<` begins HTML and `*` emphasis."""
    kept = re.split(r"(`[^`]*`)", text)
    return "".join(each if number % 2 else _escaped(each) for number, each in enumerate(kept))


def _escaped(text: str) -> str:
    return re.sub(r"([<*\[_])", r"\\\1", text)


@cache
def attribute_docs(cls: type) -> dict[str, str]:
    """The texts that stand below the attributes of a class, those of its bases included."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.partition(".")[0] not in ("ottla", "ottla_pipeline"):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                found[field.target.id] = " ".join(str(text.value.value).split())
    return found
