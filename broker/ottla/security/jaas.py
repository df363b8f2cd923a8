"""`sasl.jaas.config`: one login module with its options, in the syntax of Java's login configuration.

Called for each mechanism of a listener, and by clients. `Module required key="value" …;` with quotes around
values where needed, Java's escapes in them, and comments as in Java.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/"""
    r"""|(?P<quoted>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|(?P<sign>[=;])|(?P<word>[^\s=;"']+)""",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")


class Login(NamedTuple):
    """A login module by its class name, and its options."""

    module: str
    options: dict[str, str]


def parse(text: str) -> Login:
    """Raises ValueError with what is wrong; option values are never part of it."""
    tokens = _tokens(text)
    if not tokens:
        raise ValueError("JAAS config is empty")
    if len(tokens) < 2 or tokens[1].lower() not in _FLAGS:
        raise ValueError(f"JAAS config: no control flag after {tokens[0]}; use `required`")
    options: dict[str, str] = {}
    position = 2
    while position < len(tokens) and tokens[position] != ";":
        key = tokens[position]
        if tokens[position + 1 : position + 2] != ["="] or len(tokens) < position + 3:
            raise ValueError(f"Value not specified for key '{key}' in JAAS config")
        options[key] = _value(tokens[position + 2])
        position += 3
    if position >= len(tokens):
        raise ValueError("JAAS config entry not terminated by semi-colon")
    if position + 1 < len(tokens):
        raise ValueError("JAAS config property contains more than one login module")
    return Login(tokens[0], options)


def _tokens(text: str) -> list[str]:
    tokens = []
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise ValueError("JAAS config: a quoted value does not end")
        if found.lastgroup:
            tokens.append(found[0])
        position = found.end()
    return tokens


def _value(token: str) -> str:
    if token[0] not in "\"'":
        return token
    return _ESCAPE.sub(_escaped, token[1:-1])


def _escaped(found: re.Match[str]) -> str:
    name = found[1]
    return chr(int(name, 8)) if name[0] in "01234567" else _ESCAPED.get(name, name)
