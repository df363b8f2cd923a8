"""Whether one Protobuf schema can read data of another, by the rules of Confluent's registry. Called by
`proto_schema`.

Fields are compared by their numbers. A change of the encoding or a loss of data is incompatible: another
package, a removed message, a type with another encoding, a field removed from a `oneof` whose other fields
remain, fields moved into one `oneof`, added or removed required fields. Names of fields, and enums, may
change. Imported types are compared where a field uses them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

from ottla_pipeline.registry.formats import Incompatibility
from ottla_pipeline.registry.formats.proto_text import is_map, scalar_name

_WRITTEN_ALIKE: Final = {
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "bool", "enum"), "varint"),
    **dict.fromkeys(("sint32", "sint64"), "zigzag"),
    **dict.fromkeys(("string", "bytes"), "text"),
    **dict.fromkeys(("fixed32", "sfixed32"), "fixed32"),
    **dict.fromkeys(("fixed64", "sfixed64"), "fixed64"),
}
"""Scalars that are read as each other; the others only as themselves."""


def differences(reader: Any, writer: Any) -> list[Incompatibility]:
    """`reader`, `writer`: `proto_schema.Compiled`."""
    return list(dict.fromkeys(_Comparison(reader, writer).files()))


class _Types:
    """The messages of a file and of its imports, by full names with a leading dot."""

    def __init__(self, compiled: Any) -> None:
        self.file = compiled.file
        self._found: dict[str, tuple[str, Any]] = {}
        for file in (*compiled.dependencies, compiled.file):
            prefix = f".{file.package}" if file.package else ""
            self._collect(prefix, prefix, file.message_type)

    def message(self, name: str) -> tuple[str, Any]:
        """The message's name within its package, and the message."""
        return self._found[name]

    def _collect(self, package: str, prefix: str, messages: Any) -> None:
        for each in messages:
            name = f"{prefix}.{each.name}"
            self._found[name] = (name.removeprefix(f"{package}."), each)
            self._collect(package, name, each.nested_type)


class _Comparison:
    """Pairs in progress count as compatible, so that recursive messages terminate."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self._reader, self._writer = _Types(reader), _Types(writer)
        self._known: dict[tuple[int, int], bool] = {}

    def files(self) -> Iterator[Incompatibility]:
        reader, writer = self._reader.file, self._writer.file
        if reader.package != writer.package:
            yield Incompatibility(
                "PACKAGE_CHANGED", "/", f"package '{reader.package}', was '{writer.package}'"
            )
        yield from self._scopes(reader.message_type, writer.message_type, "#")

    def _scopes(self, reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
        now = {each.name: each for each in reader}
        for message in writer:
            if message.options.map_entry:
                continue
            where = f"{path}/{message.name}"
            if message.name not in now:
                yield Incompatibility("MESSAGE_REMOVED", where, f"message {message.name} is gone")
            else:
                yield from self._messages(now[message.name], message, where)
                yield from self._scopes(now[message.name].nested_type, message.nested_type, where)

    def _messages(self, reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
        self._known[id(reader), id(writer)] = True
        now, before = ({each.number: each for each in message.field} for message in (reader, writer))
        chosen_now, chosen_before = _members(reader), _members(writer)
        groups: dict[str, set[str | int]] = {}
        moved: dict[str, int] = {}
        for number, oneof in chosen_now.items():
            if number in before:
                groups.setdefault(oneof, set()).add(chosen_before.get(number, number))
                moved[oneof] = moved.get(oneof, 0) + (number not in chosen_before)
        for oneof, origins in groups.items():
            if len(origins) > 1:
                several = moved[oneof] > 1
                kind = "MULTIPLE_FIELDS_MOVED_TO_ONEOF" if several else "FIELD_MOVED_TO_EXISTING_ONEOF"
                yield Incompatibility(kind, f"{path}/{oneof}", "its fields could be set together before")
        kept = {oneof for number, oneof in chosen_before.items() if number in now}
        kept |= set(chosen_now.values())
        for number in sorted({*now, *before}):
            field, old = now.get(number), before.get(number)
            if field is None and old is not None:
                oneof_before = chosen_before.get(number)
                if oneof_before in kept:
                    where = f"{path}/{oneof_before}/{number}"
                    yield Incompatibility("ONEOF_FIELD_REMOVED", where, f"{old.name} is gone from its oneof")
                elif old.label == Field.LABEL_REQUIRED:
                    detail = f"{old.name} was required"
                    yield Incompatibility("REQUIRED_FIELD_REMOVED", f"{path}/{number}", detail)
            elif old is None and field is not None:
                if field.label == Field.LABEL_REQUIRED:
                    detail = f"{field.name} is required"
                    yield Incompatibility("REQUIRED_FIELD_ADDED", f"{path}/{number}", detail)
            elif field is not None and old is not None:
                where = "/".join([path, *filter(None, [chosen_now.get(number)]), str(number)])
                yield from self._fields(field, old, reader, writer, where)

    def _fields(
        self, reader: Any, writer: Any, reader_in: Any, writer_in: Any, path: str
    ) -> Iterator[Incompatibility]:
        now, before = is_map(reader_in, reader), is_map(writer_in, writer)
        kinds = _kind(reader, now), _kind(writer, before)
        if kinds[0] != kinds[1]:
            yield Incompatibility("FIELD_KIND_CHANGED", path, f"a {kinds[0]}, was a {kinds[1]}")
        elif now is not None and before is not None:
            for field, old in zip(now.field, before.field, strict=True):
                yield from self._fields(field, old, now, before, path)
        elif kinds[0] == "message":
            yield from self._message_types(reader.type_name, writer.type_name, path)
        else:
            yield from _scalars(reader, writer, path)

    def _message_types(self, reader: str, writer: str, path: str) -> Iterator[Incompatibility]:
        (name, message), (old_name, old) = self._reader.message(reader), self._writer.message(writer)
        changed = Incompatibility("FIELD_NAMED_TYPE_CHANGED", path, f"type {name}, was {old_name}")
        if name != old_name:
            yield changed
            return
        pair = (id(message), id(old))
        if pair not in self._known:
            found = [*self._messages(message, old, f"#/{name.replace('.', '/')}")]
            found += self._scopes(message.nested_type, old.nested_type, f"#/{name.replace('.', '/')}")
            self._known[pair] = not found
            yield from found
        if not self._known[pair]:
            yield changed


def _members(message: Any) -> dict[int, str]:
    """The fields of oneofs by their numbers, with the oneof's name; synthetic oneofs of `optional` fields
    are excluded."""
    return {
        each.number: str(message.oneof_decl[each.oneof_index].name)
        for each in message.field
        if each.HasField("oneof_index") and not each.proto3_optional
    }


def _kind(field: Any, entry: Any) -> str:
    if entry is not None:
        return "map"
    return "message" if field.type in (Field.TYPE_MESSAGE, Field.TYPE_GROUP) else "scalar"


def _scalars(reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
    now, before = scalar_name(reader.type), scalar_name(writer.type)
    alike = _WRITTEN_ALIKE.get(now, now)
    if alike != _WRITTEN_ALIKE.get(before, before):
        yield Incompatibility("FIELD_SCALAR_KIND_CHANGED", path, f"{now}, was {before}")
    elif alike != "text" and _label(reader) != _label(writer):
        detail = f"{_label(reader)}, was {_label(writer)}"
        yield Incompatibility("FIELD_NUMERIC_LABEL_CHANGED", path, detail)


def _label(field: Any) -> str:
    return str(Field.Label.Name(field.label).removeprefix("LABEL_").lower())
