"""Loads a job's YAML file into its model; every error message has the file and the key's path.

Called by `command`. ConfigError lists all problems, one per line, as `lake.yaml: kafka.bootstrap: …`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

C = TypeVar("C", bound=BaseModel)

_MESSAGES = {
    "missing": "is missing",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
}


class ConfigError(Exception):
    """An invalid configuration; the message has one line per problem."""


def load(path: Path, model: type[C]) -> C:
    """The file as `model`. Raises ConfigError."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: must hold a mapping of keys")
    return validate(raw, model, str(path))


def validate(raw: dict[str, Any], model: type[C], where: str) -> C:
    """`raw` as `model`; `where` is the prefix of each line of the ConfigError."""
    try:
        return model.model_validate(raw, by_alias=True, by_name=False)
    except ValidationError as error:
        lines = sorted({f"{where}: {line}" for line in problems(error, model)})
        raise ConfigError("\n".join(lines)) from None


def problems(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """One line per problem: the key's path as written in YAML, and the allowed values."""
    found = []
    for one in error.errors(include_url=False, include_input=False):
        path = ".".join(str(part) for part in one["loc"])
        if one["type"] == "extra_forbidden":
            message = f"unknown key{_known(model, one['loc'])}"
        else:
            message = _MESSAGES.get(one["type"], one["msg"].removeprefix("Value error, "))
        found.append(f"{path}: {message}" if path else message)
    return found


def _known(model: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    """The keys that are valid beside the unknown one, if the path to it consists of plain models."""
    for part in loc[:-1]:
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        inner = fields[part].annotation if isinstance(part, str) and part in fields else None
        options = [inner, *getattr(inner, "__args__", ())]
        models = [t for t in options if isinstance(t, type) and issubclass(t, BaseModel)]
        if len(models) != 1:
            return ""
        model = models[0]
    return "; known are " + ", ".join(field.alias or name for name, field in model.model_fields.items())
