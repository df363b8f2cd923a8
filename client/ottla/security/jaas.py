"""Java's login configuration: `sasl.jaas.config`, one login module with its options, and whole JAAS files.

Called for each mechanism of a listener, by clients, and for the connection to ZooKeeper. An entry is `Module
required key="value" …;` with quotes where needed, Java's escapes in them, and Java's comments; a file has
entries in sections, `Name { … };`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple


def _token(signs: str) -> re.Pattern[str]:
    return re.compile(
        r"""\s+|//[^\n]*|/\*.*?\*/"""
        r"""|(?P<quoted>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
        rf"""|(?P<sign>[{signs}])|(?P<word>[^\s{signs}"']+)""",
        re.DOTALL,
    )


_TOKEN: Final = _token("=;")
_FILE_TOKEN: Final = _token("=;{}")
_ESCAPE: Final = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")


class Login(NamedTuple):
    """A login module by its class name, and its options."""

    module: str
    options: dict[str, str]


def parse(text: str) -> Login:
    """One login module. Raises ValueError, whose message has no option values."""
    tokens = _tokens(text, _TOKEN)
    if not tokens:
        raise ValueError("JAAS config is empty")
    login, end = _entry(tokens, 0)
    if end < len(tokens):
        raise ValueError("JAAS config property contains more than one login module")
    return login


def parse_file(text: str) -> dict[str, list[Login]]:
    """The login modules of each section of a file, by the section's name. Raises ValueError."""
    tokens = _tokens(text, _FILE_TOKEN)
    sections: dict[str, list[Login]] = {}
    position = 0
    while position < len(tokens):
        name = tokens[position]
        if tokens[position + 1 : position + 2] != ["{"]:
            raise ValueError(f"JAAS file: no {{ after {name}")
        if name in sections:
            raise ValueError(f"JAAS file: there are two sections {name}")
        logins = sections[name] = []
        position += 2
        while tokens[position : position + 1] != ["}"]:
            if position >= len(tokens):
                raise ValueError(f"JAAS file: section {name} does not end with }};")
            login, position = _entry(tokens, position)
            logins.append(login)
        if tokens[position + 1 : position + 2] != [";"]:
            raise ValueError(f"JAAS file: section {name} does not end with }};")
        position += 2
    return sections


def _entry(tokens: Sequence[str], start: int) -> tuple[Login, int]:
    """The login module whose name is at `start`, and the position after it."""
    if len(tokens) < start + 2 or tokens[start + 1].lower() not in _FLAGS:
        raise ValueError(f"JAAS config: no control flag after {tokens[start]}; use `required`")
    options: dict[str, str] = {}
    position = start + 2
    while position < len(tokens) and tokens[position] not in (";", "}"):
        key = tokens[position]
        if tokens[position + 1 : position + 2] != ["="] or len(tokens) < position + 3:
            raise ValueError(f"Value not specified for key '{key}' in JAAS config")
        options[key] = _value(tokens[position + 2])
        position += 3
    if tokens[position : position + 1] != [";"]:
        raise ValueError("JAAS config entry not terminated by semi-colon")
    return Login(tokens[start], options), position + 1


def _tokens(text: str, token: re.Pattern[str]) -> list[str]:
    tokens = []
    position = 0
    while position < len(text):
        found = token.match(text, position)
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
