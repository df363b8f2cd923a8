"""The schema registry on a real broker: confluent-kafka's client and serializers, kills, and two at a
time."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from confluent_kafka.schema_registry import Schema, SchemaReference
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from ottla.client import avro
from ottla.client.registry import NotRegistered, RegistryClient
from ottla.client.registry import Schema as OwnSchema
from ottla.client.serialization import call_blocking
from ottla_pipeline.registry import log
from ottla_pipeline.registry.command import main as command
from tests.judges.one_broker import OneBroker, one_broker
from tests.judges.registries import Registry

NAMES = map("s{}".format, count())  # several threads ask: a generator would refuse two at once


def record(*fields: str, name: str = "Flight") -> str:
    """A field with a question mark has a default."""
    described: list[dict[str, Any]] = [
        {"name": each.rstrip("?"), "type": "string", **({"default": ""} if each.endswith("?") else {})}
        for each in fields
    ]
    return json.dumps({"type": "record", "name": name, "fields": described})


def test_confluents_client_works_with_all_its_methods(registry: Registry) -> None:
    client, subject = registry.client(), next(NAMES)
    first, second = Schema(record("a")), Schema(record("a", "b?"))
    schema_id = client.register_schema(subject, first)
    assert client.register_schema(f"{subject}/other", first) == schema_id
    assert client.register_schema(subject, second) > schema_id
    client.clear_caches()
    assert json.loads(str(client.get_schema(schema_id).schema_str))["name"] == "Flight"
    assert client.lookup_schema(subject, first).version == 1
    assert client.get_latest_version(subject).version == 2
    assert client.get_versions(subject) == [1, 2]
    assert {each.subject for each in client.get_schema_versions(schema_id)} == {subject, f"{subject}/other"}
    assert set(client.get_subjects()) >= {subject, f"{subject}/other"}
    assert client.test_compatibility(subject, Schema(record("a", "b")))
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema(subject, Schema(record("a", "c")))
    assert (refused.value.http_status_code, refused.value.error_code) == (409, 409)
    assert client.set_compatibility(subject, "NONE") == {"compatibility": "NONE"}
    assert client.get_compatibility(subject) == "NONE"
    assert client.register_schema(subject, Schema(record("a", "c"))) > schema_id
    assert client.delete_version(subject, 3) == 3
    assert client.delete_version(subject, 3, permanent=True) == 3
    assert client.delete_subject(subject) == [1, 2]
    assert client.delete_subject(subject, permanent=True) == [1, 2]
    assert subject not in client.get_subjects()
    assert client.get_schema_types() == ["JSON", "PROTOBUF", "AVRO"]


def test_avro_works_with_confluents_serializers_while_its_schema_evolves(registry: Registry) -> None:
    client, topic = registry.client(), next(NAMES)
    context = SerializationContext(topic, MessageField.VALUE)
    write_old = AvroSerializer(client, record("a", "b?"))
    old = write_old({"a": "x", "b": "y"}, context)
    assert old is not None
    assert old[0] == 0
    assert int.from_bytes(old[1:5], "big") == client.get_latest_version(f"{topic}-value").schema_id
    renamed = json.loads(record("a", "c?", "d?"))
    renamed["fields"][1]["aliases"] = ["b"]
    write_new = AvroSerializer(client, json.dumps(renamed))
    new = write_new({"a": "1", "c": "2", "d": "3"}, context)
    read_new = AvroDeserializer(registry.client(), json.dumps(renamed))
    assert read_new(old, context) == {"a": "x", "c": "y", "d": ""}
    assert read_new(new, context) == {"a": "1", "c": "2", "d": "3"}
    assert AvroDeserializer(registry.client(), record("a"))(new, context) == {"a": "1"}


def test_ottlas_and_confluents_avro_serializers_read_each_other(registry: Registry) -> None:
    client, topic = registry.client(), next(NAMES)
    context = SerializationContext(topic, MessageField.VALUE)
    text, value = record("a", "b?"), {"a": "x", "b": "ü"}
    ours = avro.AvroSerializer(registry.url, text)
    data = call_blocking(ours.serialize, topic, value)
    assert data == AvroSerializer(client, text)(value, context)
    assert AvroDeserializer(client)(data, context) == value
    newer = AvroSerializer(client, record("a", "b?", "c?"))({"a": "1", "b": "2", "c": "3"}, context)
    as_written, as_ours = avro.AvroDeserializer(registry.url), avro.AvroDeserializer(registry.url, text)
    assert call_blocking(as_written.deserialize, topic, newer) == {"a": "1", "b": "2", "c": "3"}
    assert call_blocking(as_ours.deserialize, topic, newer) == {"a": "1", "b": "2"}
    latest = avro.AvroSerializer(registry.url, text, use_latest=True)
    assert call_blocking(latest.serialize, topic, {"a": "1", "b": "2", "c": "3"}) == newer


def test_json_works_with_confluents_serializers(registry: Registry) -> None:
    client, topic = registry.client(), next(NAMES)
    context = SerializationContext(topic, MessageField.VALUE)
    text = json.dumps(
        {"title": "T", "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    )
    data = JSONSerializer(text, client)({"n": 3}, context)
    assert JSONDeserializer(text, schema_registry_client=registry.client())(data, context) == {"n": 3}


def test_references_are_resolved_by_confluents_serializers(registry: Registry) -> None:
    client, subject = registry.client(), next(NAMES)
    client.register_schema(subject, Schema(record("code", name="net.Airport")))
    text = json.dumps({"type": "record", "name": "Leg", "fields": [{"name": "to", "type": "net.Airport"}]})
    schema = Schema(text, "AVRO", [SchemaReference("net.Airport", subject, 1)])
    context = SerializationContext(next(NAMES), MessageField.VALUE)
    data = AvroSerializer(client, schema)({"to": {"code": "LAX"}}, context)
    assert AvroDeserializer(registry.client())(data, context) == {"to": {"code": "LAX"}}
    leg = client.get_latest_version(f"{context.topic}-value")
    assert client.get_referenced_by(subject, 1) == [leg.schema_id]
    assert registry.code("DELETE", f"/subjects/{subject}") == 42206


def test_ottlas_registry_client_works_with_the_registry(registry: Registry) -> None:
    client, subject = RegistryClient(registry.url), next(NAMES)
    schema = OwnSchema(record("a"))
    schema_id = client.register(subject, schema)
    assert client.schema(schema_id).text == client.latest(subject).schema.text
    assert client.lookup(subject, schema).version == 1
    assert client.compatible(subject, OwnSchema(record("a", "b")))[0].startswith("{errorType:'READER_FIELD")
    client.set_compatibility("NONE", subject)
    assert client.compatible(subject, OwnSchema(record("a", "b"))) == []
    for ask in (
        lambda: client.schema(999_999),
        lambda: client.latest("no"),
        lambda: client.version(subject, 7),
    ):
        with pytest.raises(NotRegistered):
            ask()


def test_errors_have_confluents_codes_and_media_type(registry: Registry) -> None:
    subject = next(NAMES)
    assert registry.ask("POST", f"/subjects/{subject}/versions", {"schema": '"int"'})[0] == 200
    assert registry.code("GET", "/schemas/ids/999999") == 40403
    assert registry.code("GET", "/subjects/nothing/versions") == 40401
    assert registry.code("GET", f"/subjects/{subject}/versions/9") == 40402
    assert registry.code("GET", f"/subjects/{subject}/versions/zero") == 42202
    assert registry.code("POST", f"/subjects/{subject}", {"schema": '"long"'}) == 40403
    assert registry.code("POST", f"/subjects/{subject}/versions", {"schema": '"nothing"'}) == 42201
    assert registry.code("POST", f"/subjects/{subject}/versions", {"schema": 3}) == 422
    assert registry.code("PUT", "/config", {"compatibility": "SOME"}) == 42203
    assert registry.code("PUT", "/config", {"validateRules": True}) == 422
    assert registry.code("PUT", "/config", {"compatibilityPolicy": "SOME"}) == 42203
    assert registry.code("GET", f"/config/{subject}") == 40408
    assert registry.code("PUT", "/mode", {"mode": "SOME"}) == 42204
    assert registry.code("GET", f"/mode/{subject}") == 40409
    assert registry.code("DELETE", f"/subjects/{subject}?permanent=true") == 40405
    assert registry.code("GET", "/nothing") == 404
    assert registry.code("DELETE", "/schemas/types") == 405
    assert registry.ask("GET", f"/config/{subject}?defaultToGlobal=true")[1] == {
        "compatibilityLevel": "BACKWARD"
    }
    verbose = f"/compatibility/subjects/{subject}/versions/latest?verbose=true"
    assert registry.ask("POST", verbose, {"schema": '"string"'})[1]["messages"][0].startswith("{errorType:")
    assert registry.ask("GET", f"/subjects/{subject}/versions/1/schema")[1] == "int"


def test_a_schema_larger_than_max_message_bytes_is_rejected_and_the_next_one_accepted(
    registry: Registry,
) -> None:
    subject = next(NAMES)
    long = Schema(record("a", name="L" * 1_500_000))
    with pytest.raises(SchemaRegistryError) as refused:
        registry.client().register_schema(subject, long)
    assert refused.value.error_code == 42209
    assert registry.client().register_schema(subject, Schema(record("b")))


def test_a_registry_killed_during_registrations_keeps_all_acknowledged_schemas(
    broker: OneBroker, tmp_path: Path
) -> None:
    topic = f"_schemas_{next(NAMES)}"
    answered: dict[str, int] = {}
    with Registry(broker.bootstrap, tmp_path, topic) as registry:
        for _ in range(2):
            stop = threading.Event()

            def work(stop: threading.Event = stop) -> None:
                client = registry.client()
                while not stop.is_set():
                    name = next(NAMES)
                    try:
                        answered[name] = client.register_schema(name, Schema(record("a", name=name)))
                    except Exception:
                        return  # it is dead

            threads = [threading.Thread(target=work) for _ in range(4)]
            before = len(answered)
            for thread in threads:
                thread.start()
            while len(answered) < before + 10:
                assert any(thread.is_alive() for thread in threads), registry.log.read_text()
            registry.kill()
            stop.set()
            for thread in threads:
                thread.join()
            registry.start()
        client = registry.client()
        assert len(set(answered.values())) == len(answered) >= 20
        for name, schema_id in answered.items():
            assert client.get_latest_version(name).schema_id == schema_id
            assert client.register_schema(name, Schema(record("a", name=name))) == schema_id
        every = [entry["id"] for entry in registry.ask("GET", "/schemas")[1]]
        assert len(every) == len(set(every))
        assert client.register_schema("last", Schema('"int"')) == max(every) + 1


def test_two_instances_never_assign_one_id_to_two_schemas(broker: OneBroker, tmp_path: Path) -> None:
    topic = f"_schemas_{next(NAMES)}"
    with (
        Registry(broker.bootstrap, tmp_path, topic) as one,
        Registry(broker.bootstrap, tmp_path, topic) as two,
    ):

        def work(turn: int, number: int) -> tuple[str, int]:
            here, there = (one, two) if number % 2 else (two, one)
            text = record("a", name=f"R{turn}_{number // 2}")  # two workers for each schema
            schema_id = here.client().register_schema(f"subject-{number}", Schema(text))
            # What one has given away, the other one knows: whoever reads may ask either.
            found = there.client().get_schema(schema_id)
            assert json.loads(str(found.schema_str)) == json.loads(text)
            here.ask("DELETE", f"/subjects/subject-{number}")
            return text, schema_id

        results: list[tuple[str, int]] = []
        with ThreadPoolExecutor(6) as workers:
            for turn in range(5):  # in each of which both write
                results += workers.map(partial(work, turn), range(6))
        ids: dict[str, set[int]] = {}
        for text, schema_id in results:
            ids.setdefault(text, set()).add(schema_id)
        assert all(len(found) == 1 for found in ids.values()), ids
        assert len({next(iter(found)) for found in ids.values()}) == len(ids) == 15
        for path in ("/schemas?deleted=true", "/subjects?deleted=true"):
            assert one.ask("GET", path) == two.ask("GET", path)
        claims = [
            line
            for each in (one, two)
            for line in each.log.read_text().splitlines()
            if "claimed the writer role" in line
        ]
        assert len(claims) > 2, "both have written, and one after the other"


def test_a_topic_of_confluents_registry_can_be_used(broker: OneBroker, tmp_path: Path) -> None:
    topic = f"_schemas_{next(NAMES)}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"})])[topic].result()
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    schema = {"subject": "s", "version": 1, "id": 41, "md5": "x", "schema": '"string"', "deleted": False}
    for key, value in (
        ({"keytype": "NOOP", "magic": 0}, None),
        ({"keytype": "SCHEMA", "subject": "s", "version": 1, "magic": 1}, schema),
        ({"keytype": "CONFIG", "subject": None, "magic": 0}, {"compatibilityLevel": "FULL"}),
    ):
        producer.produce(topic, None if value is None else json.dumps(value), json.dumps(key))
    producer.produce(topic, b"?", b"not of a registry")
    assert producer.flush(30) == 0
    with Registry(broker.bootstrap, tmp_path, topic) as registry:
        client = registry.client()
        assert client.get_latest_version("s").schema_id == 41
        assert client.get_compatibility() == "FULL"
        assert client.register_schema("t", Schema('{"type":"string"}')) == 41
        assert client.register_schema("t2", Schema('"int"')) == 42
        assert registry.ask("PUT", "/config", {"compatibility": "NONE"})[0] == 200
        registry.kill()
        registry.start()
        assert client.get_compatibility() == "NONE"
        assert "is skipped" in registry.log.read_text()


@pytest.mark.parametrize(
    ("partitions", "policy", "reason"),
    [(2, "compact", "has 2 partitions"), (1, "delete", "cleanup.policy=delete")],
)
def test_a_topic_that_would_lose_schemas_is_refused(
    broker: OneBroker, tmp_path: Path, partitions: int, policy: str, reason: str
) -> None:
    topic = f"_schemas_{next(NAMES)}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1, config={"cleanup.policy": policy})])[topic].result()
    refused = Registry(broker.bootstrap, tmp_path, topic)
    with pytest.raises(AssertionError, match=reason):
        refused.start()
    assert "Traceback" not in refused.log.read_text()


def test_writes_with_too_few_brokers_fail_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factor = "transaction.state.log.replication.factor"
    monkeypatch.setattr(log, "CLAIM_S", 2.0)
    with one_broker(tmp_path, {factor: "3"}) as alone:
        topic_log = log.TopicLog(alone.bootstrap, "_schemas", {})
        with pytest.raises(log.LogFailed, match=f"3 replicas, but 1 broker is available.*set {factor}"):
            topic_log.claim()


def test_the_command_reports_invalid_options() -> None:
    for arguments, reason in (
        (["--bootstrap", "here"], "must be HOST:PORT"),
        (["--bootstrap", "h:1", "--kafka-option", "x"], "must be NAME=VALUE"),
        (["--bootstrap", "h:1", "--tls-key", __file__], "go together"),
    ):
        ran = CliRunner().invoke(command, arguments)
        assert ran.exit_code == 2
        assert reason in ran.output
