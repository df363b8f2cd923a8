"""Configuration definitions: a key's type, default, range and doc, and parsing by them.

Called by the tables in `ottla.metadata.config_table` and everything that reads a setting. The rules are
those of Kafka's ConfigDef: values arrive as text, are trimmed and parsed by type, then validated;
what a value may be is part of the error. Nothing here knows any particular key.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

_INTEGER_BOUNDS = {
    "int": (-(2**31), 2**31 - 1),
    "long": (-(2**63), 2**63 - 1),
    "short": (-(2**15), 2**15 - 1),
}

Value = bool | int | float | str | tuple[str, ...] | None


class ConfigType(enum.Enum):
    """The type of a setting; `wire` is its number in DescribeConfigs responses (KIP-569)."""

    BOOLEAN = ("boolean", 1)
    STRING = ("string", 2)
    INT = ("int", 3)
    SHORT = ("short", 4)
    LONG = ("long", 5)
    DOUBLE = ("double", 6)
    LIST = ("list", 7)
    CLASS = ("class", 8)
    PASSWORD = ("password", 9)

    def __init__(self, label: str, wire: int) -> None:
        self.label = label
        self.wire = wire


@dataclass(frozen=True, slots=True)
class Rule:
    """What a parsed value may be: a test, and the words that say it in an error."""

    allowed: str
    accepts: Callable[[Value], bool]


def at_least(low: float) -> Rule:
    return Rule(f"at least {low}", lambda v: isinstance(v, int | float) and v >= low)


def between(low: float, high: float) -> Rule:
    return Rule(f"between {low} and {high}", lambda v: isinstance(v, int | float) and low <= v <= high)


def one_of(*words: str) -> Rule:
    def accepts(value: Value) -> bool:
        return all(v in words for v in value) if isinstance(value, tuple) else value in words

    return Rule("one of " + ", ".join(words), accepts)


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One setting. `default` is in Kafka's text form; None where Kafka's default is null."""

    name: str
    type: ConfigType
    default: str | None
    doc: str
    rule: Rule | None = None
    dynamic: bool = False
    """Whether a running broker takes a new value (Kafka's per-broker or cluster-wide update modes)."""

    def parse(self, text: str) -> Value:
        """The typed value of `text`; raises ValueError with what is allowed."""
        text = text.strip() if self.type is not ConfigType.PASSWORD else text
        value = _parse(self.type, text)
        if self.rule is not None and not self.rule.accepts(value):
            raise ValueError(f"must be {self.rule.allowed}")
        return value

    @property
    def default_value(self) -> Value:
        return None if self.default is None else self.parse(self.default)


def _parse(kind: ConfigType, text: str) -> Value:
    if kind is ConfigType.BOOLEAN:
        lowered = text.lower()
        if lowered not in ("true", "false"):
            raise ValueError("must be true or false")
        return lowered == "true"
    if kind in (ConfigType.INT, ConfigType.LONG, ConfigType.SHORT):
        low, high = _INTEGER_BOUNDS[kind.label]
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"must be a whole number ({kind.label})") from None
        if not low <= number <= high:
            raise ValueError(f"must be between {low} and {high} ({kind.label})")
        return number
    if kind is ConfigType.DOUBLE:
        try:
            return float(text)
        except ValueError:
            raise ValueError("must be a number") from None
    if kind is ConfigType.LIST:
        return tuple(item.strip() for item in text.split(",")) if text else ()
    return text


class ConfigDef:
    """A table of settings by name."""

    def __init__(self, keys: Iterable[ConfigKey]) -> None:
        self.keys: dict[str, ConfigKey] = {key.name: key for key in keys}

    def __contains__(self, name: str) -> bool:
        return name in self.keys

    def __getitem__(self, name: str) -> ConfigKey:
        return self.keys[name]

    def problem(self, name: str, text: str | None) -> str | None:
        """What is wrong with `name=text`, or None. Unknown names are a problem here."""
        key = self.keys.get(name)
        if key is None:
            return f"Unknown setting {name}"
        if text is None:
            return None if key.default is None else f"Invalid value null for {name}: a value is needed"
        try:
            key.parse(text)
        except ValueError as error:
            return f"Invalid value {text} for {name}: {error}"
        return None

    def parse_all(self, settings: Mapping[str, str]) -> tuple[dict[str, Value], list[str]]:
        """Every key's value (given or default), and the problems found."""
        values: dict[str, Value] = {}
        problems: list[str] = []
        for name, key in self.keys.items():
            text = settings.get(name)
            if text is None:
                values[name] = key.default_value
                continue
            try:
                values[name] = key.parse(text)
            except ValueError as error:
                problems.append(f"{name}={text}: {error}")
        return values, problems
