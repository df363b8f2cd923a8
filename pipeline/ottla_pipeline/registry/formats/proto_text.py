"""The canonical text of a Protobuf schema, printed from its descriptor: equal schemas have equal texts.

Called by `proto_schema`. Some clients send the text of a file, others its descriptor; both have this
canonical text. Type names are absolute, comments stay before their element, and the order within a message
is that of the descriptor: fields, messages, enums, extensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from google.protobuf import descriptor_pb2, text_format
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

_INDENT: Final = "  "
_FIELD_END: Final = 536_870_912
_ENUM_END: Final = 2**31 - 1
_LABELS: Final = {
    Field.LABEL_OPTIONAL: "optional ",
    Field.LABEL_REQUIRED: "required ",
    Field.LABEL_REPEATED: "repeated ",
}
# Numbers of fields in descriptor.proto, which make the paths of comments.
_OF_FILE: Final = {"package": 2, "dependency": 3, "message": 4, "enum": 5, "service": 6, "extension": 7}
_SYNTAX: Final = 12
_EDITION: Final = 14
_OF_MESSAGE: Final = {"field": 2, "message": 3, "enum": 4, "extension": 6, "oneof": 8}
_OF_ENUM: Final = 2
_OF_SERVICE: Final = 2

Path = tuple[int, ...]


def printed(file: Any) -> str:
    """The text of a FileDescriptorProto. Custom options are printed if its class knows them."""
    return "\n".join(_Printer(file).file()) + "\n"


def scalar_name(kind: Any) -> str:
    """A field's type as written in .proto files: `int32`."""
    return Field.Type.Name(kind).removeprefix("TYPE_").lower()


def is_map(message: Any, field: Any) -> Any:
    """The entry message of a map field; None for any other field."""
    name = field.type_name.rpartition(".")[2]
    for nested in message.nested_type:
        if nested.name == name and nested.options.map_entry:
            return nested
    return None


class _Printer:
    def __init__(self, file: Any) -> None:
        self._file = file
        self._proto3 = file.syntax == "proto3"
        self._editions = file.syntax == "editions"
        self._comments = {tuple(each.path): each for each in file.source_code_info.location}

    def file(self) -> Iterator[str]:
        file = self._file
        yield from self._comment((_SYNTAX,))
        yield from self._comment((_EDITION,))
        if self._editions:
            year = descriptor_pb2.Edition.Name(file.edition).removeprefix("EDITION_").lower()
            yield f'edition = "{year}";'
        else:
            yield f'syntax = "{file.syntax or "proto2"}";'
        if file.package:
            yield from self._comment((_OF_FILE["package"],))
            yield f"package {file.package};"
        if file.dependency:
            yield ""
        for number, name in enumerate(file.dependency):
            kind = "public " if number in file.public_dependency else ""
            kind = "weak " if number in file.weak_dependency else kind
            yield from self._comment((_OF_FILE["dependency"], number))
            yield f"import {kind}{_quoted(name)};"
        options = [f"option {each};" for each in _options(file.options)]
        yield from ["", *options] if options else []
        for number, message in enumerate(file.message_type):
            if not self._is_group(file.extension, message):
                yield ""
                yield from self._message(message, (_OF_FILE["message"], number), "")
        for number, enum in enumerate(file.enum_type):
            yield ""
            yield from self._enum(enum, (_OF_FILE["enum"], number), "")
        yield from self._extensions(file, (_OF_FILE["extension"],), "")
        for number, service in enumerate(file.service):
            yield ""
            yield from self._service(service, (_OF_FILE["service"], number))

    def _message(self, message: Any, path: Path, indent: str, head: str = "") -> Iterator[str]:
        yield from self._comment(path, indent)
        yield f"{indent}{head or 'message ' + message.name} {{"
        inner = indent + _INDENT
        yield from (f"{inner}option {each};" for each in _options(message.options, without=("map_entry",)))
        oneofs: set[int] = set()
        for number, field in enumerate(message.field):
            in_oneof = field.HasField("oneof_index") and not field.proto3_optional
            if not in_oneof:
                yield from self._field(field, message, (*path, _OF_MESSAGE["field"], number), inner)
            elif field.oneof_index not in oneofs:
                oneofs.add(field.oneof_index)
                yield from self._oneof(message, field.oneof_index, path, inner)
        yield from self._ranges(message, inner)
        for number, nested in enumerate(message.nested_type):
            groups = [*message.field, *message.extension]
            if not nested.options.map_entry and not self._is_group(groups, nested):
                yield from self._message(nested, (*path, _OF_MESSAGE["message"], number), inner)
        for number, enum in enumerate(message.enum_type):
            yield from self._enum(enum, (*path, _OF_MESSAGE["enum"], number), inner)
        yield from self._extensions(message, (*path, _OF_MESSAGE["extension"]), inner)
        yield indent + "}"

    def _oneof(self, message: Any, index: int, path: Path, indent: str) -> Iterator[str]:
        oneof = message.oneof_decl[index]
        yield from self._comment((*path, _OF_MESSAGE["oneof"], index), indent)
        yield f"{indent}oneof {oneof.name} {{"
        yield from (f"{indent}{_INDENT}option {each};" for each in _options(oneof.options))
        for number, field in enumerate(message.field):
            if field.HasField("oneof_index") and field.oneof_index == index:
                where = (*path, _OF_MESSAGE["field"], number)
                yield from self._field(field, message, where, indent + _INDENT, label="")
        yield indent + "}"

    def _field(
        self, field: Any, scope: Any, path: Path, indent: str, *, label: str | None = None
    ) -> Iterator[str]:
        yield from self._comment(path, indent)
        if label is None:
            label = _LABELS[field.label]
            implied = self._editions or (self._proto3 and not field.proto3_optional)
            if field.label == Field.LABEL_OPTIONAL and implied:
                label = ""
        entry = is_map(scope, field) if hasattr(scope, "nested_type") else None
        if entry is not None:
            key, value = entry.field
            kind, label = f"map<{_type(key)}, {_type(value)}>", ""
        else:
            kind = _type(field)
        options = _field_options(field)
        suffix = f" [{', '.join(options)}]" if options else ""
        if field.type != Field.TYPE_GROUP:
            yield f"{indent}{label}{kind} {field.name} = {field.number}{suffix};"
            return
        name = field.type_name.rpartition(".")[2]
        groups = scope.message_type if hasattr(scope, "message_type") else scope.nested_type
        body = next(each for each in groups if each.name == name)
        yield from self._message(body, (), indent, f"{label}group {name} = {field.number}{suffix}")

    def _extensions(self, scope: Any, path: Path, indent: str) -> Iterator[str]:
        for extendee in dict.fromkeys(each.extendee for each in scope.extension):
            if not indent:
                yield ""
            yield f"{indent}extend {extendee} {{"
            for number, field in enumerate(scope.extension):
                if field.extendee == extendee:
                    yield from self._field(field, scope, (*path, number), indent + _INDENT)
            yield indent + "}"

    def _enum(self, enum: Any, path: Path, indent: str) -> Iterator[str]:
        yield from self._comment(path, indent)
        yield f"{indent}enum {enum.name} {{"
        inner = indent + _INDENT
        yield from (f"{inner}option {each};" for each in _options(enum.options))
        for number, value in enumerate(enum.value):
            yield from self._comment((*path, _OF_ENUM, number), inner)
            options = list(_options(value.options))
            suffix = f" [{', '.join(options)}]" if options else ""
            yield f"{inner}{value.name} = {value.number}{suffix};"
        spans = ((each.start, each.end) for each in enum.reserved_range)
        yield from self._reserved(spans, enum.reserved_name, _ENUM_END, inner)
        yield indent + "}"

    def _service(self, service: Any, path: Path) -> Iterator[str]:
        yield from self._comment(path)
        yield f"service {service.name} {{"
        yield from (f"{_INDENT}option {each};" for each in _options(service.options))
        for number, method in enumerate(service.method):
            yield from self._comment((*path, _OF_SERVICE, number), _INDENT)
            takes = ("stream " if method.client_streaming else "") + method.input_type
            gives = ("stream " if method.server_streaming else "") + method.output_type
            options = "".join(f" option {each};" for each in _options(method.options))
            yield f"{_INDENT}rpc {method.name}({takes}) returns ({gives})" + (
                f" {{{options} }}" if options else ";"
            )
        yield "}"

    def _comment(self, path: Path, indent: str = "") -> Iterator[str]:
        found = self._comments.get(path)
        if found is None:
            return
        # In one block before the element: apart from it, a comment would belong to another one.
        own = found.leading_comments + found.trailing_comments
        for number, text in enumerate(filter(None, (*found.leading_detached_comments, own))):
            yield from [f"{indent}//"] if number else []
            yield from _commented(text, indent)

    def _ranges(self, message: Any, indent: str) -> Iterator[str]:
        for each in message.extension_range:
            end = "max" if each.end >= _FIELD_END else str(each.end - 1)
            options = list(_options(each.options))
            suffix = f" [{', '.join(options)}]" if options else ""
            span = str(each.start) if each.end == each.start + 1 else f"{each.start} to {end}"
            yield f"{indent}extensions {span}{suffix};"
        spans = ((each.start, each.end - 1) for each in message.reserved_range)
        yield from self._reserved(spans, message.reserved_name, _FIELD_END - 1, indent)

    def _reserved(
        self, spans: Iterable[tuple[int, int]], names: Iterable[str], last: int, indent: str
    ) -> Iterator[str]:
        texts = [
            str(start) if start == end else f"{start} to {'max' if end >= last else end}"
            for start, end in spans
        ]
        if texts:
            yield f"{indent}reserved {', '.join(texts)};"
        quoted = [name if self._editions else _quoted(name) for name in names]
        if quoted:
            yield f"{indent}reserved {', '.join(quoted)};"

    @staticmethod
    def _is_group(fields: Iterable[Any], message: Any) -> bool:
        return any(
            each.type == Field.TYPE_GROUP and each.type_name.rpartition(".")[2] == message.name
            for each in fields
        )


def _commented(text: str, indent: str) -> list[str]:
    return [f"{indent}//{line.rstrip()}" for line in text.rstrip("\n").split("\n")] if text else []


def _type(field: Any) -> str:
    return str(field.type_name) if field.type_name else scalar_name(field.type)


def _field_options(field: Any) -> list[str]:
    found = []
    if field.HasField("default_value"):
        value = field.default_value
        if field.type == Field.TYPE_STRING:
            value = _quoted(value)
        elif field.type == Field.TYPE_BYTES:
            value = f'"{value}"'  # escaped already
        found.append(f"default = {value}")
    if field.json_name and field.json_name != default_json_name(field.name):
        found.append(f"json_name = {_quoted(field.json_name)}")
    return [*found, *_options(field.options)]


def default_json_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(each[:1].upper() + each[1:] for each in others)


def _options(options: Any, *, without: tuple[str, ...] = ()) -> Iterator[str]:
    """Each option as `name = value`."""
    for field, value in options.ListFields():
        if field.name in without and not field.is_extension:
            continue
        name = f"(.{field.full_name})" if field.is_extension else field.name
        for each in value if field.is_repeated else [value]:
            yield f"{name} = {_value(field, each)}"


def _value(field: Any, value: Any) -> str:
    if field.message_type is not None:
        return f"{{ {text_format.MessageToString(value, as_one_line=True)} }}"
    if field.enum_type is not None:
        found = field.enum_type.values_by_number.get(value)
        return str(value) if found is None else str(found.name)
    if field.type == Field.TYPE_STRING:
        return _quoted(value)
    if field.type == Field.TYPE_BYTES:
        return '"' + "".join(_byte(each) for each in value) + '"'
    if field.type == Field.TYPE_BOOL:
        return "true" if value else "false"
    return repr(value)


def _quoted(text: str) -> str:
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    signs = (escapes.get(sign) or (sign if ord(sign) >= 32 else f"\\{ord(sign):03o}") for sign in text)
    return f'"{"".join(signs)}"'


def _byte(value: int) -> str:
    sign = chr(value)
    return sign if 32 <= value < 127 and sign not in '"\\' else f"\\{value:03o}"
