"""Bytes of keys, values and headers as a reader sees them: decoded, masked, cut to a length. Pure.

Invariants: what masks apply to is shown as a masked document or not at all, so that no other decoder and no
length shows it; texts have no characters that are not printable, except for line breaks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias
from uuid import UUID

from ottla.client.errors import SerializationError
from ottla_console.settings import Mask
from ottla_console.views import formats
from ottla_console.views.json_paths import MASKED, Path, masked

AUTO: Final = "auto"
CHOICES: Final[Mapping[str, str]] = {
    AUTO: "Automatic",
    "text": "Text",
    "json": "JSON",
    "hex": "Hex",
    "schema": "Schema registry",
}
"""Decoders by their name in URLs. The schema registry says which of Avro, Protobuf and JSON Schema it is."""
PREVIEW_MAX: Final = 160
"""Characters of one line."""
BODY_MAX: Final = 4 << 10
"""Characters of a body in a list."""
PARSED_MAX: Final = 1 << 20
"""Bytes that are parsed; a larger value is shown by its first bytes."""
CUT_BYTES: Final = 64 << 10
HEX_MAX: Final = 2 << 10
"""Bytes of a hex dump in a list; sixteen times as many on the page of a record."""
MISSING: Final = object()

SchemaDecode: TypeAlias = Callable[[bytes], tuple[Any, str]]
"""The document and its description, `Avro, schema 7`. Raises SerializationError."""


@dataclass(frozen=True)
class Rules:
    """What applies to all values of a topic."""

    visible: bool = True
    """Whether content may be shown at all (--values)."""
    paths: tuple[Path, ...] = ()
    """Masked in keys and values."""
    headers: frozenset[str] = frozenset()
    """Names of masked headers, lower case."""
    schema: SchemaDecode | None = None
    """None without a registry."""

    @staticmethod
    def of(topic: str, masks: tuple[Mask, ...], schema: SchemaDecode | None, *, visible: bool) -> Rules:
        """The rules of a topic."""
        applying = [mask for mask in masks if mask.applies_to(topic)]
        return Rules(
            visible,
            tuple(Path(path) for mask in applying for path in mask.paths),
            frozenset(name.lower() for mask in applying for name in mask.headers),
            schema,
        )


@dataclass(frozen=True)
class Shown:
    """A key, a value or a header as a reader sees it."""

    kind: str
    """`null`, `empty`, `text`, `json`, `hex`, `schema`, `masked`, `hidden`."""
    label: str
    """How it was decoded."""
    text: str
    """Whole, as far as it may be shown."""
    size: int
    cut: bool = False
    """`text` is the beginning."""
    problem: str = ""
    """Why the chosen decoder did not work."""
    document: Any = field(default=MISSING, repr=False, compare=False)
    """What JSON paths look at."""

    @property
    def preview(self) -> str:
        """One line."""
        line = " ".join(self.text[: 4 * PREVIEW_MAX].split())
        if self.kind == "hex":
            line = " ".join(each[10:57].strip() for each in self.text.split("\n", 5)[:5])
        elif self.document is not MISSING and isinstance(self.document, dict | list):
            line = formats.shown(_compact(self.document, 4 * PREVIEW_MAX))
        return line if len(line) <= PREVIEW_MAX else line[: PREVIEW_MAX - 1] + "…"

    @property
    def more(self) -> bool:
        """Whether there is more than the preview."""
        return self.preview != self.text or bool(self.problem)

    def body(self, most: int = BODY_MAX) -> str:
        return self.text[:most]

    def body_cut(self, most: int = BODY_MAX) -> bool:
        return self.cut or len(self.text) > most


def shown(data: bytes | None, choice: str, rules: Rules, *, bytes_max: int = HEX_MAX) -> Shown:
    """Decode a key or a value by a decoder of CHOICES. `bytes_max`: of a hex dump."""
    if data is None:
        return Shown("null", "null", "null", 0)
    size = len(data)
    if not rules.visible:
        return Shown("hidden", "not shown", "", size)
    if not data:
        return Shown("empty", "empty", "", 0)
    problem = ""
    if size <= PARSED_MAX and choice not in ("hex", "text"):
        document, label, problem = _document(data, choice, rules)
        if document is not MISSING:
            return _of_document(document, label, size, rules)
    if rules.paths and not _safe_as_text(data):
        reason = problem or (
            "text and hex would show them"
            if choice in ("text", "hex")
            else "it could not be read as a document"
        )
        return Shown("masked", "masked", MASKED, size, problem=f"Fields of this topic are masked: {reason}.")
    if choice == "schema" and not problem:
        problem = f"it has more than {formats.size(PARSED_MAX)}"
    if choice != "hex":
        text = _text(data[:CUT_BYTES], whole=size <= CUT_BYTES, force=choice == "text")
        if text is not None:
            return Shown("text", "text", text, size, size > CUT_BYTES, problem)
    return Shown("hex", "hex", hex_dump(data[:bytes_max]), size, size > bytes_max, problem)


def document_of(data: bytes | None, choice: str, rules: Rules) -> Any:
    """The masked document of a value, which JSON paths look at; MISSING if there is none."""
    if not data or not rules.visible or len(data) > PARSED_MAX or choice in ("hex", "text"):
        return MISSING
    found, _, _ = _document(data, choice, rules)
    try:
        return MISSING if found is MISSING else masked(found, rules.paths)
    except RecursionError:
        return MISSING


def searchable(data: bytes | None, choice: str, rules: Rules) -> str:
    """What a search by text looks in: the text that `shown` shows, without its layout."""
    if not data or not rules.visible:
        return ""
    framed = data[0] == 0 and rules.schema is not None
    if rules.paths or framed or choice == "hex" or (b"\\" in data and choice != "text"):
        found = shown(data, choice, rules)
        if found.kind == "masked":
            return ""
        if found.document is not MISSING:
            return json.dumps(found.document, ensure_ascii=False)
        return found.text
    return data[: CUT_BYTES if len(data) > PARSED_MAX else None].decode("utf-8", "backslashreplace")


def header_shown(name: str, data: bytes | None, rules: Rules) -> Shown:
    """A header's value."""
    if data is not None and rules.visible and name.lower() in rules.headers:
        return Shown("masked", "masked", MASKED, len(data))
    return shown(data, AUTO, Rules(rules.visible, rules.paths))


def _document(data: bytes, choice: str, rules: Rules) -> tuple[Any, str, str]:
    """The document, its description, and why there is none."""
    problem = ""
    if choice in (AUTO, "schema"):
        if rules.schema is None:
            problem = "" if choice == AUTO else "no schema registry is configured for this cluster"
        elif data[0] == 0 and len(data) >= 5:
            try:
                found, label = rules.schema(data)
                return plain(found), label, ""
            except SerializationError as error:
                problem = formats.shown(str(error))
        elif choice == "schema":
            problem = "it does not begin with a schema id"
    if choice in (AUTO, "json"):
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            problem = problem or ("" if choice == AUTO else f"it is not JSON: {formats.shown(str(error))}")
        else:
            if choice == "json" or isinstance(found, dict | list) or rules.paths:
                return found, "JSON", ""
    return MISSING, "", problem


def _of_document(document: Any, label: str, size: int, rules: Rules) -> Shown:
    kind = "json" if label == "JSON" else "schema"
    try:
        document = masked(document, rules.paths)
        text = json.dumps(document, indent=2, ensure_ascii=False)
    except (RecursionError, ValueError) as error:
        return Shown(
            "masked", "masked", MASKED, size, problem=f"It is nested too deeply ({type(error).__name__})."
        )
    return Shown(kind, label, printable(text), size, document=document)


def _safe_as_text(data: bytes) -> bool:
    """Whether bytes are a plain word, so that no field of a document can be in them."""
    text = _text(data, whole=True, force=False)
    return text is not None and len(data) <= 256 and not any(each in text for each in '{}[]":=,;<>\n')


def _text(data: bytes, *, whole: bool, force: bool) -> str | None:
    """UTF-8 as printable text; None for what looks binary, unless forced."""
    if force:
        return printable(data.decode("utf-8", "backslashreplace"))
    for cut in range(1 if whole else 4):  # the last character may be cut
        try:
            text = data[: len(data) - cut].decode()
        except UnicodeDecodeError:
            continue
        odd = sum(not each.isprintable() and each not in "\n\r\t" for each in text[:1_000])
        return printable(text) if odd <= len(text[:1_000]) // 20 else None
    return None


def printable(text: str) -> str:
    """Text with escapes for what is not printable, except for line breaks; tabs become spaces."""
    lines = text.replace("\r\n", "\n").replace("\t", "    ").split("\n")
    return "\n".join(map(formats.shown, lines))


def hex_dump(data: bytes) -> str:
    """Lines of offset, sixteen bytes and their ASCII characters."""
    lines = []
    for start in range(0, len(data), 16):
        part = data[start : start + 16]
        shown_bytes = " ".join(f"{each:02x}" for each in part)
        letters = "".join(chr(each) if 32 <= each < 127 else "." for each in part)
        lines.append(f"{start:08x}  {shown_bytes:<47}  {letters}")
    return "\n".join(lines)


def plain(value: Any) -> Any:
    """What a schema's decoder returns, with the types of JSON only."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID | timedelta):
        return str(value)
    return repr(value)


def _compact(document: Any, most: int) -> str:
    """The beginning of a document as JSON in one line."""
    out = ""
    for part in json.JSONEncoder(ensure_ascii=False, separators=(", ", ": ")).iterencode(document):
        out += part
        if len(out) > most:
            break
    return out
