"""protocol-messages.md: every message and field, from the message classes.

tests/interop/java/test_protocol_table.py compares the classes with Kafka's own definitions.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from uuid import UUID

from ottla.protocol import messages
from ottla.protocol.api import ApiKey
from ottla.protocol.types import (
    HIGHEST_VERSION,
    NEVER,
    Field,
    FieldType,
    Message,
    Struct,
    Versions,
    fields_of,
)

HEAD = """\
# The protocol's messages

The classes of `ottla.protocol.messages`. The [guide](../guides/client-requests.md) describes how to send them.

A message is made with keywords, and a field that is left out has its default:
`MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="orders")])`. The structs inside a message
are attributes of its class. `topics[].name` is the field `name` of each struct in the list `topics`. Error
codes are those of the [table of errors](errors.md#error-codes).

- **type** on the wire: intN is a whole number of N bits, uuid a `uuid.UUID`, records are batches as bytes
- **versions** of the message that carry the field; in the others it reads as its default, and can be encoded
  with no other value
- **null in**: the versions in which the field may be None
- **ignorable**: a version that does not carry the field drops its value without an error
- **tag**: the field travels among the tagged fields under this number (KIP-482)
"""


def pages() -> dict[str, str]:
    parts = [HEAD, *contents(), *(api_part(key) for key in ApiKey), "## Without an API key\n"]
    parts += [message_part(kind) for kind in found() if kind.api_key < 0]
    return {"protocol-messages.md": "\n".join(parts)}


def found() -> list[type[Message]]:
    return list(messages.ALL)


def contents() -> Iterator[str]:
    yield "| key | API | versions |\n|---|---|---|"
    for key in ApiKey:
        request, _ = of_key(key)
        title = request.__name__.removesuffix("Request")
        yield f"| {int(key)} | [{title}](#{title.lower()}) | {shown(versions_of(request))} |"
    yield ""


def of_key(key: ApiKey) -> tuple[type[Message], type[Message]]:
    request, response = sorted((kind for kind in found() if kind.api_key == key), key=lambda k: k.__name__)
    return request, response


def api_part(key: ApiKey) -> str:
    request, response = of_key(key)
    title = request.__name__.removesuffix("Request")
    return "\n".join(
        [f"## {title}\n", f"API key {int(key)}.\n", message_part(request), message_part(response)]
    )


def message_part(kind: type[Message]) -> str:
    flexible = "" if kind.flexible_from == NEVER else f", flexible from {kind.flexible_from}"
    lines = [
        f"### `{kind.__name__}`\n",
        f"{inspect.getdoc(kind)}\n",
        f"Versions {shown(versions_of(kind))}{flexible}.\n",
    ]
    rows = list(field_rows(kind, kind))
    if not rows:
        return "\n".join([*lines, "It has no fields.\n"])
    head = ["| field | type | versions | null in | default | |", "|---|---|---|---|---|---|"]
    return "\n".join([*lines, *head, *rows, ""])


def field_rows(message: type[Message], struct: type[Struct], prefix: str = "") -> Iterator[str]:
    for each in fields_of(struct):
        if each.versions.lowest > message.max_version:
            continue
        more = [text for text in ("ignorable" if each.ignorable else "", tag(each)) if text]
        cells = (
            f"`{prefix}{each.name}`",
            type_name(each.type),
            shown(each.versions),
            "" if each.nullable.highest < 0 else shown(each.nullable),
            default(each),
            ", ".join(more),
        )
        yield f"| {' | '.join(cells)} |"
        inner, suffix = each.type, ""
        while inner.element is not None:
            inner, suffix = inner.element, suffix + "[]"
        if inner.struct is not None:
            yield from field_rows(message, inner.struct, f"{prefix}{each.name}{suffix}.")


def tag(field: Field) -> str:
    return "" if field.tag is None else f"tag {field.tag}"


def type_name(kind: FieldType) -> str:
    if kind.element is not None:
        return f"list of {type_name(kind.element)}"
    return kind.wire if kind.struct is None else f"`{kind.struct.__qualname__}`"


def versions_of(kind: type[Message]) -> Versions:
    return Versions(kind.min_version, kind.max_version)


def shown(versions: Versions) -> str:
    if versions.highest == HIGHEST_VERSION:
        return f"{versions.lowest}+"
    return (
        str(versions.lowest)
        if versions.lowest == versions.highest
        else f"{versions.lowest}-{versions.highest}"
    )


def default(field: Field) -> str:
    value = field.default
    if isinstance(value, Struct):
        return "its defaults"
    if isinstance(value, UUID):
        return "the zero UUID"
    if value == "" or value == b"" or value == []:
        return "empty"
    return f"`{value}`"
