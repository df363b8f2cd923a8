"""Protobuf schemas: parsing, the canonical text, and compatibility.

Called by `registry.checks`, in a worker process: protoc is used as a library that writes to standard error. A
schema is a file, sent as text or as its descriptor (base64), as some clients do; `proto_text` prints one
canonical text for both. Its imports are its references, by file names, and the files that protoc, Google's
common types and Confluent's serializers include.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, Final

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from ottla_pipeline.registry.formats import Incompatibility, InvalidSchema, ParsedSchema
from ottla_pipeline.registry.formats.proto_compatibility import differences
from ottla_pipeline.registry.formats.proto_text import default_json_name, printed

TYPE: Final = "PROTOBUF"
SERIALIZED: Final = "serialized"
_BASE64: Final = re.compile(r"[A-Za-z0-9+/\s]+=*\s*")
_ERRORS_MAX: Final = 500
_META: Final = "".join(
    f"extend google.protobuf.{kind}Options {{ Meta {name}_meta = 1088; }}\n"
    for kind, name in (
        ("File", "file"),
        ("Message", "message"),
        ("Field", "field"),
        ("Enum", "enum"),
        ("EnumValue", "enum_value"),
    )
)
_BUNDLED: Final = {
    "confluent/meta.proto": f"""syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
option java_package = "io.confluent.protobuf";
option java_outer_classname = "MetaProto";
message Meta {{
  string doc = 1;
  map<string, string> params = 2;
  repeated string tags = 3;
  repeated Rule rules = 4;
}}
message Rule {{
  string name = 1;
  string doc = 2;
  string expr = 3;
  string sql = 4;
}}
{_META}""",
    "confluent/type/decimal.proto": """syntax = "proto3";
package confluent.type;
option java_package = "io.confluent.protobuf.type";
option java_multiple_files = true;
option java_outer_classname = "DecimalProto";
message Decimal {
  bytes value = 1;
  uint32 precision = 2;
  int32 scale = 3;
}
""",
}
"""What Confluent's serializers know without a reference."""


@dataclass(frozen=True, eq=False)
class Compiled:
    """A file with all of its imports, dependencies first."""

    file: FileDescriptorProto
    dependencies: tuple[FileDescriptorProto, ...]


def parse(text: str, references: Mapping[str, str], *, normalize: bool = False) -> ParsedSchema:
    """`references`: the texts of imported files by their names. The canonical text is that of the
    descriptor, with or without `normalize`."""
    with _Folder() as folder:
        for name, each in references.items():
            folder.write(name, _as_text(each, folder))
        name = next(each for each in ("default.proto", "default_.proto") if each not in references)
        folder.write(name, _as_text(text, folder))
        found = folder.compile(name)
        own = _with_extensions(found[-1], found)
        canonical = printed(own)
    file = FileDescriptorProto.FromString(found[-1].SerializeToString())
    file.ClearField("source_code_info")
    return ParsedSchema(TYPE, canonical, Compiled(file, tuple(found[:-1])))


def unreadable(reader: ParsedSchema, writer: ParsedSchema) -> list[Incompatibility]:
    """What `reader` cannot read of `writer`, by Confluent's rules."""
    return differences(reader.model, writer.model)


def render(parsed: ParsedSchema, form: str) -> str:
    """`serialized`: the descriptor in base64."""
    if form != SERIALIZED:
        return parsed.text
    return base64.b64encode(parsed.model.file.SerializeToString()).decode()


class _Folder:
    """A temporary directory of files to compile."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="ottla-registry-")
        self._own = Path(self._directory.name)

    def __enter__(self) -> _Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()

    def write(self, name: str, text: str) -> None:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\0" in name or "\\" in name or str(path) != name:
            raise InvalidSchema(f"'{name}' is no name of a file to import")
        try:
            target = self._own / "sent" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        except (OSError, UnicodeEncodeError) as error:
            raise InvalidSchema(f"'{name}' is no file to import: {error}") from None

    def compile(self, name: str) -> list[FileDescriptorProto]:
        """The file with all of its imports, dependencies first. Raises InvalidSchema."""
        from grpc_tools import protoc

        (self._own / "sent").mkdir(exist_ok=True)
        result = self._own / "result"
        folders = (self._own / "sent", _installed("grpc_tools") / "_proto", _bundle(self._own / "bundled"))
        paths = [f"--proto_path={each}" for each in folders]
        flags = ["--include_imports", "--include_source_info", f"--descriptor_set_out={result}"]
        with _errors_of(self._own / "errors") as errors:
            status = protoc.main(["protoc", *paths, *flags, name])
        if status != 0:
            reason = errors.read_text(errors="replace").replace(f"{self._own / 'sent'}/", "").strip()
            raise InvalidSchema(f"not a Protobuf schema: {reason[:_ERRORS_MAX]}")
        found = FileDescriptorSet.FromString(result.read_bytes())
        for each in found.file:
            _without_default_names(each)
        return list(found.file)


def _bundle(target: Path) -> Path:
    """A directory with Google's common types and Confluent's."""
    if not target.exists():
        for name, text in _BUNDLED.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_text(text)
        (target / "google").mkdir()
        (target / "google" / "type").symlink_to(_installed("google.type"))
    return target


def _installed(package: str) -> Path:
    """The directory of an installed package."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


@contextmanager
def _errors_of(path: Path) -> Iterator[Path]:
    """Redirects standard error to a file."""
    kept = os.dup(2)
    try:
        with path.open("wb") as target:
            os.dup2(target.fileno(), 2)
            yield path
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _as_text(schema: str, folder: _Folder) -> str:
    """The text of a schema that may be a descriptor; the files that it imports are in the folder."""
    if not _BASE64.fullmatch(schema):
        return schema
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(schema, validate=False))
    except (binascii.Error, DecodeError, ValueError):
        raise InvalidSchema("not a Protobuf schema: neither the text of a file nor a descriptor") from None
    _without_default_names(file)
    found: list[FileDescriptorProto] = []
    if file.dependency:
        folder.write("imports_of_a_descriptor.proto", _importing(file.dependency))
        found = folder.compile("imports_of_a_descriptor.proto")[:-1]
    return printed(_with_extensions(file, [*found, file]))


def _importing(names: Any) -> str:
    quoted = (name.replace("\\", "\\\\").replace('"', '\\"') for name in names)
    return 'syntax = "proto3";\n' + "".join(f'import "{name}";\n' for name in quoted)


def _with_extensions(file: FileDescriptorProto, all_files: list[FileDescriptorProto]) -> Any:
    """The descriptor as a message whose class knows the custom options of all files."""
    pool = DescriptorPool()
    try:
        for each in all_files:
            bare = FileDescriptorProto.FromString(each.SerializeToString())
            bare.ClearField("source_code_info")
            pool.AddSerializedFile(bare.SerializeToString())
        kind = message_factory.GetMessageClass(_file_type(pool))
        return kind.FromString(file.SerializeToString())
    except (TypeError, ValueError, KeyError, DecodeError) as error:
        raise InvalidSchema(f"not a Protobuf schema: {error}") from None


def _file_type(pool: DescriptorPool) -> Any:
    name = "google.protobuf.FileDescriptorProto"
    try:
        return pool.FindMessageTypeByName(name)
    except KeyError:
        pool.AddSerializedFile(descriptor_pb2.DESCRIPTOR.serialized_pb)
        return pool.FindMessageTypeByName(name)


def _without_default_names(scope: Any) -> None:
    """Removes redundant parts: default JSON names, which protoc writes and clients do not, and empty
    options."""
    for span in getattr(scope, "extension_range", ()):
        if not span.options.ByteSize():
            span.ClearField("options")
    for field in (*getattr(scope, "field", ()), *scope.extension):
        if field.json_name == default_json_name(field.name):
            field.ClearField("json_name")
    for message in scope.message_type if hasattr(scope, "message_type") else scope.nested_type:
        _without_default_names(message)
