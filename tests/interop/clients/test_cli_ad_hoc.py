"""`ottla consume` and `ottla produce`: filters, formats, groups, schemas, against Confluent's clients."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from ottla.cli.main import main
from tests.judges.one_broker import OneBroker
from tests.judges.registries import Registry, message_class

pytestmark = pytest.mark.timeout(300)

Command = Callable[..., Result]
NAMES = map("cli-records-{}".format, count())
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "who", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
JSON_SCHEMA = {
    "title": "Order",
    "type": "object",
    "properties": {"id": {"type": "integer"}, "who": {"type": "string"}},
    "required": ["id"],
}
AIRPORT = 'syntax = "proto3";\npackage net;\nmessage Airport { string code = 1; }\n'
FLIGHT = """syntax = "proto3";
package air;
import "google/protobuf/timestamp.proto";
import "net/airport.proto";
message Other { string name = 1; message Inner { int32 n = 1; } }
message Flight {
  string carrier = 1;
  net.Airport to = 2;
  google.protobuf.Timestamp at = 3;
  repeated int32 seats = 4;
}
"""


@pytest.fixture
def ottla(broker: OneBroker) -> Command:
    def run(*arguments: str, stdin: str | bytes | None = None, code: int = 0) -> Result:
        result = CliRunner(env={"OTTLA_BOOTSTRAP": broker.bootstrap}).invoke(main, arguments, input=stdin)
        assert result.exit_code == code, (arguments, result.output)
        return result

    return run


@pytest.fixture
def topic(ottla: Command) -> str:
    name = next(NAMES)
    ottla("topics", "create", name, "--partitions", "3")
    return name


def lines(result: Result) -> list[str]:
    return result.stdout.splitlines()


def write(broker: OneBroker, topic: str, values: list[bytes], **options: Any) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce(topic, value, **options)
    assert producer.flush(60) == 0


def read(broker: OneBroker, topic: str, number: int) -> list[Any]:
    with Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "oracle"}) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(3)])
        found: list[Any] = []
        deadline = time.monotonic() + 60
        while len(found) < number:
            assert time.monotonic() < deadline, found
            message = consumer.poll(1)
            if message is not None:
                assert message.error() is None
                found.append(message)
    return found


EVERYTHING = ("--from", "earliest", "--until-end")


def test_filters_formats_and_several_topics(broker: OneBroker, topic: str, ottla: Command) -> None:
    other = next(NAMES)
    ottla("topics", "create", other)
    for number in range(6):
        value = json.dumps({"id": number, "user": {"name": "AB"[number % 2]}}).encode()
        write(
            broker, topic, [value], key=f"k{number % 3}", partition=0, timestamp=1_000_000 + number,
            headers=[("n", str(number))],
        )  # fmt: skip
    write(broker, other, [b"plain, text"], partition=0, timestamp=2_000_000)

    def ids(*options: str) -> list[int]:
        shown = ottla("consume", topic, *EVERYTHING, "--format", "json", *options)
        return [json.loads(json.loads(line)["value"])["id"] for line in lines(shown)]

    assert ids() == list(range(6))
    assert ids("--key", "k1") == [1, 4]
    assert ids("--key", "k1", "--key", "k2") == [1, 2, 4, 5]
    assert ids("--key-matches", "^k[02]$", "--header", "n=3") == [3]
    assert ids("--where", "user.name=A", "--where", "id>1") == [2, 4]
    assert ids("--grep", '"id": [45]') == [4, 5]
    assert ids("--max", "2") == [0, 1]
    since = "1970-01-01T00:16:40.002+00:00"
    assert ids("--from", since) == [2, 3, 4, 5]
    assert ids("--until", since) == [0, 1]

    both = ottla("consume", topic, other, *EVERYTHING, "--template", "{topic} {offset} {key} {header:n}")
    assert sorted(lines(both)) == sorted([*(f"{topic} {n} k{n % 3} {n}" for n in range(6)), f"{other} 0  "])
    assert lines(ottla("consume", "--pattern", f"{other}|{topic}", *EVERYTHING, "--grep", "plain")) == [
        "plain, text"
    ]
    (row,) = csv.DictReader(io.StringIO(ottla("consume", other, *EVERYTHING, "--format", "csv").stdout))
    assert (row["topic"], row["value"], row["timestamp"]) == (other, "plain, text", "2000000")
    assert ottla("consume", other, *EVERYTHING, "--format", "raw").stdout_bytes == b"plain, text"
    assert "no topic matches" in ottla("consume", "--pattern", "no-such.*", code=1).output
    assert "is not a comparison" in ottla("consume", topic, "--where", "a b", code=2).output


def test_tail_returns_records_although_offsets_have_gaps(
    broker: OneBroker, topic: str, ottla: Command
) -> None:
    """Control records take offsets; aborted records are not shown with read_committed."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(60)
    for number in range(8):
        producer.begin_transaction()
        producer.produce(topic, str(number).encode(), partition=number % 2, timestamp=1000 + number)
        if number % 4 == 3:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
    committed = ("--isolation", "read_committed")
    assert lines(ottla("consume", topic, "--tail", "3", *committed)) == ["4", "5", "6"]
    assert lines(ottla("consume", topic, "--tail", "2", "--grep", "[01]", *committed)) == ["0", "1"]
    assert lines(ottla("consume", topic, "--tail", "99", *committed)) == ["0", "1", "2", "4", "5", "6"]
    command = [
        sys.executable,
        "-m",
        "ottla.cli.main",
        "consume",
        topic,
        "--tail",
        "1",
        "--follow",
        *committed,
    ]
    # What runs in a shell's background inherits that Ctrl-C is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    command += [*committed, "-b", broker.bootstrap]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "6\n"
        write(broker, topic, [b"new"], partition=2)
        assert reader.stdout.readline() == "new\n"
    finally:
        reader.send_signal(signal.SIGINT)
        reader.communicate(timeout=60)
    assert reader.returncode == 0


def test_a_group_commits_only_printed_records(
    broker: OneBroker, topic: str, group: str, ottla: Command
) -> None:
    write(broker, topic, [b"1", b"2", b"x", b"4"], partition=0)
    as_member = ("consume", topic, "--group", group, "--from", "earliest", "--until-end")
    assert lines(ottla(*as_member, "--max", "1")) == ["1"]
    for _ in range(2):  # the record that cannot be decoded is still there
        failed = ottla(*as_member, "--value-format", "json", code=1)
        assert f"{topic}-0 at offset 2" in failed.output
    described = json.loads(ottla("groups", "describe", group, "-o", "json").stdout)
    assert described["partitions"][0]["committed"] == 2
    skipped = ottla(*as_member, "--value-format", "json", "--skip-errors")
    assert lines(skipped) == ["4"]
    assert "1 records could not be decoded" in skipped.stderr
    assert lines(ottla(*as_member)) == []
    assert "--group" in ottla(*as_member, "--tail", "3", code=2).output


def test_numbers_have_the_bytes_of_javas_serializers(broker: OneBroker, topic: str, ottla: Command) -> None:
    ottla(
        "produce", topic, "--key-separator", "=", "--key-format", "int", "--value-format", "double",
        "--null", "none", stdin="7=0.5\n-1=none\n",
    )  # fmt: skip
    found = {message.key(): message.value() for message in read(broker, topic, 2)}
    assert found == {b"\0\0\0\x07": b"?\xe0\0\0\0\0\0\0", b"\xff" * 4: None}
    formats = ("--key-format", "int", "--value-format", "double", "--key-separator", " ")
    assert sorted(lines(ottla("consume", topic, *EVERYTHING, *formats))) == ["-1 ", "7 0.5"]


def test_csv_files_and_a_rate(broker: OneBroker, topic: str, ottla: Command, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text('key,value,partition\nk,"a,\nb",1\nl,c,2\nl,d\nm,e,2\n')
    refused = ottla("produce", topic, str(rows), "--format", "csv", code=1)
    assert f"{rows}, line 5: 2 fields for 3 columns" in refused.output
    assert sorted(m.value() for m in read(broker, topic, 2)) == [b"a,\nb", b"c"]
    skipped = ottla("produce", topic, str(rows), "--format", "csv", "--skip-errors", code=1)
    assert "1 lines were no records" in skipped.output
    assert len(read(broker, topic, 5)) == 5, "what is a record is written"
    blob = tmp_path / "blob"
    blob.write_bytes(b"\0\n\xff")
    ottla("produce", topic, str(blob), "--format", "file", "--partition", "0", "--header", "name=blob")
    (message,) = [m for m in read(broker, topic, 6) if m.partition() == 0]
    assert (message.value(), message.headers()) == (b"\0\n\xff", [("name", b"blob")])
    began = time.monotonic()
    ottla("produce", topic, "--rate", "20", stdin="x\n" * 11)
    assert time.monotonic() - began >= 0.5


def produced_and_consumed(
    ottla: Command, topic: str, registry: Registry, schema: str, entry: Any
) -> tuple[Any, tuple[str, ...]]:
    """What is consumed of one value that was produced; the registry's option."""
    options = ("--registry", registry.url)
    ottla(
        "produce",
        topic,
        "--format",
        "json",
        "--value-schema",
        schema,
        *options,
        stdin=json.dumps({"value": entry}),
    )
    (line,) = lines(ottla("consume", topic, "--tail", "1", "-o", "json", *options))
    return json.loads(line)["value"], options


def test_avro(broker: OneBroker, registry: Registry, topic: str, ottla: Command, tmp_path: Path) -> None:
    context = SerializationContext(topic, MessageField.VALUE)
    theirs = AvroSerializer(registry.client(), json.dumps(AVRO))
    data = theirs({"id": 7, "who": "Ann", "at": 1_700_000_000_000}, context)
    write(broker, topic, [data, b"no schema"], partition=0)
    options = ("--registry", registry.url)
    first, second = lines(ottla("consume", topic, *EVERYTHING, "--format", "json", *options))
    order = {"id": 7, "who": "Ann", "at": "2023-11-14T22:13:20+00:00"}
    assert json.loads(first)["value"] == order
    assert json.loads(second)["value"] == "no schema", "auto: bytes outside the framing are text"
    failed = ottla("consume", topic, *EVERYTHING, "--value-format", "registry", *options, code=1)
    assert "at offset 1" in failed.output
    filtered = ottla("consume", topic, *EVERYTHING, "--where", "who=Ann", *options)
    assert json.loads(filtered.stdout) == order

    schema = tmp_path / "order.avsc"
    schema.write_text(json.dumps(AVRO))
    entry = {"id": 8, "who": None, "at": 1_700_000_000_000}
    value, _ = produced_and_consumed(ottla, topic, registry, str(schema), entry)
    assert value == {**order, "id": 8, "who": None}
    mine = read(broker, topic, 3)[-1].value()
    assert AvroDeserializer(registry.client())(mine, context)["id"] == 8
    bad = '{"value": {"id": 9, "at": 1}}\n{"value": {"id": "nine"}}\n'
    refused = ottla(
        "produce", topic, "--format", "json", "--value-schema", "latest", *options, stdin=bad, code=1
    )
    assert "line 2: " in refused.output
    assert "does not fit the schema" in refused.output
    assert len(read(broker, topic, 4)) == 4


def test_json_schema(
    broker: OneBroker, registry: Registry, topic: str, ottla: Command, tmp_path: Path
) -> None:
    context = SerializationContext(topic, MessageField.VALUE)
    theirs = JSONSerializer(json.dumps(JSON_SCHEMA), registry.client())
    write(broker, topic, [theirs({"id": 7}, context)], partition=0)
    schema = tmp_path / "order.json"
    schema.write_text(json.dumps(JSON_SCHEMA))
    assert json.loads(ottla("consume", topic, *EVERYTHING, "--registry", registry.url).stdout) == {"id": 7}
    value, options = produced_and_consumed(ottla, topic, registry, str(schema), {"id": 8, "who": "Bo"})
    assert value == {"id": 8, "who": "Bo"}
    mine = read(broker, topic, 2)[-1].value()
    assert JSONDeserializer(json.dumps(JSON_SCHEMA))(mine, context) == value
    wrong = ('{"value": {"id": 9}}\n{"value": {"who": "Cy"}}\n', "latest")
    refused = ottla(
        "produce", topic, "--format", "json", "--value-schema", wrong[1], *options, stdin=wrong[0], code=1
    )
    assert "line 2: " in refused.output
    assert '"id" is a required property' in refused.output


@pytest.mark.parametrize("known_types", [True, False])
def test_protobuf(
    broker: OneBroker, registry: Registry, topic: str, ottla: Command, tmp_path: Path, known_types: bool
) -> None:
    flight = message_class(tmp_path, {"net/airport.proto": AIRPORT, "flight.proto": FLIGHT}, "air.Flight")
    context = SerializationContext(topic, MessageField.VALUE)
    message = flight(carrier="UA", to={"code": "LAX"}, seats=[7, 8])
    message.at.FromSeconds(1_700_000_000)
    theirs = ProtobufSerializer(flight, registry.client(), {"skip.known.types": known_types})
    write(broker, topic, [theirs(message, context)], partition=0)
    options = ("--registry", registry.url)
    shown = json.loads(ottla("consume", topic, *EVERYTHING, *options).stdout)
    assert shown == {"carrier": "UA", "to": {"code": "LAX"}, "at": "2023-11-14T22:13:20Z", "seats": [7, 8]}
    entry = json.dumps({"value": {**shown, "carrier": "DL"}})
    produce = ("produce", topic, "--format", "json", "--value-schema", "latest", *options)
    ottla(*produce, "--value-message", "air.Flight", stdin=entry)
    mine = read(broker, topic, 2)
    back = ProtobufDeserializer(flight, {}, registry.client())(mine[-1].value(), context)
    message.carrier = "DL"
    assert back.SerializeToString() == message.SerializeToString()
    ottla(*produce, "--value-message", "air.Other.Inner", stdin='{"value": {"n": 5}}')
    assert json.loads(ottla("consume", topic, "--tail", "1", *options).stdout) == {"n": 5}
    unknown = ottla(*produce, "--value-message", "air.None", stdin=entry, code=1)
    assert "allowed: air.Other, air.Other.Inner, air.Flight" in unknown.output
    refused = ottla(*produce, stdin='{"value": {"name": 5}}', code=1)
    assert "line 1: " in refused.output
