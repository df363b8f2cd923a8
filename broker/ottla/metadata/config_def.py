"""Configuration definitions (ConfigDef): type, default, range and doc of keys, parsing, and properties files.

Used by the tables `broker_config_table` and `topic_config_table`, and by readers of settings. The rules are
those of Kafka's ConfigDef: values are text, trimmed and parsed by type, then validated; an error names the
allowed values. This module has no particular keys.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Final, Protocol

_INTEGER_BOUNDS = {
    "int": (-(2**31), 2**31 - 1),
    "long": (-(2**63), 2**63 - 1),
    "short": (-(2**15), 2**15 - 1),
}

_PARTITION_AND_BROKER = re.compile(r"[0-9]+:[0-9]+")

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


class BadValue(ValueError):
    """An invalid value of a setting. Its text has the allowed values; `in_kafka` is Kafka's message."""

    def __init__(self, allowed: str, in_kafka: str) -> None:
        super().__init__(allowed)
        self.in_kafka = in_kafka


@dataclass(frozen=True, slots=True)
class Rule:
    """A validator of parsed values, with the allowed values as text, and Kafka's message for a value."""

    allowed: str
    accepts: Callable[[Value], bool]
    in_kafka: Callable[[Value], str]


def at_least(low: float) -> Rule:
    return Rule(
        f"at least {low}",
        lambda v: isinstance(v, int | float) and v >= low,
        lambda v: f"Value must be at least {low}",
    )


def between(low: float, high: float) -> Rule:
    def in_kafka(value: Value) -> str:
        below = isinstance(value, int | float) and value < low
        return f"Value must be at least {low}" if below else f"Value must be no more than {high}"

    return Rule(
        f"between {low} and {high}", lambda v: isinstance(v, int | float) and low <= v <= high, in_kafka
    )


def one_of(*words: str) -> Rule:
    def accepts(value: Value) -> bool:
        return all(v in words for v in value) if isinstance(value, tuple) else value in words

    named = ", ".join(words)
    return Rule(f"one of {named}", accepts, lambda v: f"String must be one of: {named}")


gzip_level = Rule(
    "-1, or between 1 and 9",
    lambda v: isinstance(v, int) and (v == -1 or 1 <= v <= 9),
    lambda v: "Value must be between 1 and 9 or equal to -1",
)


def _are_throttled_replicas(value: Value) -> bool:
    if not isinstance(value, tuple):
        return False
    items = [item for item in value if item]
    return items == ["*"] or all(_PARTITION_AND_BROKER.fullmatch(item) for item in items)


throttled_replicas = Rule(
    "partition:broker pairs, or *",
    _are_throttled_replicas,
    lambda v: (
        "Must be the literal '*' or a list of replicas in the following format: "
        "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
    ),
)


_POLICY_NAME = re.compile(r"[A-Za-z_][\w.-]*(:[A-Za-z_][\w.]*)?")

deletion_policy_names = Rule(
    "names of policies, each once: size, time, module:Class or an entry point",
    lambda v: (
        isinstance(v, tuple) and len(set(v)) == len(v) and all(_POLICY_NAME.fullmatch(item) for item in v)
    ),
    lambda v: "Must be names of policies, each once: size, time, module:Class or an entry point",
)
"""The syntax of the names; each broker checks whether it has the policies."""


no_tiered_storage = Rule("false", lambda v: v is False, lambda v: "Ottla does not serve tiered storage")


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One setting. `default` is in Kafka's text form; None where Kafka's default is null."""

    name: str
    type: ConfigType
    default: str | None
    doc: str
    rule: Rule | None = None
    dynamic: bool = False
    """Whether the value can change while the broker runs (update mode per-broker or cluster-wide)."""

    def parse(self, text: str) -> Value:
        """The typed value of `text`; raises BadValue."""
        text = text.strip() if self.type is not ConfigType.PASSWORD else text
        value = _parse(self.type, text)
        if self.rule is not None and not self.rule.accepts(value):
            raise BadValue(f"must be {self.rule.allowed}", self.rule.in_kafka(value))
        return value

    def show(self, value: Value) -> str | None:
        """A parsed value in Kafka's text form."""
        match value:
            case None | str():
                return value
            case bool():
                return "true" if value else "false"
            case tuple():
                return ",".join(value)
            case float():
                return double_text(value)
        return str(value)

    @property
    def default_value(self) -> Value:
        return None if self.default is None else self.parse(self.default)


_NAMED_RULES: Final = {
    "gzip_level": gzip_level,
    "throttled_replicas": throttled_replicas,
    "deletion_policy_names": deletion_policy_names,
    "no_tiered_storage": no_tiered_storage,
}
_NAMED_DEFAULTS: Final = {"-": None, '""': "", "INT_MAX": str(2**31 - 1), "LONG_MAX": str(2**63 - 1)}


NO_EFFECT: Final = "Accepted without effect in Ottla"


def config_table(rows: str) -> Iterator[ConfigKey]:
    """The keys of a table. A row has a name (after a * if the setting is dynamic), a type, a default (- for
    none, "" for an empty text), often a rule, and after `|` the doc. A line that begins with `|` continues
    the doc; one that begins with # is a heading.

    A rule is >=low, low..high, a list of words, or the name of a rule of this module.
    """
    for row in re.split(r"\n(?!\s*\|)", rows.strip()):
        columns, *texts = (part.strip() for part in row.split("|"))
        if columns.startswith("#"):
            continue
        name, kind, default, *rule = columns.split()
        yield ConfigKey(
            name.removeprefix("*"),
            ConfigType[kind],
            _NAMED_DEFAULTS.get(default, default),
            " ".join(texts),
            _rule(*rule) if rule else None,
            dynamic=name.startswith("*"),
        )


def inert_config_table(rows: str) -> Iterator[ConfigKey]:
    """The keys of a table of settings without effect; the doc of a row is the reason."""
    return (replace(key, doc=f"{NO_EFFECT}: {key.doc}") for key in config_table(rows))


def _rule(text: str) -> Rule:
    if text in _NAMED_RULES:
        return _NAMED_RULES[text]
    low, is_range, high = text.partition("..")
    if is_range:
        return between(int(low), int(high))
    return at_least(int(text[2:])) if text.startswith(">=") else one_of(*text.split(","))


def _parse(kind: ConfigType, text: str) -> Value:
    if kind is ConfigType.BOOLEAN:
        lowered = text.lower()
        if lowered not in ("true", "false"):
            raise BadValue("must be true or false", "Expected value to be either true or false")
        return lowered == "true"
    if kind in (ConfigType.INT, ConfigType.LONG, ConfigType.SHORT):
        low, high = _INTEGER_BOUNDS[kind.label]
        in_kafka = f"Not a number of type {kind.name}"
        try:
            number = int(text)
        except ValueError:
            raise BadValue(f"must be a whole number ({kind.label})", in_kafka) from None
        if not low <= number <= high:
            raise BadValue(f"must be between {low} and {high} ({kind.label})", in_kafka)
        return number
    if kind is ConfigType.DOUBLE:
        try:
            return float(text)
        except ValueError:
            raise BadValue("must be a number", "Not a number of type DOUBLE") from None
    if kind is ConfigType.LIST:
        return tuple(item.strip() for item in text.split(",")) if text else ()
    return text


def double_text(value: float) -> str:
    """A number as Java's Double.toString writes it: 15.0, 1.0E7."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        text = format(Decimal(repr(value)), "f")
        return text if "." in text else f"{text}.0"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    fraction = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{fraction}E{exponent + len(digits) - 1}"


class ConfigError(Exception):
    """Invalid settings; `problems` has one line for each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Settings(Protocol):
    """A broker's settings by name: a BrokerConfig, or its values."""

    def __getitem__(self, name: str) -> Value: ...


class ConfigDef:
    """A table of settings by name."""

    def __init__(self, keys: Iterable[ConfigKey]) -> None:
        self.keys: dict[str, ConfigKey] = {key.name: key for key in keys}

    def __contains__(self, name: str) -> bool:
        return name in self.keys

    def __getitem__(self, name: str) -> ConfigKey:
        return self.keys[name]

    def problem(self, name: str, text: str | None) -> str | None:
        """The error of `name=text`, or None. An unknown name is an error."""
        key = self.keys.get(name)
        if key is None:
            return f"Unknown setting {name}"
        if text is None:
            return None if key.default is None else f"Invalid value null for {name}: a value is required"
        try:
            key.parse(text)
        except BadValue as error:
            return f"Invalid value {text} for {name}: {error}"
        return None

    def problem_in_kafka(self, name: str, text: str) -> str | None:
        """The error of a setting in the table with Kafka's message, or None."""
        try:
            self.keys[name].parse(text)
        except BadValue as error:
            return f"Invalid value {text.strip()} for configuration {name}: {error.in_kafka}"
        return None

    def parse_all(self, settings: Mapping[str, str]) -> tuple[dict[str, Value], list[str]]:
        """The values of all keys (from the settings or by default), and the errors."""
        values: dict[str, Value] = {}
        problems: list[str] = []
        for name, key in self.keys.items():
            text = settings.get(name)
            if text is None:
                values[name] = key.default_value
                continue
            try:
                values[name] = key.parse(text)
            except BadValue as error:
                problems.append(f"{name}={text}: {error}")
        return values, problems


_PROPERTY: Final = re.compile(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def read_properties(path: Path) -> dict[str, str]:
    """A Java properties file: `key=value` or `key: value`, # and ! comments, \\ joins lines.

    Raises ConfigError when the file cannot be read, or for a line with no key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError([f"cannot read {path}: {reason}"]) from None
    settings: dict[str, str] = {}
    pending, joined = "", False
    for number, raw in enumerate(text.splitlines(), 1):
        line = pending + raw.lstrip()
        if not joined and (not line or line[0] in "#!"):
            continue
        pending, joined = "", (len(line) - len(line.rstrip("\\"))) % 2 == 1
        if joined:
            pending = line[:-1]
            continue
        found = _PROPERTY.match(line)
        assert found is not None, "every line matches"
        if not found[1]:
            raise ConfigError([f"{path}:{number}: a line with a value and no name: {raw.strip()}"])
        settings[_unescaped(found[1])] = _unescaped(found[2].rstrip())
    return settings


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else _ESCAPED.get(m[2], m[2]), text)
