"""Protobuf schemas in the registry, by Confluent's serializers for Python."""

from __future__ import annotations

import base64
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from tests.judges.registries import Registry, message_class

NAMES = map("proto{}".format, count())
AIRPORT = 'syntax = "proto3";\npackage net;\nmessage Airport { string code = 1; }\n'
FLIGHT = """syntax = "proto3";
package air;
import "google/protobuf/timestamp.proto";
import "net/airport.proto";
// A leg.
message Flight {
  string carrier = 1;
  net.Airport to = 2;
  google.protobuf.Timestamp at = 3;
  map<string, int32> counts = 4;
  message Seat { int32 row = 1; }
  repeated Seat seats = 5;
}
"""


@pytest.fixture
def flight(tmp_path: Path) -> Any:
    """The class of air.Flight."""
    return message_class(tmp_path, {"net/airport.proto": AIRPORT, "flight.proto": FLIGHT}, "air.Flight")


@pytest.mark.parametrize("known_types", [True, False])
def test_protobuf_works_with_confluents_serializers(
    registry: Registry, flight: Any, known_types: bool
) -> None:
    client, topic = registry.client(), next(NAMES)
    context = SerializationContext(topic, MessageField.VALUE)
    value = flight(carrier="UA", counts={"a": 1}, seats=[{"row": 7}], to={"code": "LAX"})
    value.at.FromSeconds(1_700_000_000)
    serialize = ProtobufSerializer(flight, client, {"skip.known.types": known_types})
    data = serialize(value, context)
    read = ProtobufDeserializer(flight, {}, registry.client())(data, context)
    assert read.SerializeToString() == value.SerializeToString()
    latest = client.get_latest_version(f"{topic}-value")
    assert {each.name for each in latest.schema.references or ()} >= {"net/airport.proto"}
    text = registry.ask("GET", f"/subjects/{topic}-value/versions/latest")[1]
    assert text["schemaType"] == "PROTOBUF"
    assert "message Flight {" in text["schema"]
    again = registry.ask("POST", f"/subjects/{topic}-value", {**text, "schema": text["schema"]})
    assert again[1]["id"] == latest.schema_id, "what is handed out is what is known"


def test_text_and_descriptor_are_one_schema(registry: Registry, flight: Any) -> None:
    client, subject = registry.client(), next(NAMES)
    airport = client.register_schema("net/airport.proto", Schema(AIRPORT, "PROTOBUF"))
    references = [SchemaReference("net/airport.proto", "net/airport.proto", 1)]
    plain = FLIGHT.replace("// A leg.\n", "")
    by_text = client.register_schema(subject, Schema(plain, "PROTOBUF", references))
    descriptor = base64.b64encode(flight.DESCRIPTOR.file.serialized_pb).decode()
    by_descriptor = client.register_schema(subject, Schema(descriptor, "PROTOBUF", references))
    assert by_text == by_descriptor != airport
    found = registry.ask("GET", f"/schemas/ids/{by_text}?format=serialized")[1]["schema"]
    file = FileDescriptorProto.FromString(base64.b64decode(found))
    assert [each.name for each in file.message_type] == ["Flight"]
    assert client.get_referenced_by("net/airport.proto", 1)[-1] >= by_text


def test_incompatible_schemas_get_409_with_confluents_error_type(registry: Registry) -> None:
    client, subject = registry.client(), next(NAMES)
    client.register_schema(subject, Schema(AIRPORT, "PROTOBUF"))
    client.register_schema(subject, Schema(AIRPORT.replace("}", "int32 a = 2; }"), "PROTOBUF"))
    changed = Schema(AIRPORT.replace("string", "int32"), "PROTOBUF")
    assert not client.test_compatibility(subject, changed)
    with pytest.raises(SchemaRegistryError, match="FIELD_SCALAR_KIND_CHANGED") as refused:
        client.register_schema(subject, changed)
    assert refused.value.http_status_code == 409
    with pytest.raises(SchemaRegistryError, match="not a Protobuf schema") as invalid:
        client.register_schema(subject, Schema("message {", "PROTOBUF"))
    assert invalid.value.error_code == 42201
