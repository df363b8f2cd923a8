"""Protobuf schemas: one text for what is sent as text or as a descriptor, and which may follow which."""

from __future__ import annotations

import base64
import math
from pathlib import Path

import grpc_tools
import pytest
from google.protobuf import descriptor_pool, empty_pb2, struct_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.type import color_pb2

from ottla_pipeline.registry.formats import InvalidSchema, proto_schema

EVERYTHING = """
// The license.

syntax = "proto2";
package a.b;
import "google/protobuf/descriptor.proto";
import "other.proto";
import "confluent/meta.proto";
option java_package = "a\\"b\\\\c";
option (a.b.on_file) = { text: "x\\ny" numbers: [1, 2] [a.b.Note.inner]: -3 };
extend google.protobuf.FileOptions { optional Note on_file = 50001; }
extend google.protobuf.FieldOptions {
  repeated string tags = 50002;
  optional double weight = 50003;
  optional bytes raw = 50004;
  optional Color tint = 50005;
  optional bool flag = 50006;
}
/* What is
   noted. */
message Note {
  optional string text = 1; // said
  repeated int32 numbers = 2 [packed = true];
  extensions 100 to 199, 1000 to max;
  extend Note { optional sint64 inner = 100; }
}
enum Color {
  option allow_alias = true;
  RED = 0; CRIMSON = 0 [deprecated = true]; BLUE = -1; reserved 5 to 7, 9 to max; reserved "GREEN";
}
message Main {
  option deprecated = true;
  required string id = 1 [
    (a.b.tags) = "x", (a.b.tags) = "y", (a.b.weight) = inf, (a.b.raw) = "\\001\\"z", (a.b.tint) = BLUE,
    (a.b.flag) = true];
  optional float ratio = 2 [default = -1.5];
  optional double limit = 3 [default = nan];
  optional bytes blob = 4 [default = "\\000\\377\\""];
  optional string label = 5 [default = "a\\"\\n\\u00e9", json_name = "Label"];
  optional Color color = 6 [default = CRIMSON];
  map<string, Note> notes = 7;
  oneof choice { option (a.b.on_oneof) = 1; int32 number = 8; group Group = 9 { optional int32 within = 1; } }
  optional group Outer = 10 { optional a.b.Main again = 1; }
  optional other.Thing thing = 11;
  reserved 20, 30 to 39; reserved "gone";
  message Nested { enum Kind { NONE = 0; } optional Kind kind = 1; }
}
extend google.protobuf.OneofOptions { optional int32 on_oneof = 50001; }
service Calls {
  option deprecated = true;
  rpc Call(stream Note) returns (stream Main) { option idempotency_level = IDEMPOTENT; }
  rpc Other(Note) returns (Main);
}
"""
OTHER = 'syntax = "proto3"; package other; message Thing { optional int32 n = 1; repeated int32 m = 2; }'
EDITION = """edition = "2023";
package e;
option features.field_presence = IMPLICIT;
message M {
  int32 a = 1 [features.field_presence = EXPLICIT];
  M inner = 2 [features.message_encoding = DELIMITED];
  reserved b;
}
"""


def well_known() -> list[str]:
    folder = Path(grpc_tools.__file__).parent / "_proto" / "google" / "protobuf"
    common = Path(color_pb2.__file__).parent
    return [path.read_text() for each in (folder, common) for path in sorted(each.glob("*.proto"))]


@pytest.mark.parametrize("text", [EVERYTHING, EDITION, OTHER, *well_known()])
def test_the_canonical_text_says_what_the_file_says(text: str) -> None:
    references = {"other.proto": OTHER}
    first = proto_schema.parse(text, references)
    second = proto_schema.parse(first.text, references)
    assert second.text == first.text
    assert second.model.file == first.model.file
    serialized = proto_schema.render(first, "serialized")
    from_descriptor = proto_schema.parse(serialized, references)
    assert from_descriptor.model.file == first.model.file
    bare = "\n".join(line for line in first.text.split("\n") if not line.lstrip().startswith("//"))
    assert from_descriptor.text.split() == bare.split()


def test_comments_stay() -> None:
    text = proto_schema.parse(EVERYTHING, {"other.proto": OTHER}).text
    for comment in ("// The license.", "// What is", "// said"):
        assert comment in text


@pytest.mark.parametrize("module", [timestamp_pb2, struct_pb2, empty_pb2])
def test_a_descriptor_as_pythons_clients_send_it_is_the_text_that_javas_send(module: object) -> None:
    sent = base64.b64encode(module.DESCRIPTOR.serialized_pb).decode()  # type: ignore[attr-defined]
    parsed = proto_schema.parse(sent, {})
    assert parsed.text.startswith('syntax = "proto3";\npackage google.protobuf;')
    returned = FileDescriptorProto.FromString(base64.b64decode(proto_schema.render(parsed, "serialized")))
    returned.name = "again.proto"
    assert descriptor_pool.DescriptorPool().AddSerializedFile(returned.SerializeToString()) is not None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('syntax = "proto3"; message M { Nothing a = 1; }', '"Nothing" is not defined'),
        ('syntax = "proto3"; import "not/there.proto";', "not/there.proto: File not found"),
        ('syntax = "proto3"; import "/etc/passwd";', "/etc/passwd"),
        ("message", "not a Protobuf schema"),
        ("AAAA", "neither the text of a file nor a descriptor"),
        ("message M { " + "message N { " * 200 + "}" * 201, "nest"),
    ],
)
def test_a_text_that_is_no_schema_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidSchema, match=reason) as refused:
        proto_schema.parse(text, {})
    assert "/tmp" not in str(refused.value)


@pytest.mark.parametrize("name", ["../x.proto", "/x.proto", "a/../../x.proto", "", "x\0y", "a//b.proto"])
def test_a_reference_is_a_file_below_the_schema(name: str) -> None:
    with pytest.raises(InvalidSchema, match="no name of a file"):
        proto_schema.parse(OTHER, {name: OTHER})


def kinds(reader: str, writer: str, head: str = 'syntax = "proto3";') -> set[str]:
    new, old = (proto_schema.parse(f"{head} {text}", {}) for text in (reader, writer))
    return {each.kind for each in proto_schema.unreadable(new, old)}


FITTING = {
    "the same": ("message M { int32 a = 1; }", "message M { int32 a = 1; }"),
    "a field more": ("message M { int32 a = 1; int32 b = 2; }", "message M { int32 a = 1; }"),
    "a field less": ("message M { int32 a = 1; }", "message M { int32 a = 1; int32 b = 2; }"),
    "a field's name": ("message M { int32 b = 1; }", "message M { int32 a = 1; }"),
    "varints": (
        "message M { uint64 a = 1; bool b = 2; E c = 3; } enum E { Z = 0; }",
        "message M { int32 a = 1; int64 b = 2; uint32 c = 3; }",
    ),
    "text and bytes": ("message M { bytes a = 1; }", "message M { string a = 1; }"),
    "strings": ("message M { repeated string a = 1; }", "message M { string a = 1; }"),
    "a message more": ("message M {} message N {}", "message M {}"),
    "messages in another order": ("message N {} message M {}", "message M {} message N {}"),
    "enums": ("enum E { A = 0; C = 2; }", "enum E { X = 0; B = 1; } enum F { Y = 0; }"),
    "a oneof more": ("message M { oneof o { int32 a = 1; int32 b = 2; } }", "message M { int32 a = 1; }"),
    "a field more in a oneof": (
        "message M { oneof o { int32 a = 1; int32 b = 2; } }",
        "message M { oneof o { int32 a = 1; } }",
    ),
    "out of a oneof": (
        "message M { int32 a = 1; int32 b = 2; }",
        "message M { oneof o { int32 a = 1; int32 b = 2; } }",
    ),
    "a oneof gone": ("message M { }", "message M { oneof o { int32 a = 1; } }"),
    "recursion": (
        "message M { M m = 1; N n = 2; } message N { repeated M m = 1; int32 a = 2; }",
        "message M { M m = 1; N n = 2; } message N { repeated M m = 1; }",
    ),
    "a map": ("message M { map<string, int64> a = 1; }", "message M { map<string, int32> a = 1; }"),
}
REFUSED = {
    "package": ("package b; message M {}", "package a; message M {}", {"PACKAGE_CHANGED"}),
    "a message gone": ("message M {}", "message M {} message N {}", {"MESSAGE_REMOVED"}),
    "a nested message gone": ("message M {}", "message M { message N {} }", {"MESSAGE_REMOVED"}),
    "another kind": (
        "message M { N a = 1; } message N {}",
        "message M { int32 a = 1; } message N {}",
        {"FIELD_KIND_CHANGED"},
    ),
    "a map": (
        "message M { map<string, int32> a = 1; }",
        "message M { repeated int32 a = 1; }",
        {"FIELD_KIND_CHANGED"},
    ),
    "another scalar": (
        "message M { sint32 a = 1; }",
        "message M { int32 a = 1; }",
        {"FIELD_SCALAR_KIND_CHANGED"},
    ),
    "a map's values": (
        "message M { map<string, string> a = 1; }",
        "message M { map<string, int32> a = 1; }",
        {"FIELD_SCALAR_KIND_CHANGED"},
    ),
    "a number repeated": (
        "message M { repeated int32 a = 1; }",
        "message M { int32 a = 1; }",
        {"FIELD_NUMERIC_LABEL_CHANGED"},
    ),
    "another message": (
        "message M { O a = 1; } message N {} message O {}",
        "message M { N a = 1; } message N {} message O {}",
        {"FIELD_NAMED_TYPE_CHANGED"},
    ),
    "out of the oneof's fields": (
        "message M { oneof o { int32 a = 1; } }",
        "message M { oneof o { int32 a = 1; int32 b = 2; } }",
        {"ONEOF_FIELD_REMOVED"},
    ),
    "two into a oneof": (
        "message M { oneof o { int32 a = 1; int32 b = 2; } }",
        "message M { int32 a = 1; int32 b = 2; }",
        {"MULTIPLE_FIELDS_MOVED_TO_ONEOF"},
    ),
    "into a oneof": (
        "message M { oneof o { int32 a = 1; int32 b = 2; } }",
        "message M { oneof o { int32 a = 1; } int32 b = 2; }",
        {"FIELD_MOVED_TO_EXISTING_ONEOF"},
    ),
}


@pytest.mark.parametrize("case", FITTING)
def test_a_compatible_schema_may_follow(case: str) -> None:
    reader, writer = FITTING[case]
    assert kinds(reader, writer) == set()


@pytest.mark.parametrize("case", REFUSED)
def test_an_incompatible_schema_may_not_follow(case: str) -> None:
    reader, writer, expected = REFUSED[case]
    assert kinds(reader, writer) == expected


def test_required_fields_neither_come_nor_go() -> None:
    proto2, optional = 'syntax = "proto2";', "message M { optional int32 a = 1; }"
    required = "message M { optional int32 a = 1; required int32 b = 2; }"
    assert kinds(required, optional, proto2) == {"REQUIRED_FIELD_ADDED"}
    assert kinds(optional, required, proto2) == {"REQUIRED_FIELD_REMOVED"}


def test_a_change_in_what_is_imported_is_found_where_it_is_used() -> None:
    text = 'syntax = "proto3"; import "other.proto"; message M { other.Thing thing = 1; }'
    old = proto_schema.parse(text, {"other.proto": OTHER})
    new = proto_schema.parse(text, {"other.proto": OTHER.replace("optional int32", "optional string")})
    assert {each.kind for each in proto_schema.unreadable(new, old)} == {
        "FIELD_SCALAR_KIND_CHANGED",
        "FIELD_NAMED_TYPE_CHANGED",
    }


def test_default_values_keep_their_meaning() -> None:
    main = proto_schema.parse(EVERYTHING, {"other.proto": OTHER}).model.file.message_type[1]
    defaults = {each.name: each.default_value for each in main.field if each.HasField("default_value")}
    assert math.isnan(float(defaults.pop("limit")))
    assert defaults == {"ratio": "-1.5", "blob": '\\000\\377\\"', "label": 'a"\né', "color": "CRIMSON"}
