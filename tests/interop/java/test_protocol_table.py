"""The message table and the error codes say what the kafka-clients jar of Kafka 3.9 says."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from typing import Any

import pytest

from ottla.protocol.api import API_TABLE, ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.frames import REQUESTS, RESPONSES, request_header_version, response_header_version
from ottla.protocol.types import (
    HIGHEST_VERSION,
    NEVER,
    UNSET,
    ZERO_UUID,
    FieldType,
    Message,
    Struct,
    Versions,
    default_of,
    fields_of,
)
from tests.oracles import JAVA, SLF4J, java, kafka_clients_jar, maven_jar
from tests.protocol_samples import MESSAGES, OWN_FIELDS, case_id


@pytest.fixture(scope="module")
def definitions() -> dict[str, Any]:
    """The jar's message definitions by name."""
    found = {}
    with zipfile.ZipFile(kafka_clients_jar()) as jar:
        for name in jar.namelist():
            if name.startswith("common/message/") and name.endswith(".json"):
                text = jar.read(name).decode()
                definition = json.loads(re.sub(r"^\s*//.*$|(?<=[,\[{ ])//.*$", "", text, flags=re.MULTILINE))
                found[definition["name"]] = definition
    return found


@pytest.mark.parametrize("cls", MESSAGES, ids=case_id)
def test_every_field_is_as_in_kafkas_definitions(cls: type[Message], definitions: dict[str, Any]) -> None:
    definition = definitions[cls.__name__]
    valid = Versions.parse(definition["validVersions"])
    highest = valid.highest
    assert not definition.get("latestVersionUnstable", False)
    assert (cls.min_version, cls.max_version) == (valid.lowest, highest)
    assert cls.api_key == definition.get("apiKey", -1)
    flexible = Versions.parse(definition["flexibleVersions"]).lowest
    assert cls.flexible_from == (flexible if flexible <= highest else NEVER)
    common = {struct["name"]: struct["fields"] for struct in definition.get("commonStructs", [])}
    compare(cls, cls, definition["fields"], common)


def test_fields_of_our_own_are_tagged_beyond_kafkas() -> None:
    own = {
        (cls.__name__, item.name): item
        for cls in MESSAGES
        for item in fields_of(cls)
        if (cls.__name__, item.name) in OWN_FIELDS
    }
    assert own.keys() == OWN_FIELDS
    assert all(item.tag is not None and item.tag >= 10_000 for item in own.values())


def compare(message: type[Message], cls: type[Struct], definition: list[dict[str, Any]], common: Any) -> None:
    """Fields in the same order, each the same in all versions that we have."""
    highest = message.max_version
    ours = [item for item in fields_of(cls) if (cls.__name__, item.name) not in OWN_FIELDS]
    theirs = [each for each in definition if Versions.parse(each["versions"]).lowest <= highest]
    assert [item.name for item in ours] == [snake_case(each["name"]) for each in theirs]
    for item, each in zip(ours, theirs, strict=True):
        where = f"{cls.__qualname__}.{item.name}"
        assert wire_type(item.type) == each["type"], where
        assert cut(item.versions, highest) == cut(Versions.parse(each["versions"]), highest), where
        carried = set(cut(item.versions, highest))
        nullable = carried & set(cut(Versions.parse(each.get("nullableVersions", "none")), highest))
        assert carried & set(cut(item.nullable, highest)) == nullable, where
        assert item.tag == each.get("tag"), where
        if item.tag is not None:
            assert each["taggedVersions"] == each["versions"], where
        assert item.ignorable == bool(each.get("ignorable", False)), where
        assert item.flexible == (each.get("flexibleVersions") != "none"), where
        assert item.default == default(each, item.type), where
        struct = item.type.struct or (item.type.element.struct if item.type.element else None)
        if struct is not None:
            compare(message, struct, each.get("fields") or common[struct.__name__], common)


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def cut(versions: Versions, highest: int) -> list[int]:
    assert versions.highest <= HIGHEST_VERSION
    return [version for version in range(highest + 1) if version in versions]


def wire_type(kind: FieldType) -> str:
    if kind.element is not None:
        return f"[]{wire_type(kind.element)}"
    return kind.struct.__name__ if kind.struct is not None else kind.wire


def default(definition: dict[str, Any], kind: FieldType) -> Any:
    """What the definitions mean by their textual defaults, and by leaving them out."""
    text = definition.get("default", UNSET)
    if text == "null":
        return None
    if kind.wire == "array":
        return []
    if kind.wire == "struct":
        assert kind.struct is not None
        return default_of(kind.struct)
    if kind.wire == "bool":
        return str(text).lower() == "true"
    if kind.wire == "string":
        return "" if text is UNSET else text
    if kind.wire in ("bytes", "records", "uuid"):
        assert text is UNSET
        return {"bytes": b"", "records": None, "uuid": ZERO_UUID}[kind.wire]
    if kind.wire == "float64":
        return 0.0 if text is UNSET else float(text)
    return 0 if text is UNSET else int(str(text), 0)


@pytest.fixture(scope="module")
def enums(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """The jar's error codes and ZooKeeper-mode APIs, printed by a small Java program."""
    classpath = f"{kafka_clients_jar()}:{maven_jar(SLF4J)}"
    source = JAVA / "PrintEnums.java"
    command = [java(), "-cp", classpath, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return [line.split("\t") for line in done.stdout.splitlines()]


def test_error_codes_and_which_are_retriable(enums: list[list[str]]) -> None:
    theirs = {(int(row[1]), row[2], row[3] == "true") for row in enums if row[0] == "error"}
    assert {(int(code), code.name, code.retriable) for code in ErrorCode} == theirs


def test_api_keys_and_versions(enums: list[list[str]], definitions: dict[str, Any]) -> None:
    theirs = {
        (int(row[1]), row[2], int(row[3]), int(row[4]), row[5] == "true") for row in enums if row[0] == "api"
    }
    ours = {
        (int(key), key.name, row.min_version, row.max_version, row.cluster_action)
        for key, row in API_TABLE.items()
    }
    assert ours == theirs
    assert set(API_TABLE) == set(ApiKey)
    assert len(API_TABLE) == 62
    flexible = {
        each["apiKey"]: Versions.parse(each["flexibleVersions"]).lowest
        for each in definitions.values()
        if each["type"] == "request"
    }
    for key, row in API_TABLE.items():
        expected = flexible[key] if flexible[key] <= row.max_version else NEVER
        assert row.flexible_from == expected, key.name


def test_header_versions(enums: list[list[str]]) -> None:
    theirs = {tuple(map(int, row[1:])) for row in enums if row[0] == "header"}
    ours = {
        (int(key), version, request_header_version(key, version), response_header_version(key, version))
        for key, row in API_TABLE.items()
        for version in range(row.min_version, row.max_version + 1)
    }
    assert ours == theirs


def test_messages_cover_every_api_and_its_whole_range() -> None:
    assert set(REQUESTS) == set(RESPONSES) == set(API_TABLE)
    for cls in MESSAGES:
        if cls.api_key >= 0:
            row = API_TABLE[ApiKey(cls.api_key)]
            assert (cls.min_version, cls.max_version) == (row.min_version, row.max_version), cls.__name__
            assert cls.flexible_from == row.flexible_from, cls.__name__
