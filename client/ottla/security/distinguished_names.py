"""The subject of a certificate as text, in Java's format: Kafka's ACLs name TLS clients by it.

Called when a TLS client has sent a certificate. RFC 2253: the most specific attribute first, keywords for the
nine attributes that have one there, all others as an object identifier with the value in hexadecimal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

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
