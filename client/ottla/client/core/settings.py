"""The base of the configurations: one field for each setting, parsers of values, and plugins of users.

Used by `config` and `consumer_config`. A field is declared with `setting(default, parse)`; its name with dots
instead of underscores is Kafka's key. Values come as Python objects from keywords, and as text from a mapping
of dotted keys, for example of a properties file. Errors are ConfigErrors with the key, the value, and what is
allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from ipaddress import IPv6Address
from pkgutil import resolve_name
from typing import Any, Final, Self, TypeAlias

from ottla.client import errors

Parse: TypeAlias = Callable[[object], Any]

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
SECURITY_PREFIXES: Final = ("ssl.", "sasl.")
WITHOUT_EFFECT: Final = frozenset(
    {
        "auto.include.jmx.reporter",
        "enable.metrics.push",
        "metrics.recording.level",
        "security.providers",
    }
)
"""Keys of Kafka's clients that are accepted without effect, so that the file of a Java client can be used
unchanged."""


class ConfigError(errors.ConfigError):
    """A setting that is unknown, invalid, or in conflict with another one."""

    def __init__(self, key: str, value: object, allowed: str) -> None:
        super().__init__(f"{key}={value!r}: {allowed}")
        self.key = key
        self.value = value


def setting(default: Any, parse: Parse) -> Any:
    """A field of a configuration. `parse` raises ValueError with what is allowed."""
    return field(default=default, metadata={"parse": parse})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The base of every configuration; use `of`."""

    security_protocol: str = "PLAINTEXT"
    security_settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    """ssl.* and sasl.*, as `ottla.security.clients` takes them."""
    given: frozenset[str] = field(default_factory=frozenset, repr=False)
    """The keys that the user set."""

    @classmethod
    def of(cls, settings: Mapping[str, object] | None = None, /, **keywords: object) -> Self:
        """From Kafka's dotted keys, from keywords, or from both; keywords take precedence. Raises
        ConfigError."""
        written = {**(settings or {}), **{name.replace("_", "."): v for name, v in keywords.items()}}
        known = {f.name.replace("_", "."): f for f in fields(cls) if "parse" in f.metadata}
        values: dict[str, Any] = {}
        security: dict[str, str] = {}
        for key, value in written.items():
            if key in known:
                option = known[key]
                try:
                    values[option.name] = option.metadata["parse"](value)
                except (ValueError, TypeError) as problem:
                    raise ConfigError(key, value, str(problem)) from None
            elif key == "security.protocol":
                values["security_protocol"] = str(value).upper()
            elif key.startswith(SECURITY_PREFIXES):
                if value is not None:
                    security[key] = _text(value)
            elif key not in WITHOUT_EFFECT:
                raise ConfigError(key, value, _did_you_mean(key, known))
        return cls(**values, security_settings=security, given=frozenset(written))

    def given_values(self) -> dict[str, Any]:
        """The parsed values that the user set, by dotted keys, without secrets."""
        named = {f.name.replace("_", "."): f.name for f in fields(self)}
        return {key: getattr(self, name) for key, name in named.items() if key in self.given}

    def has(self, *keys: str) -> bool:
        """Whether the user has set all of these."""
        return self.given.issuperset(keys)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _did_you_mean(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return "no such setting" + (f"; did you mean {near[0]}?" if near else "")


# --- parsers -------------------------------------------------------------------------------------


def integer(least: int = 0, most: int = INT32_MAX) -> Parse:
    def parse(value: object) -> int:
        allowed = f"must be a whole number from {least} to {most}"
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(allowed)
        try:
            number = int(value)
        except ValueError:
            raise ValueError(allowed) from None
        if not least <= number <= most:
            raise ValueError(allowed)
        return number

    return parse


def boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError("must be true or false")


def text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text")
    return value


def optional_text(value: object) -> str | None:
    """None, or text that is not empty."""
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise ValueError("must be text that is not empty")
    return value


def one_of(*names: str) -> Parse:
    def parse(value: object) -> str:
        if not isinstance(value, str) or value.strip().lower() not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return value.strip().lower()

    return parse


def items(value: object) -> tuple[Any, ...]:
    """A list, or text with commas."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, list | tuple):
        return tuple(value)
    raise ValueError("must be a list, or text with commas between its items")


def anything(value: object) -> object:
    """For objects that are checked where they are used."""
    return value


def _is_ipv6(host: str) -> bool:
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True


def addresses(value: object) -> tuple[tuple[str, int], ...]:
    """`host:port,host:port`, or a list of these or of pairs; an IPv6 address stands in brackets."""
    found = []
    for item in items(value):
        if isinstance(item, tuple) and len(item) == 2:
            host, port = item
        else:
            host, _, port = str(item).rpartition("://")[2].rpartition(":")
            host = host.strip("[]")
        try:
            number = int(port)
        except (TypeError, ValueError):
            number = -1
        if not host or not 0 < number < 65536 or (":" in str(host) and not _is_ipv6(str(host))):
            raise ValueError(f"{item!r} is not host:port")
        found.append((str(host), number))
    if not found:
        raise ValueError("must have at least one broker, as host:port")
    return tuple(found)


# --- plugins: assignors, a partitioner, interceptors ---------------------------------------------
# Each is given as an object, as a class, or as the dotted name of a class (`package.module.Class`).

_ALLOWED: Final = "must be an object with {}, its class, or the class's dotted name"


def plugin(*methods: str, known: Mapping[str, Any] | None = None, functions: bool = False) -> Parse:
    """A parser of a plugin with these methods, or None. `known`: plugins for names that are not Python's.
    `functions`: a function is accepted, too."""
    calls = " and ".join(f"{method}()" for method in methods)

    def parse(value: object) -> Any:
        found: Any = value
        if value is None or value == "":
            return None
        if isinstance(value, str):
            found = (known or {}).get(value) or _imported(value, _ALLOWED.format(calls))
        lacks = [method for method in methods if not callable(getattr(found, method, None))]
        if lacks and not (functions and callable(found) and not isinstance(found, type)):
            raise ValueError(f"has no {lacks[0]}(); {_ALLOWED.format(calls)}")
        return found

    return parse


def plugins(*methods: str, known: Mapping[str, Any] | None = None) -> Parse:
    """A parser of a list of plugins, or of a single one."""
    parse = plugin(*methods, known=known)

    def parse_all(value: object) -> tuple[Any, ...]:
        given = items(value) if value is None or isinstance(value, str | list | tuple) else (value,)
        return tuple(parse(each) for each in given)

    return parse_all


def _imported(name: str, allowed: str) -> Any:
    try:
        return resolve_name(name)
    except Exception as problem:  # of whatever the module does
        raise ValueError(f"cannot be imported: {problem}; {allowed}") from problem


def made(key: str, given: Any, settings: Settings) -> Any:
    """The plugin object: a class is instantiated without arguments, and its `configure`, if it has one, is
    called with the values that the user set, by dotted keys. Raises ConfigError."""
    if not isinstance(given, type):
        return given
    try:
        instance = given()
        if hasattr(instance, "configure"):
            instance.configure(settings.given_values())
    except Exception as problem:
        raise ConfigError(key, given, f"cannot be made: {problem!r}") from problem
    return instance
