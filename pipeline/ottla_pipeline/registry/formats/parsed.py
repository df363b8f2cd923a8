"""What the registry knows of a schema, whatever its format: see `formats`."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn


class InvalidSchema(Exception):
    """A text is no schema of its type; the message says why."""


class Incompatibility(NamedTuple):
    """What keeps a reader from reading what a writer wrote: `kind` in the words of its format, `path` into
    the reader's schema as a JSON pointer, and what is wrong there."""

    kind: str
    path: str
    detail: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """`text` is the canonical form, by which schemas are told apart; `model` is its format's own."""

    type: str
    text: str
    model: Any


def load_json(text: str) -> Any:
    """JSON as standards have it: no NaN, and no number that could not be written again."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_float)
    except (ValueError, RecursionError) as error:
        raise InvalidSchema(f"not JSON: {error}") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON's")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text} is too large")
    return value
