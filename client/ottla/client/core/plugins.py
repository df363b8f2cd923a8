"""What users bring along in settings: assignors, a partitioner, interceptors.

Each is given as an object, as a class, or as the dotted name of one (`package.module.Class`). The
configuration imports and checks it; each client makes one of its own of a class.
"""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any, Final

from ottla.client.core.settings import ConfigError, Parse, Settings, items

_ALLOWED: Final = "must be an object with {}, its class, or the class's dotted name"


def plugin(*methods: str, known: Mapping[str, Any] | None = None, functions: bool = False) -> Parse:
    """Of one of them, with these methods; None for none. `known`: what stands for names that are not
    Python's. `functions`: one will do, too."""
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
    """Of a list of them, or of one."""
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
    """The object itself: a class is called without arguments, and its `configure`, if it has one, is given
    what the user has set, by dotted keys. Raises ConfigError."""
    if not isinstance(given, type):
        return given
    try:
        instance = given()
        if hasattr(instance, "configure"):
            instance.configure(settings.given_values())
    except Exception as problem:
        raise ConfigError(key, given, f"cannot be made: {problem!r}") from problem
    return instance
