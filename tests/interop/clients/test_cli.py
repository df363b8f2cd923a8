"""The `ottla` command against a replicated cluster; librdkafka is the oracle of what it writes and says."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ScramMechanism

from ottla.cli.main import main
from ottla.local.cluster import LocalCluster
from ottla.local.processes import wait_until
from tests.judges.confluent_reader import read_to_end

pytestmark = pytest.mark.timeout(420)

Command = Callable[..., Result]


@pytest.fixture
def ottla(cluster: LocalCluster) -> Command:
    def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner(env={"OTTLA_BOOTSTRAP": cluster.bootstrap}).invoke(main, arguments, input=stdin)

    return run


@pytest.fixture
def ottla_json(ottla: Command) -> Callable[..., Any]:
    """Run a command that must succeed, as JSON."""

    def run(*arguments: str, stdin: str | bytes | None = None) -> Any:
        result = ottla(*arguments, "-o", "json", stdin=stdin)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return run


def becomes(look: Callable[[], Any], wanted: Any) -> None:
    """What one broker was told, the next one asked need not have heard yet; so it is in Kafka."""
    wait_until(lambda: bool(look() == wanted), timeout_s=60)
    assert look() == wanted


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").strip("]")
    cluster.create_topic(name, partitions=3)
    return str(name)


@pytest.fixture
def member(cluster: LocalCluster, topic: str) -> Iterator[Consumer]:
    """A consumer of the topic, in group `readers-TOPIC`, that has its partitions."""
    with Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": f"readers-{topic}",
            "client.id": "a-reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    ) as consumer:
        consumer.subscribe([topic])
        deadline = time.monotonic() + 120
        while len(consumer.assignment()) < 3:
            assert time.monotonic() < deadline
            consumer.poll(0.2)
        yield consumer


def read_all(cluster: LocalCluster, topic: str, partitions: int = 3) -> list[Any]:
    return read_to_end(cluster.bootstrap, [TopicPartition(topic, p, 0) for p in range(partitions)])


def test_a_topic_is_created_described_grown_and_deleted(
    cluster: LocalCluster, ottla: Command, ottla_json: Callable[..., Any]
) -> None:
    settings = ("--config", "retention.ms=3600000")
    assert ottla_json("topics", "create", "t", "--partitions", "2", "--replicas", "3", *settings)["created"]
    assert not ottla_json("topics", "create", "t", "--if-not-exists")["created"]

    def listed() -> bool:
        return "t" in [entry["topic"] for entry in ottla_json("topics", "list")]

    def replicas() -> list[int]:
        (described,) = ottla_json("topics", "describe", "t")
        assert described["settings"] == {"retention.ms": "3600000"}
        return [len(p["replicas"]) for p in described["partitions"]]

    becomes(listed, True)
    cluster.wait_until(lambda: cluster.fully_replicated("t", 2), "all brokers to know it")
    becomes(replicas, [3, 3])
    ottla_json("topics", "grow", "t", "4")
    becomes(replicas, [3, 3, 3, 3])
    shown = ottla("topics", "describe", "t").stdout
    assert "retention.ms=3600000" in shown
    assert "LEADER" in shown
    assert ottla_json("topics", "delete", "t", "--yes") == {"deleted": ["t"]}
    becomes(listed, False)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "says"),
    [
        (("topics", "describe", "none"), 1, "there is no topic 'none'"),
        (("topics", "create", "a/b"), 1, "INVALID_TOPIC_EXCEPTION"),
        (("topics", "create", "x", "--config", "retention.ms"), 2, "must be NAME=VALUE"),
        (("topics", "list", "-b", "nowhere"), 3, "cannot reach the cluster"),
        (("topics", "list", "-b", "host:port"), 2, "is not HOST:PORT"),
        (("groups", "describe", "none"), 1, "there is no group 'none'"),
        (("groups", "reset", "g", "t", "--to", "soon"), 2, "must be earliest, latest"),
        (("groups", "reset", "g", "t", "--by-duration", "1h"), 2, "ISO 8601 duration"),
        (("groups", "reset", "g", "t", "--to", "latest", "--shift-by", "1"), 2, "exactly one of --to"),
        (("groups", "reset", "g", "--to", "latest"), 2, "exactly one of TOPIC"),
        (("groups", "reset", "g", "t:one", "--to", "latest"), 2, "TOPIC:PARTITION"),
        (("groups", "reset", "g", "none", "--to", "latest"), 1, "there is no topic 'none'"),
        (("consume", "none", "--until-end"), 1, "there is no topic 'none'"),
        (("configs", "set", "topic", "none", "retention.ms=1"), 1, "UNKNOWN_TOPIC"),
        (("configs", "describe", "broker", "x"), 2, "neither a broker's id"),
        (("quotas", "set", "producer_byte_rate=1"), 2, "an entity is required"),
        (("quotas", "set", "--user", "u", "producer_byte_rate=much"), 2, "is not a number"),
        (("users", "set", "u", "--iterations", "1"), 2, "4096<=x<=16384"),
        (("users", "set", "u", "--password-file", "-"), 2, "the password is empty"),
        (("users", "delete", "u"), 1, "user 'u' has no credentials"),
        (("users", "delete", "u", "--mechanism", "SCRAM-SHA-256"), 1, "RESOURCE_NOT_FOUND"),
        (("cluster", "move", "none", "0=0"), 1, "UNKNOWN_TOPIC"),
        (("cluster", "move", "none", "0=a"), 2, "PARTITION=BROKER"),
    ],
)
def test_an_error_is_reported_in_one_line(
    ottla: Command, arguments: tuple[str, ...], exit_code: int, says: str
) -> None:
    result = ottla(*arguments)
    assert result.exit_code == exit_code
    assert says in result.output
    assert "Traceback" not in result.output


def test_lines_become_records_in_the_partitions_of_the_java_client(
    cluster: LocalCluster, topic: str, ottla_json: Callable[..., Any]
) -> None:
    lines = "".join(f"key-{n % 7}:value-{n}\n" for n in range(500))
    written = ottla_json("produce", topic, "--key-separator", ":", "--compression", "zstd", stdin=lines)
    assert written == {"topic": topic, "records": 500}
    ours = read_all(cluster, topic)
    java_like = Producer({"bootstrap.servers": cluster.bootstrap, "partitioner": "murmur2_random"})
    cluster.create_topic(f"{topic}-2", partitions=3)
    for n in range(7):
        java_like.produce(f"{topic}-2", b"", key=f"key-{n}".encode())
    assert java_like.flush(90) == 0
    theirs = {message.key(): message.partition() for message in read_all(cluster, f"{topic}-2")}
    assert {message.key(): message.partition() for message in ours} == theirs
    for key in theirs:
        numbers = [int(m.value().removeprefix(b"value-")) for m in ours if m.key() == key]
        assert numbers == sorted(numbers)


def test_json_lines_have_keys_headers_partitions_and_timestamps(
    cluster: LocalCluster, topic: str, ottla_json: Callable[..., Any], ottla: Command
) -> None:
    entry = {"value": {"a": [1]}, "key": "k", "headers": {"h": "x"}, "partition": 2, "timestamp": 1234}
    ottla_json(
        "produce",
        topic,
        "--format",
        "json",
        stdin=json.dumps(entry) + "\n" + '{"value": null, "partition": 0}',
    )
    keyed, empty = sorted(read_all(cluster, topic), key=lambda message: message.key() or b"", reverse=True)
    assert (keyed.key(), keyed.value(), keyed.partition()) == (b"k", b'{"a": [1]}', 2)
    assert (keyed.headers(), keyed.timestamp()[1]) == ([("h", b"x")], 1234)
    assert empty.value() is None
    shown = ottla("consume", topic, "--from", "earliest", "--until-end", "--partition", "2", "-o", "json")
    assert json.loads(shown.stdout)["value"] == '{"a": [1]}'


def test_lines_before_an_invalid_line_are_written(cluster: LocalCluster, topic: str, ottla: Command) -> None:
    result = ottla("produce", topic, "--key-separator", ":", stdin="a:1\nb:2\nno key\nc:3\n")
    assert result.exit_code == 1
    assert "line 3: no ':' in it" in result.output
    assert {message.value() for message in read_all(cluster, topic)} == {b"1", b"2"}


def test_consume_begins_and_ends_at_the_given_offsets(
    topic: str, ottla: Command, ottla_json: Callable[..., Any]
) -> None:
    ottla_json("produce", topic, "--partition", "1", stdin="".join(f"{n}\n" for n in range(5000)))

    def values(*arguments: str) -> list[int]:
        return [int(line) for line in ottla("consume", topic, *arguments).stdout.split()]

    assert values("--from", "earliest", "--until-end") == list(range(5000))
    assert values("--from", "-3", "--until-end") == [4997, 4998, 4999]
    assert values("--from", "4990", "--partition", "1", "-n", "2") == [4990, 4991]
    assert values("--until-end") == []
    assert "OFFSET_OUT_OF_RANGE" in ottla("consume", topic, "--from", "6000", "-n", "1").output


def test_consume_follows_until_it_is_interrupted(cluster: LocalCluster, topic: str) -> None:
    command = [sys.executable, "-m", "ottla.cli.main", "consume", topic, "--from", "earliest"]
    # What runs in a shell's background inherits that Ctrl-C is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    reader = subprocess.Popen([*command, "-b", cluster.bootstrap], stdout=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    try:
        assert reader.stdout is not None
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        for value in ("one", "two"):
            producer.produce(topic, value.encode(), partition=0)
            assert producer.flush(90) == 0
            assert reader.stdout.readline() == f"{value}\n"
    finally:
        reader.send_signal(signal.SIGINT)
        reader.communicate(timeout=90)
    assert reader.returncode == 0


def test_members_and_lag_of_a_group_are_shown_and_its_offsets_reset(
    topic: str, member: Consumer, ottla: Command, ottla_json: Callable[..., Any]
) -> None:
    group = f"readers-{topic}"
    ottla_json("produce", topic, "--partition", "0", stdin="1\n2\n3\n")
    member.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    described = ottla_json("groups", "describe", group)
    assert (described["state"], described["lag"]) == ("Stable", 2)
    (shown,) = described["members"]
    assert (shown["client"], shown["partitions"]) == ("a-reader", 3)
    assert described["partitions"][0]["member"] == shown["member"]
    assert {"group": group, "state": "Stable"} in ottla_json("groups", "list")
    refused = ottla("groups", "reset", group, topic, "--to", "latest")
    assert refused.exit_code == 1
    assert "stop its members first" in refused.output

    member.close()
    becomes(lambda: ottla_json("groups", "describe", group)["state"], "Empty")
    assert ottla_json("groups", "reset", group, topic, "--to", "latest", "--dry-run")[0]["to"] == 3
    assert ottla_json("groups", "describe", group)["partitions"][0]["committed"] == 1
    ottla_json("groups", "reset", group, topic, "--to", "latest")
    assert ottla_json("groups", "describe", group)["lag"] == 0
    ottla_json("groups", "reset", group, topic, "--to", "1970-01-01T00:00:00Z", "--partition", "0")
    assert ottla_json("groups", "describe", group)["lag"] == 3
    ottla_json("groups", "delete", group, "--yes")
    assert group not in [entry["group"] for entry in ottla_json("groups", "list")]


def test_a_group_is_rewound_while_its_members_run(
    topic: str, member: Consumer, ottla: Command, ottla_json: Callable[..., Any]
) -> None:
    group = f"readers-{topic}"
    ottla_json("produce", topic, "--partition", "0", stdin="1\n2\n3\n")

    def read(count: int) -> list[bytes | None]:
        values: list[bytes | None] = []
        deadline = time.monotonic() + 120
        while len(values) < count:
            assert time.monotonic() < deadline
            message = member.poll(0.2)
            if message is not None and message.error() is None:
                values.append(message.value())
        return values

    assert read(3) == [b"1", b"2", b"3"]
    member.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    (before,) = ottla_json("groups", "describe", group, "--members", "--verbose")
    assert before["assignment"] == [f"{topic}(0,1,2)"]
    assert ottla_json("groups", "list", "--state", "Empty") != ottla_json("groups", "list")

    def rewind(*more: str) -> Any:
        return ottla_json("groups", "reset", group, f"{topic}:0", "--shift-by", "-2", "--live", *more)

    moved = [{"topic": topic, "partition": 0, "from": 3, "to": 1}]
    assert rewind("--dry-run") == moved
    assert ottla_json("groups", "describe", group, "--state")[0]["state"] == "Stable"
    assert rewind() == moved
    assert read(2) == [b"2", b"3"]
    (after,) = ottla_json("groups", "describe", group, "--members")
    assert after["member"] != before["member"]


@pytest.mark.parametrize("columns", ["topic", "group"])
def test_exported_offsets_are_read_back(
    topic: str, ottla: Command, ottla_json: Callable[..., Any], tmp_path: Path, columns: str
) -> None:
    ottla_json("produce", topic, "--partition", "1", stdin="1\n2\n3\n")
    ottla_json("groups", "reset", "exported", topic, "--to", "2")
    printed = ottla("groups", "reset", "exported", "--all-topics", "--to", "current", "--dry-run", "--export")
    lines = [line for line in printed.stdout.splitlines() if line.startswith(f"{topic},")]
    assert lines == [f"{topic},0,0", f"{topic},1,2", f"{topic},2,0"]
    file = tmp_path / "offsets.csv"
    group = "" if columns == "topic" else "exported,"
    file.write_text("".join(f"{group}{line}\n" for line in lines) + ("" if not group else "other,none,0,5\n"))
    ottla_json("groups", "reset", "exported", topic, "--to", "earliest")
    ottla_json("groups", "reset", "exported", "--from-file", str(file))
    rows = ottla_json("groups", "describe", "exported", "--offsets")
    assert [row["committed"] for row in rows if row["topic"] == topic] == [0, 2, 0]
    ottla_json("groups", "delete-offsets", "exported", f"{topic}:0,2", "--yes")
    rows = ottla_json("groups", "describe", "exported", "--offsets")
    assert [row["partition"] for row in rows if row["topic"] == topic] == [1]
    file.write_text("what,is,this\n")
    refused = ottla("groups", "reset", "exported", "--from-file", str(file))
    assert (refused.exit_code, "line 1" in refused.output) == (2, True)


def test_settings_are_described_set_and_deleted(topic: str, ottla_json: Callable[..., Any]) -> None:
    ottla_json("configs", "set", "topic", topic, "retention.ms=1000", "segment.bytes=2000000")
    shown = {entry["name"]: entry for entry in ottla_json("configs", "describe", "topic", topic)}
    assert shown["retention.ms"] == {"name": "retention.ms", "value": "1000", "from": "topic"}
    ottla_json("configs", "unset", "topic", topic, "retention.ms")
    shown = {entry["name"]: entry for entry in ottla_json("configs", "describe", "topic", topic, "--all")}
    assert shown["retention.ms"]["from"] == "default"
    ottla_json("configs", "set", "broker", "all", "log.retention.ms=7200000")

    def shown_by_the_broker() -> Any:
        shown = {entry["name"]: entry for entry in ottla_json("configs", "describe", "broker", "1")}
        return shown.get("log.retention.ms")

    setting = {"name": "log.retention.ms", "value": "7200000", "from": "all brokers"}
    becomes(shown_by_the_broker, setting)
    ottla_json("configs", "unset", "broker", "all", "log.retention.ms")


def test_quotas_are_set_listed_and_removed(ottla_json: Callable[..., Any]) -> None:
    ottla_json("quotas", "set", "--user", "default", "--client-id", "app", "producer_byte_rate=1000")
    quota = {"user": "<default>", "client_id": "app", "ip": None, "quota": "producer_byte_rate"}
    becomes(lambda: ottla_json("quotas", "list"), [{**quota, "value": 1000.0}])
    ottla_json("quotas", "unset", "--user", "default", "--client-id", "app", "producer_byte_rate")
    becomes(lambda: ottla_json("quotas", "list"), [])


def test_users_are_set_listed_and_deleted(cluster: LocalCluster, ottla_json: Callable[..., Any]) -> None:
    ottla_json("users", "set", "alice", "--password-file", "-", stdin="a secret\n")
    ottla_json(
        "users", "set", "alice", "--mechanism", "scram-sha-256", "--iterations", "5000", stdin="b\nb\n"
    )
    sha_512 = {"user": "alice", "mechanism": "SCRAM-SHA-512", "iterations": 4096}
    sha_256 = {"user": "alice", "mechanism": "SCRAM-SHA-256", "iterations": 5000}
    assert ottla_json("users", "list") == [sha_256, sha_512]
    confluent = AdminClient({"bootstrap.servers": cluster.bootstrap})
    described = confluent.describe_user_scram_credentials(["alice"])["alice"].result(timeout=60)
    seen = {(info.mechanism, info.iterations) for info in described.scram_credential_infos}
    assert seen == {(ScramMechanism.SCRAM_SHA_256, 5000), (ScramMechanism.SCRAM_SHA_512, 4096)}
    ottla_json("users", "delete", "alice", "--mechanism", "SCRAM-SHA-256")
    assert ottla_json("users", "list") == [sha_512]
    assert ottla_json("users", "delete", "alice")["deleted"] == ["SCRAM-SHA-512"]
    assert ottla_json("users", "list") == []


def test_cluster_reassignments_and_log_directories_are_shown(
    cluster: LocalCluster, topic: str, ottla_json: Callable[..., Any]
) -> None:
    described = ottla_json("cluster", "describe")
    assert [broker["broker"] for broker in described["brokers"]] == [0, 1, 2]
    assert described["controller"] in (0, 1, 2)
    ottla_json("produce", topic, "--partition", "0", stdin="x\n" * 1000)
    ottla_json("cluster", "move", topic, "0=2,1", "--wait")

    def first_partition(what: str) -> Any:
        (shown,) = ottla_json("topics", "describe", topic)
        return shown["partitions"][0][what]

    becomes(lambda: first_partition("replicas"), [2, 1])
    becomes(lambda: ottla_json("cluster", "moves"), [])

    def elected() -> Any:
        ottla_json("cluster", "elect")
        return first_partition("leader")

    becomes(elected, 2)
    disks = ottla_json("cluster", "disks")
    assert [disk["broker"] for disk in disks] == [0, 1, 2]
    assert all(disk["bytes"] > 0 and disk["error"] is None for disk in disks)


def test_records_before_an_offset_are_deleted(
    topic: str, ottla: Command, ottla_json: Callable[..., Any]
) -> None:
    ottla_json("produce", topic, "--partition", "0", stdin="1\n2\n3\n")
    assert ottla_json("topics", "truncate", topic, "0=2", "--yes") == [{"partition": 0, "start_offset": 2}]
    assert ottla("consume", topic, "--from", "earliest", "--until-end").stdout == "3\n"


def test_segments_are_dumped_without_a_broker(
    cluster: LocalCluster, topic: str, ottla: Command, ottla_json: Callable[..., Any], tmp_path: Path
) -> None:
    ottla_json("produce", topic, "--partition", "0", "--key-separator", ":", stdin="k:v\nk:w\n")
    folder = cluster.directory / "brokers" / "0" / "data" / f"{topic}-0"
    becomes(lambda: [s["next_offset"] for s in ottla_json("log", "describe", str(folder))], [2])
    (segment,) = ottla_json("log", "describe", str(folder))
    assert (segment["base_offset"], segment["next_offset"], segment["damaged_at"]) == (0, 2, None)
    file = folder / "00000000000000000000.log"
    (batch,) = ottla_json("log", "dump", "--records", str(file))
    assert [(r["key"], r["value"]) for r in batch["batch"]] == [("k", "v"), ("k", "w")]

    assert ottla("log", "check", str(folder.parent)).exit_code == 0

    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    flipped = tmp_path / file.name
    flipped.write_bytes(data)
    result = ottla("log", "dump", str(flipped))
    assert result.exit_code == 1
    assert "no whole batch with the right checksum at byte 0" in result.output


def test_bootstrap_servers_are_read_from_properties_of_kafkas_clients(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    config = tmp_path / "client.properties"

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, ("topics", "list", *arguments, "--command-config", str(config)))

    config.write_text(f"bootstrap.servers={cluster.bootstrap}\n")
    assert run().exit_code == 0
    config.write_text("bootstrap.servers=127.0.0.1:1\n")
    assert "127.0.0.1:1" in run().output
    assert run("-b", cluster.bootstrap).exit_code == 0
    config.write_text("bootstrap.servers=nowhere:port\n")
    refused = run()
    assert (refused.exit_code, "'nowhere:port' is not HOST:PORT" in refused.output) == (2, True)
