"""The schema formats: Avro, JSON Schema and Protobuf. Texts in, results out, without subjects, ids or Kafka.

The modules `avro_schema`, `json_schema` and `proto_schema` have the functions `parse` and `unreadable` (which
compares two schemas). `registry.checks` calls them by the schema's type.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn


class InvalidSchema(Exception):
    """The text is not a schema of its type; the message says why."""


class Incompatibility(NamedTuple):
    """Why a reader cannot read data of a writer: `kind` is the format's name for it, `path` is a JSON
    pointer into the reader's schema, `detail` describes the difference."""

    kind: str
    path: str
    detail: str


@dataclass(frozen=True, slots=True)
class ParsedSchema:
    """`text` is the canonical form, which identifies the schema; `model` is specific to the format."""

    type: str
    text: str
    model: Any


def load_json(text: str) -> Any:
    """Parses standard JSON: no NaN, and no number that cannot be written again."""
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
