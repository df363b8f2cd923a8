"""What `ottla` tells an operator, and does for one, is what Kafka's own tools tell of the same cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from ottla.cli.main import main
from ottla.local.cluster import LocalCluster
from tests.judges.kafka_tools import Command, Printed, run_all
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(420)

CLUSTER = {"min.insync.replicas": "2", "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
           "super.users": "User:ANONYMOUS", "transaction.state.log.num.partitions": "3"}  # fmt: skip
TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
ACLS = "kafka.admin.AclCommand"
API_VERSIONS = "kafka.admin.BrokerApiVersionsCommand"
ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")


@pytest.fixture(scope="module", autouse=True)
def kafka_jars() -> None:
    needs_kafka_jars()


@pytest.fixture
def ottla(cluster: LocalCluster) -> Callable[..., Result]:
    def run(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner(env={"OTTLA_BOOTSTRAP": cluster.bootstrap}).invoke(main, arguments, input=stdin)

    return run


@pytest.fixture
def ottla_json(ottla: Callable[..., Result]) -> Callable[..., Any]:
    """Run a command that must succeed, as JSON."""

    def run(*arguments: str) -> Any:
        result = ottla(*arguments, "-o", "json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return run


@pytest.fixture
def kafka(cluster: LocalCluster, tmp_path: Path) -> Callable[..., list[Printed]]:
    """Run Kafka's tools: (class, command line, what is awaited) each."""

    def run(*commands: tuple[str, str] | tuple[str, str, str]) -> list[Printed]:
        asked = [
            Command(tool, ["--bootstrap-server", cluster.bootstrap, *words.split()], "", *awaited)
            for tool, words, *awaited in commands
        ]
        return run_all(asked, tmp_path)

    return run


def fill(cluster: LocalCluster, topic: str, partitions: int, records: int = 10, size: int = 10) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number in range(records * partitions):
        producer.produce(topic, b"x" * size, partition=number % partitions)
    assert producer.flush(90) == 0


def places(rows: Any) -> set[tuple[str, int]]:
    return {(row["topic"], row["partition"]) for row in rows}


def test_offsets_disks_versions_and_deleted_records(
    cluster: LocalCluster, ottla_json: Callable[..., Any], kafka: Callable[..., list[Printed]], tmp_path: Path
) -> None:
    cluster.create_topic("looked-at", partitions=3, replicas=3)
    fill(cluster, "looked-at", 3)
    records = tmp_path / "records.json"
    records.write_text(json.dumps({"partitions": [{"topic": "looked-at", "partition": 1, "offset": 4}]}))
    assert ottla_json("topics", "truncate", "--file", str(records), "--yes") == [
        {"topic": "looked-at", "partition": 1, "start_offset": 4}
    ]
    ends, starts, times, sizes, versions = kafka(
        (OFFSETS, "--topic looked-at"),
        (OFFSETS, "--topic-partitions looked-at:0,looked-at:1 --time earliest"),
        (OFFSETS, "--topic looked-at --time -3"),
        (LOG_DIRS, "--describe --topic-list looked-at --broker-list 0,2"),
        (API_VERSIONS, ""),
    )

    def shell(*arguments: str) -> list[str]:
        found = ottla_json("topics", "offsets", *arguments)
        return [f"{row['topic']}:{row['partition']}:{row['offset']}" for row in found]

    assert shell("looked-at") == ends.out.split()
    assert shell("looked-at:0", "looked-at:1", "--at", "earliest") == starts.out.split()
    assert starts.out.split()[1] == "looked-at:1:4"
    assert shell("looked-at", "--at", "max-timestamp") == times.out.split()

    described = json.loads(next(line for line in sizes.out.splitlines() if line.startswith("{")))
    theirs = {
        (broker["broker"], log_dir["logDir"], p["partition"], p["size"], p["offsetLag"])
        for broker in described["brokers"]
        for log_dir in broker["logDirs"]
        for p in log_dir["partitions"]
    }
    ours = ottla_json("cluster", "disks", "--topic", "looked-at", "--broker", "0", "--broker", "2")
    assert {
        (row["broker"], row["directory"], f"{row['topic']}-{row['partition']}", row["bytes"], row["lag"])
        for row in ours
    } == theirs
    assert len(theirs) == 6

    first_broker = versions.out.partition(")\n")[0]
    served = set(re.findall(r"(\w+)\((\d+)\): (\d+)(?: to (\d+))?", first_broker))
    assert len(served) > 50
    found = ottla_json("cluster", "versions", "0")
    assert {(row["api"], row["key"], row["min"], row["max"]) for row in found} == {
        (name, int(key), int(least), int(most or least)) for name, key, least, most in served
    }


def test_a_plan_is_throttled_changed_verified_and_cancelled(
    cluster: LocalCluster,
    ottla: Callable[..., Result],
    ottla_json: Callable[..., Any],
    kafka: Callable[..., list[Printed]],
    tmp_path: Path,
) -> None:
    cluster.admin(lambda admin: admin.create_topic("moved", assignment={0: [0, 1], 1: [1, 0], 2: [0, 1]}))
    cluster.wait_until(lambda: cluster.fully_replicated("moved", 3), "all brokers to know it")
    fill(cluster, "moved", 3, records=100, size=20_000)
    plan, back = tmp_path / "plan.json", tmp_path / "back.json"
    proposed = ottla_json("reassign", "plan", "moved", "--brokers", "1,2")
    assert {tuple(sorted(row["replicas"])) for row in proposed["partitions"]} == {(1, 2)}
    assert proposed == ottla_json("reassign", "plan", "moved", "--brokers", "1,2"), (
        "what is shown is what is saved"
    )
    plan.write_text(json.dumps(proposed))

    started = ottla_json(
        "reassign", "execute", str(plan), "--throttle", "1000", "--log-dir-throttle", "5000",
        "--rollback", str(back),
    )  # fmt: skip
    assert json.loads(back.read_text()) == started["before"]
    assert started["before"]["partitions"][0] == {"topic": "moved", "partition": 0, "replicas": [0, 1]}
    again = ottla("reassign", "execute", str(plan))
    assert (again.exit_code, "use --additional" in again.output) == (1, True)

    verify = f"--verify --reassignment-json-file {plan} --preserve-throttles"
    listed, verified, of_topic, of_broker = kafka(
        (REASSIGN, "--list", "moved-2"),
        (REASSIGN, verify, "in progress"),
        (CONFIGS, "--describe --entity-type topics --entity-name moved", "leader.replication"),
        (CONFIGS, "--describe --entity-type brokers --entity-name 2", "leader.replication"),
    )
    theirs = re.findall(r"^([\w-]+)-(\d+): replicas: ([\d,]+)\. adding: ([\d,]+)\.", listed.out, re.M)
    assert [
        (row["topic"], str(row["partition"]), ",".join(map(str, row["replicas"])), str(row["adding"][0]))
        for row in ottla_json("reassign", "list")
    ] == theirs
    assert len(theirs) == 3
    assert verified.out.count("still in progress") == 3
    assert {row["state"] for row in ottla_json("reassign", "verify", str(plan))} == {"in progress"}
    assert "leader.replication.throttled.replicas=0:0,0:1,1:0,1:1,2:0,2:1" in of_topic.out
    assert "follower.replication.throttled.replicas=0:2,1:2,2:2" in of_topic.out
    assert all(f"{rate}=1000" in of_broker.out for rate in RATES)

    assert len(ottla_json("reassign", "cancel", str(plan), "--yes", "--preserve-throttles")) == 3
    cluster.wait_until(lambda: ottla_json("reassign", "list") == [], "the moves to be taken back")
    states = {row["state"] for row in ottla_json("reassign", "verify", str(plan), "--preserve-throttles")}
    assert states <= {"not moving: replicas are 0,1", "not moving: replicas are 1,0"}
    ottla_json("reassign", "execute", str(plan), "--throttle", "1000")
    ottla_json("reassign", "execute", str(plan), "--throttle", "100000000", "--additional", "--wait")
    assert {row["state"] for row in ottla_json("reassign", "verify", str(plan))} == {"completed"}
    completed, of_topic, of_broker = kafka(
        (REASSIGN, verify, "is completed"),
        (CONFIGS, "--describe --entity-type topics --entity-name moved", "^((?!throttled).)*$"),
        (CONFIGS, "--describe --entity-type brokers --entity-name 2", "^((?!throttled).)*$"),
    )
    assert completed.out.count("is completed") == 3
    kafka((REASSIGN, f"--execute --reassignment-json-file {back}"))
    cluster.wait_until(
        lambda: {row["state"] for row in ottla_json("reassign", "verify", str(back))} == {"completed"},
        "Kafka's tool to run our plan",
    )


def test_a_plan_of_kafkas_tool_is_run(
    cluster: LocalCluster, ottla_json: Callable[..., Any], kafka: Callable[..., list[Printed]], tmp_path: Path
) -> None:
    cluster.create_topic("generated", partitions=4, replicas=2)
    topics, plan = tmp_path / "topics.json", tmp_path / "plan.json"
    topics.write_text(json.dumps({"topics": [{"topic": "generated"}], "version": 1}))
    (shown,) = kafka((REASSIGN, f"--generate --topics-to-move-json-file {topics} --broker-list 0,2"))
    current, proposed = [json.loads(line) for line in shown.out.splitlines() if line.startswith("{")]
    plan.write_text(json.dumps(proposed))
    ours = ottla_json("reassign", "plan", "--file", str(topics), "--current")["partitions"]
    theirs = {(row["partition"], *row["replicas"]) for row in current["partitions"]}
    assert {(row["partition"], *row["replicas"]) for row in ours} == theirs
    ottla_json("reassign", "execute", str(plan), "--wait")
    (verified,) = kafka((REASSIGN, f"--verify --reassignment-json-file {plan}", "is completed"))
    assert verified.out.count("is completed") == 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no json", "not JSON"),
        ("[]", 'a list "partitions"'),
        ('{"version": 2, "partitions": []}', "version: 2; allowed: 1"),
        (
            '{"version": 1, "partitions": [{"topic": "t", "partition": 0}]}',
            "partitions[0]: KeyError('replicas')",
        ),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}',
            "partitions[0]: t-0 has a broker twice",
        ),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": []}]}',
            "t-0 has 1 replicas and 0 log_dirs",
        ),
    ],
)
def test_a_bad_plan_is_refused_before_anything_is_done(
    ottla: Callable[..., Result], tmp_path: Path, text: str, says: str
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(text)
    result = ottla("reassign", "execute", str(plan))
    assert result.exit_code == 2
    assert says in result.output


def test_log_levels_features_and_files_of_settings(
    cluster: LocalCluster,
    ottla: Callable[..., Result],
    ottla_json: Callable[..., Any],
    kafka: Callable[..., list[Printed]],
    tmp_path: Path,
) -> None:
    loggers = {
        row["name"]: row["value"] for row in ottla_json("configs", "describe", "broker-logger", "1", "--all")
    }
    name = next(each for each in sorted(loggers) if each != "root")
    ottla_json("configs", "set", "broker-logger", "1", f"{name}=DEBUG")
    settings = tmp_path / "topic.properties"
    settings.write_text("retention.ms=1234567\nmax.message.bytes=2000000\n")
    cluster.create_topic("set-by-file", partitions=1)
    ottla_json("configs", "set", "topic", "set-by-file", "retention.ms=7654321", "--file", str(settings))
    (shown, of_topic, features, refused) = kafka(
        (CONFIGS, "--describe --entity-type broker-loggers --entity-name 1", f"{name}=DEBUG"),
        (CONFIGS, "--describe --entity-type topics --entity-name set-by-file", "max.message.bytes=2000000"),
        (FEATURES, "describe"),
        (FEATURES, "upgrade --feature metadata.version=20"),
    )
    assert "retention.ms=7654321" in of_topic.out, "arguments win over the file"
    theirs = dict(re.findall(r"^  ([\w.$-]+)=(\w+)", shown.out, re.M))
    assert theirs == {**loggers, name: "DEBUG"}
    ottla_json("configs", "unset", "broker-logger", "1", name)
    after = {
        row["name"]: row["value"] for row in ottla_json("configs", "describe", "broker-logger", "1", "--all")
    }
    assert after[name] == after["root"]

    supported = re.findall(r"Feature: (\S+)", features.out)
    assert [row["feature"] for row in ottla_json("features", "describe")["features"]] == supported
    assert refused.status == 1
    ours = ottla("features", "upgrade", "metadata.version=20")
    assert ours.exit_code == 1
    reason = re.search(r"metadata\.version[^.]*\. (.*)", refused.out + refused.err)
    assert reason is None or reason[1].strip() in ours.output, (refused, ours.output)


def test_acls_of_producers_and_consumers(
    ottla_json: Callable[..., Any], ottla: Callable[..., Result], kafka: Callable[..., list[Printed]]
) -> None:
    topics = ("--topic", "billed", "--topic", "paid")
    ottla_json("acls", "add", "--producer", "--allow", "User:p", *topics, "--transactional-id", "x")
    ottla_json("acls", "add", "--consumer", "--allow", "User:c", *topics, "--group", "g")
    kafka(
        (ACLS, "--add --producer --allow-principal User:q --topic billed --topic paid --transactional-id x"),
        (ACLS, "--add --consumer --allow-principal User:d --topic billed --topic paid --group g"),
    )

    def of(principal: str) -> set[tuple[str, ...]]:
        rows = ottla_json("acls", "list", "--principal", principal)
        return {tuple(v for k, v in row.items() if k != "principal") for row in rows}

    assert of("User:p") == of("User:q")
    assert of("User:c") == of("User:d")
    assert len(of("User:p")) == 8
    assert len(of("User:c")) == 5
    (listed,) = kafka((ACLS, "--list --topic billed --resource-pattern-type match"))
    assert (
        listed.out.count("operation=")
        == len(ottla_json("acls", "list", "--topic", "billed", "--matching"))
        == 10
    )
    removed = ottla_json(
        "acls", "remove", "--producer", "--topic", "billed", "--topic", "paid", "--allow", "User:p"
    )
    assert len(removed["removed"]) == 6
    assert (
        "--consumer needs --group"
        in ottla("acls", "add", "--consumer", "--topic", "t", "--allow", "User:c").output
    )


def test_perf_measures_written_records(
    cluster: LocalCluster, ottla_json: Callable[..., Any], ottla: Callable[..., Result], tmp_path: Path
) -> None:
    cluster.create_topic("fast", partitions=3, replicas=3)
    written = ottla_json("perf", "produce", "fast", "--records", "3000", "--size", "100")
    assert written["records"] == 3000
    assert 0 < written["avg_ms"] <= written["max_ms"]
    assert written["p50_ms"] <= written["p95_ms"] <= written["p99_ms"] <= written["p99.9_ms"]
    assert written["mb_per_s"] == pytest.approx(written["records_per_s"] * 100 / 1024**2)
    assert sum(row["offset"] for row in ottla_json("topics", "offsets", "fast")) == 3000
    read = ottla_json("perf", "consume", "fast", "--records", "3000", "--group", "measured")
    assert read["records"] == 3000
    assert read["mb"] == pytest.approx(3000 * 100 / 1024**2)
    assert read["fetch_ms"] + read["rebalance_ms"] == pytest.approx(read["end_ms"] - read["start_ms"], abs=2)

    words = tmp_path / "words"
    words.write_text("one\ntwo\n")
    shown = ottla(
        "perf", "produce", "fast", "--records", "30", "--payload-file", str(words), "--rate", "100",
        "--transactional-id", "measured", "--transaction-duration", "100",
    )  # fmt: skip
    assert re.match(
        r"30 records sent, [\d.]+ records/sec \([\d.]+ MB/sec\), [\d.]+ ms avg latency, "
        r"[\d.]+ ms max latency, \d+ ms 50th, \d+ ms 95th, \d+ ms 99th, \d+ ms 99.9th\.\n",
        shown.stdout,
    ), shown.output
    assert float(shown.stdout.split()[3]) <= 110, "the rate is kept"

    def completed() -> bool:
        described = ottla_json("transactions", "describe", "measured")
        return (described["state"], described["partitions"]) == ("CompleteCommit", [])

    cluster.wait_until(completed, "the markers of the last transaction")
    assert {"transactional_id": "measured", "state": "CompleteCommit"}.items() <= next(
        row for row in ottla_json("transactions", "list") if row["transactional_id"] == "measured"
    ).items()
    latency = ottla_json("perf", "latency", "fast", "--records", "20", "--size", "50")
    assert latency["records"] == 20
    assert 0 < latency["p50_ms"] <= latency["max_ms"]


def test_under_replicated_partitions_are_listed_while_a_broker_is_down(
    cluster: LocalCluster, ottla_json: Callable[..., Any], ottla: Callable[..., Result],
    kafka: Callable[..., list[Printed]],
) -> None:  # fmt: skip
    """The last test of the module: it stops a broker."""
    assigned = {"wide": {0: [0, 1, 2]}, "pair": {0: [1, 0]}, "narrow": {0: [0, 2]}, "alone": {0: [2]}}
    for name, assignment in assigned.items():
        cluster.admin(lambda admin, n=name, a=assignment: admin.create_topic(n, assignment=a))  # type: ignore[misc]
        cluster.wait_until(lambda n=name, a=assignment: cluster.fully_replicated(n, len(a)), name)  # type: ignore[misc]
    cluster.brokers[2].stop()
    wanted = {
        "--under-replicated": ("--under-replicated-partitions", {("wide", 0), ("narrow", 0)}),
        "--unavailable": ("--unavailable-partitions", {("alone", 0)}),
        "--under-min-isr": ("--under-min-isr-partitions", {("narrow", 0), ("alone", 0)}),
        "--at-min-isr": ("--at-min-isr-partitions", {("wide", 0), ("pair", 0)}),
    }
    own = set(assigned)

    def ours(option: str) -> set[tuple[str, int]]:
        return {place for place in places(ottla_json("topics", "describe", option)) if place[0] in own}

    for option, (_, expected) in wanted.items():
        cluster.wait_until(lambda o=option, e=expected: e <= ours(o), f"{option} to show it")  # type: ignore[misc]
    shown = kafka(*((TOPICS, f"--describe {theirs}") for theirs, _ in wanted.values()))
    for option, printed in zip(wanted, shown, strict=True):
        theirs = {(t, int(p)) for t, p in re.findall(r"Topic: (\S+)\tPartition: (\d+)", printed.out)}
        assert places(ottla_json("topics", "describe", option)) == theirs, option
    both = ottla("topics", "describe", "wide", "pair", "--at-min-isr", "--under-replicated", "-o", "json")
    assert places(json.loads(both.stdout)) == {("wide", 0), ("pair", 0)}
    refused = ottla("cluster", "elect", "alone:0")
    assert refused.exit_code == 1
    assert "PREFERRED_LEADER_NOT_AVAILABLE" in refused.output
