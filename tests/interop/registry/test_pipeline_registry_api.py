"""The registry's contexts, aliases, GUIDs, metadata and configuration, by Confluent's client for Python."""

from __future__ import annotations

import hashlib
import json
import uuid
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Metadata, MetadataProperties, Schema, SchemaReference
from confluent_kafka.schema_registry.error import SchemaRegistryError

from tests.judges.one_broker import OneBroker
from tests.judges.registries import Registry

NAMES = map("api{}".format, count())


def record(name: str, *fields: str) -> str:
    return json.dumps(
        {"type": "record", "name": name, "fields": [{"name": each, "type": "int"} for each in fields]}
    )


def test_contexts_have_ids_and_subjects_of_their_own(broker: OneBroker, tmp_path: Path) -> None:
    with Registry(broker.bootstrap, tmp_path, f"_schemas_{next(NAMES)}") as registry:
        client = registry.client()
        first = client.register_schema("s", Schema(record("A")))
        assert client.register_schema(":.c:s", Schema(record("B"))) == first == 1
        assert registry.ask("POST", "/contexts/c/subjects/s/versions", {"schema": record("B", "x")})[0] == 409
        assert registry.ask("POST", "/contexts/.c/subjects/t/versions", {"schema": '"int"'})[1]["id"] == 2
        assert registry.ask("GET", "/contexts")[1] == [".", ".c"]
        assert registry.ask("GET", "/subjects")[1] == [":.c:s", ":.c:t", "s"]
        assert registry.ask("GET", "/contexts/.c/subjects")[1] == [":.c:s", ":.c:t"]
        assert registry.ask("GET", "/subjects?subjectPrefix=:.c:t")[1] == [":.c:t"]
        assert "B" in registry.ask("GET", "/contexts/.c/schemas/ids/1")[1]["schema"]
        assert "B" in registry.ask("GET", "/schemas/ids/1?subject=:.c:s")[1]["schema"]
        assert "A" in registry.ask("GET", "/schemas/ids/1")[1]["schema"]
        assert registry.code("GET", "/schemas/ids/2") == 40403
        assert registry.ask("PUT", "/contexts/.c/config", {"compatibility": "NONE"})[0] == 200
        assert client.register_schema(":.c:s", Schema(record("B", "x"))) == 3
        with pytest.raises(SchemaRegistryError):
            client.register_schema("s", Schema(record("A", "x")))
        leg = json.dumps({"type": "record", "name": "L", "fields": [{"name": "b", "type": "B"}]})
        assert client.register_schema(":.c:leg", Schema(leg, "AVRO", [SchemaReference("B", "s", 1)])) == 4
        client.delete_version(":.c:leg", 1)
        client.delete_version(":.c:leg", 1, permanent=True)
        registry.kill()
        registry.start()
        assert client.register_schema(":.c:new", Schema('"long"')) == 5, "an id never comes again"


def test_an_alias_resolves_to_its_subject(registry: Registry) -> None:
    client, subject = registry.client(), next(NAMES)
    client.register_schema(subject, Schema(record("A")))
    assert registry.ask("PUT", f"/config/{subject}-alias", {"alias": subject})[1] == {"alias": subject}
    assert client.get_latest_version(f"{subject}-alias").subject == subject
    assert registry.ask("GET", f"/config/{subject}-alias")[1] == {"alias": subject}


def test_guids_identify_schemas_in_all_contexts(registry: Registry) -> None:
    subject = next(NAMES)
    body = {"schema": '"float"'}
    number = registry.ask("POST", f"/subjects/{subject}/versions", body)[1]["id"]
    registry.ask("POST", f"/contexts/.{subject}/subjects/s/versions", body)
    guid = registry.ask("GET", f"/subjects/{subject}/versions/1")[1]["guid"]
    digest = hashlib.md5(b'"float"', usedforsecurity=False).digest()
    assert guid == str(uuid.UUID(bytes=digest))
    assert registry.ask("GET", f"/schemas/guids/{guid}")[1]["schema"] == '"float"'
    assert registry.ask("GET", f"/schemas/guids/{guid}/ids")[1] == [
        {"context": ".", "id": number},
        {"context": f".{subject}", "id": 1},
    ]
    assert registry.code("GET", "/schemas/guids/00000000-0000-0000-0000-000000000000") == 40403


def test_the_latest_version_with_metadata_is_found(registry: Registry) -> None:
    client, subject = registry.client(), next(NAMES)
    for stage in ("old", "new"):
        # A plain dict for `properties` is not hashable, and the client wants a key for its cache.
        metadata = Metadata(None, MetadataProperties({"stage": stage, "team": "x"}), None)
        client.register_schema(subject, Schema('"int"', metadata=metadata))
    assert client.get_latest_with_metadata(subject, {"stage": "old"}).version == 1
    assert client.get_latest_with_metadata(subject, {"team": "x"}).version == 2
    with pytest.raises(SchemaRegistryError) as missing:
        client.get_latest_with_metadata(subject, {"stage": "no"})
    assert missing.value.error_code == 40403


def test_metadata_are_taken_from_the_configuration_and_the_previous_version(registry: Registry) -> None:
    subject = next(NAMES)
    versions = f"/subjects/{subject}/versions"

    def registered(fields: list[str], **more: Any) -> Any:
        assert registry.ask("POST", versions, {"schema": record("A", *fields), **more})[0] == 200
        return registry.ask("GET", f"{versions}/latest")[1].get("metadata")

    settings = {
        "compatibility": "NONE",
        "defaultMetadata": {"properties": {"owner": "nobody", "level": "1"}},
        "overrideMetadata": {"properties": {"level": "9"}},
    }
    assert registry.ask("PUT", f"/config/{subject}", settings)[0] == 200
    own = {"properties": {"owner": "me"}}
    assert registered(["a"], metadata=own) == {"properties": {"owner": "me", "level": "9"}}
    assert registered(["b"]) == {"properties": {"owner": "me", "level": "9"}}
    shown = registry.ask("GET", f"/config/{subject}")[1]
    assert shown["overrideMetadata"] == {"properties": {"level": "9"}}


def test_compatibility_groups_and_the_lenient_policy_apply(registry: Registry) -> None:
    subject = next(NAMES)
    versions = f"/subjects/{subject}/versions"

    def status(fields: dict[str, Any], major: str) -> int:
        schema = json.dumps({"type": "object", "properties": fields})
        metadata = {"properties": {"major": major}}
        return registry.ask("POST", versions, {"schemaType": "JSON", "schema": schema, "metadata": metadata})[
            0
        ]

    assert status({"a": {"type": "string"}}, "1") == 200
    assert status({"a": {"type": "integer"}}, "2") == 409
    assert registry.ask("PUT", f"/config/{subject}", {"compatibilityGroup": "major"})[0] == 200
    assert status({"a": {"type": "integer"}}, "2") == 200
    more = {"a": {"type": "integer"}, "b": {"type": "string"}}
    assert status(more, "2") == 409, "an open content model could have had b"
    assert registry.ask("PUT", f"/config/{subject}", {"compatibilityPolicy": "lenient"})[0] == 200
    assert status(more, "2") == 200


def test_the_server_identifies_itself(registry: Registry) -> None:
    assert registry.ask("GET", "/v1/metadata/version")[1]["version"]
    assert registry.ask("GET", "/v1/metadata/id")[1]["scope"]["clusters"]
