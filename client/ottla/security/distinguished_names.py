"""The subject of a certificate as text, in Java's format: Kafka's ACLs name TLS clients by it.

Called when a TLS client has sent a certificate. RFC 2253: the most specific attribute first, keywords for the
nine attributes that have one there, all others as an object identifier with the value in hexadecimal.

ssl.principal.mapping.rules map it to a user name (KIP-371). The first rule whose pattern matches the whole
subject applies: `DEFAULT`, the subject itself, or `RULE:pattern/replacement/` with an optional L or U for
lower or upper case. Patterns are Java's regular expressions, as far as Python's have the same syntax.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_SEQUENCE, _SET, _VERSION, _OID = 0x30, 0x31, 0xA0, 0x06
_ENCODINGS: Final = {
    0x0C: "utf-8",
    0x13: "ascii",
    0x14: "latin-1",
    0x16: "ascii",
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
}


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate in DER. Raises ValueError if it is not a certificate."""
    try:
        (_, whole, _), *_ = _elements(certificate)
        (_, signed, _), *_ = _elements(whole)
        fields = [(tag, raw) for tag, raw, _ in _elements(signed) if tag != _VERSION]
        _, subject = fields[4]  # serial number, algorithm, issuer, validity, subject
        relative = [_relative(raw) for tag, raw, _ in _elements(subject) if tag == _SET]
    except (IndexError, ValueError) as problem:
        raise ValueError(f"not a certificate: {problem}") from None
    return ",".join(reversed(relative))


def _elements(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Tag, content and all bytes of each of the DER elements in `data`."""
    position = 0
    while position < len(data):
        start, tag, size = position, data[position], data[position + 1]
        position += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(data[position : position + count], "big")
            position += count
        if position + size > len(data):
            raise ValueError("it is truncated")
        yield tag, data[position : position + size], data[start : position + size]
        position += size


def _relative(data: bytes) -> str:
    return "+".join(_attribute(raw) for _, raw, _ in _elements(data))


def _attribute(data: bytes) -> str:
    (_, identifier, _), (tag, value, encoded) = _elements(data)
    oid = _dotted(identifier)
    keyword, encoding = _KEYWORDS.get(oid), _ENCODINGS.get(tag)
    if keyword is None or encoding is None:
        return f"{keyword or oid}=#{encoded.hex()}"
    return f"{keyword}={_escaped(value.decode(encoding))}"


def _dotted(identifier: bytes) -> str:
    numbers: list[int] = []
    value = 0
    for byte in identifier:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _escaped(text: str) -> str:
    escaped = "".join(f"\\{c}" if c in ',+"\\<>;' else c for c in text)
    if escaped[:1] in (" ", "#"):
        escaped = "\\" + escaped
    if escaped.endswith(" ") and len(text) > 1:
        escaped = escaped[:-1] + "\\ "
    return escaped


_RULE: Final = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/"
    r"(?P<case>[LU]?))\s*(?:,\s*|$)"
)
_REFERENCE: Final = re.compile(r"\$(\d)")


class Rule(NamedTuple):
    """One rule. `pattern` None: the subject itself."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""


class MappingRules:
    """Parsed once per listener; `name_of` per connection."""

    def __init__(self, text: str) -> None:
        """Raises ValueError for invalid rules."""
        self._text = text
        self._rules = _parse(text)

    def name_of(self, subject: str) -> str:
        """The user name. Raises ValueError when no rule applies."""
        for rule in self._rules:
            if rule.pattern is None:
                return subject
            if rule.pattern.fullmatch(subject):
                name = rule.pattern.sub(rule.replacement, subject)
                return name.lower() if rule.case == "L" else name.upper() if rule.case == "U" else name
        raise ValueError(f"No rules apply to {subject}, rules {self._text}")


def _parse(text: str) -> list[Rule]:
    rules: list[Rule] = []
    position, text = 0, text.strip()
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None:
            raise ValueError(f"Invalid rule: `{text[position:]}`")
        if found["default"]:
            rules.append(Rule(None))
        else:
            try:
                pattern = re.compile(found["pattern"])
            except re.error as problem:
                raise ValueError(f"Invalid rule: `{found[0].strip(' ,')}`: {problem}") from None
            rules.append(Rule(pattern, _replacement(found["replacement"], pattern.groups), found["case"]))
        position = found.end()
    return rules or [Rule(None)]


def _replacement(text: str, groups: int) -> str:
    """The replacement in Python's syntax. A reference to a missing group is literal text."""

    def reference(found: re.Match[str]) -> str:
        return rf"\g<{found[1]}>" if int(found[1]) <= groups else found[0]

    return _REFERENCE.sub(reference, text.replace("\\", r"\\"))
