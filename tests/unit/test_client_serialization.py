"""Serializers: conversions of values, refused values, and schema look-ups outside the event loop."""

from __future__ import annotations

import asyncio
import io
import json
import struct
import subprocess
import sys
import threading
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client import serialization as s
from ottla.client.avro import (
    AvroDeserializer,
    AvroSerializer,
    Registry,
    record_name,
    topic_record_name,
)
from ottla.client.errors import ConfigError, SerializationError
from ottla.client.registry import NotRegistered, Reference, Schema, Version

ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}],
}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


class Shelf(Registry):
    """A registry in memory that records the thread and the number of requests."""

    def __init__(self) -> None:
        self.schemas: dict[int, Schema] = {}
        self.subjects: dict[str, int] = {}
        self.asked: list[str] = []
        self.threads: set[int] = set()

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        self.threads.add(threading.get_ident())

    def schema(self, schema_id: int) -> Schema:
        self._ask(f"schema {schema_id}")
        if schema_id not in self.schemas:
            raise NotRegistered(f"schema {schema_id}", 404, 40403)
        return self.schemas[schema_id]

    def register(self, subject: str, schema: Schema, *, normalize: bool = False) -> int:
        self._ask(f"register {subject}")
        for number, known in self.schemas.items():
            if known == schema:
                self.subjects[subject] = number
                return number
        number = len(self.schemas) + 1
        self.schemas[number] = schema
        self.subjects[subject] = number
        return number

    def lookup(self, subject: str, schema: Schema) -> Version:
        self._ask(f"lookup {subject}")
        number = self.subjects.get(subject, 0)
        if self.schemas.get(number) != schema:
            raise NotRegistered(f"subject {subject}", 404, 40403)
        return Version(subject, 1, number, schema)

    def latest(self, subject: str) -> Version:
        self._ask(f"latest {subject}")
        number = self.subjects[subject]
        return Version(subject, 1, number, self.schemas[number])

    def referenced(self, schema: Schema) -> dict[str, Schema]:
        return {each.name: self.schemas[self.subjects[each.subject]] for each in schema.references}


@given(json_values)
def test_json_comes_back_as_it_was(value: Any) -> None:
    data = s.JsonSerializer().serialize("t", value)
    assert s.JsonDeserializer().deserialize("t", data) == value
    assert data is None or json.loads(data) == value


@given(st.text() | st.none(), st.sampled_from(["utf-8", "utf-16"]))
def test_text_comes_back_as_it_was(value: str | None, encoding: str) -> None:
    data = s.TextSerializer(encoding).serialize("t", value)
    assert s.TextDeserializer(encoding).deserialize("t", data) == value
    assert data == (None if value is None else value.encode(encoding))


@pytest.mark.parametrize(
    ("call", "value", "problem"),
    [
        (s.BytesSerializer().serialize, "text", "orders: bytes expected, not str: 'text'"),
        (s.TextSerializer("ascii").serialize, "ä", "orders: 'ä' as ascii: "),
        (s.TextSerializer().serialize, 7, "orders: 7 as utf-8: "),
        (s.TextDeserializer().deserialize, b"\xff", "orders: 'utf-8' codec"),
        (s.JsonSerializer().serialize, {1, 2}, "orders: cannot be encoded as JSON: {1, 2}: "),
        (s.JsonSerializer().serialize, float("nan"), "orders: cannot be encoded as JSON: nan: "),
        (s.JsonDeserializer().deserialize, b"{", "orders: not JSON: "),
        (AvroDeserializer(Shelf()).deserialize, b"\x01abcdef", "orders: not in a registry's framing: "),
        (AvroDeserializer(Shelf()).deserialize, b"\x00", "orders: not in a registry's framing: "),
    ],
)
def test_an_unserializable_value_is_refused_with_topic_and_value(call: Any, value: Any, problem: str) -> None:
    with pytest.raises(SerializationError) as raised:
        call("orders", value)
    assert str(raised.value).startswith(problem)


def test_a_function_of_the_value_is_a_serializer() -> None:
    function, own = s.serializing(str.encode), s.serializing(s.TextSerializer())
    assert function is not None
    assert own is not None
    assert function("t", "a") == own("t", "a") == b"a"
    assert s.serializing(None) is None
    with pytest.raises(ConfigError, match="serializer: 7; allowed: a function, or an object with serialize"):
        s.serializing(7)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="encoding: klingon; allowed: "):
        s.TextSerializer("klingon")


def test_avro_has_the_registry_framing_and_one_lookup_outside_the_loop() -> None:
    shelf = Shelf()
    call, back = AvroSerializer(shelf, ORDER).serialize, AvroDeserializer(shelf).deserialize

    async def in_a_loop() -> None:
        with pytest.raises(s.SchemaNeeded) as needed:
            call("orders", {"id": 1, "note": None})
        data = await s.call_later(call, "orders", {"id": 1, "note": None}, needed.value)
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(ORDER), {"id": 1, "note": None})
        assert data == struct.pack(">bI", 0, 1) + out.getvalue()
        assert call("orders", {"id": 2, "note": "x"}) is not None
        with pytest.raises(s.SchemaNeeded) as needed_too:
            back("orders", data)
        read = await s.call_later(back, "orders", data, needed_too.value)
        assert read == back("orders", data) == {"id": 1, "note": None}

    asyncio.run(in_a_loop())
    assert shelf.asked == ["register orders-value", "schema 1"]
    assert threading.get_ident() not in shelf.threads
    assert call("orders", None) is None
    assert back("orders", None) is None


def test_a_value_that_does_not_fit_its_schema_is_refused() -> None:
    call = AvroSerializer(Shelf(), ORDER).serialize
    with pytest.raises(SerializationError, match=r"orders-value: \{'id': 'x'\} does not fit the schema"):
        s.call_blocking(call, "orders", {"id": "x"})


def test_a_subject_follows_its_strategy_and_a_record_starts_with_its_schema_id() -> None:
    shelf = Shelf()
    order = {"id": 1, "note": None}
    by_record = AvroSerializer(shelf, ORDER, subject_name=record_name)
    by_both = AvroSerializer(shelf, ORDER, subject_name=topic_record_name)
    key = AvroSerializer(shelf, '"string"', is_key=True)
    s.call_blocking(by_record.serialize, "orders", order)
    s.call_blocking(by_both.serialize, "orders", order)
    s.call_blocking(key.serialize, "orders", "k")
    assert shelf.asked == ["register shop.Order", "register orders-shop.Order", "register orders-key"]
    strict = AvroSerializer(shelf, ORDER, auto_register=False)
    with pytest.raises(NotRegistered):
        s.call_blocking(strict.serialize, "orders", order)
    shelf.register("orders-value", Schema(json.dumps(ORDER)))
    assert s.call_blocking(strict.serialize, "orders", order)[:5] == b"\0\0\0\0\1"


def test_values_are_written_with_the_latest_schema_and_read_with_the_readers_schema() -> None:
    shelf = Shelf()
    newer = {**ORDER, "fields": [*ORDER["fields"], {"name": "tip", "type": "int", "default": 0}]}
    shelf.register("orders-value", Schema(json.dumps(newer)))
    writer = AvroSerializer(shelf, ORDER, use_latest=True)
    data = s.call_blocking(writer.serialize, "orders", {"id": 1, "note": None, "tip": 5})
    assert s.call_blocking(AvroDeserializer(shelf).deserialize, "orders", data)["tip"] == 5
    own = AvroDeserializer(shelf, ORDER)
    assert s.call_blocking(own.deserialize, "orders", data) == {"id": 1, "note": None}


def test_schemas_may_refer_to_others() -> None:
    shelf = Shelf()
    code = '{"type": "record", "name": "geo.Code", "fields": [{"name": "code", "type": "string"}]}'
    shelf.register("geo.Code", Schema(code))
    flight = '{"type": "record", "name": "Flight", "fields": [{"name": "to", "type": "geo.Code"}]}'
    number = shelf.register(
        "flights-value", Schema(flight, references=(Reference("geo.Code", "geo.Code", 1),))
    )
    data = struct.pack(">bI", 0, number) + b"\x06LAX"
    read = s.call_blocking(AvroDeserializer(shelf).deserialize, "flights", data)
    assert read == {"to": {"code": "LAX"}}


def test_corrupt_bytes_and_foreign_schemas_are_errors_with_topic_and_id() -> None:
    shelf = Shelf()
    shelf.register("orders-value", Schema(json.dumps(ORDER)))
    shelf.register("other", Schema("{}", type="JSON"))
    back = AvroDeserializer(shelf).deserialize
    with pytest.raises(SerializationError, match="orders: not Avro of schema 1: "):
        s.call_blocking(back, "orders", b"\0\0\0\0\1\x02")
    with pytest.raises(SerializationError, match="schema 2 is of type JSON, not AVRO"):
        s.call_blocking(back, "orders", b"\0\0\0\0\2\x02")
    with pytest.raises(NotRegistered):
        s.call_blocking(back, "orders", b"\0\0\0\0\3\x02")
    with pytest.raises(ConfigError, match="allowed: Avro as JSON: nothing"):
        AvroSerializer(shelf, "nothing")
    with pytest.raises(ConfigError, match="registry url"):
        AvroDeserializer("registry:8081")


def test_only_avro_imports_fastavro_and_urllib() -> None:
    script = (
        "import sys, ottla.client.serialization\n"
        "assert not {'fastavro', 'urllib.request'} & set(sys.modules)\n"
        "import ottla.client.avro\n"
        "assert 'fastavro' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
