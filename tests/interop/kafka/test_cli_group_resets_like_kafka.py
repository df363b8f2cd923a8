"""`ottla groups reset` and kafka-consumer-groups --reset-offsets choose the same offsets, and read the
files of each other; both take several groups, and all groups of consumers."""

from __future__ import annotations

import asyncio
import csv
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, Producer

from ottla.cli.main import main
from ottla.client.admin import AdminClient, NewTopic, TopicPartition
from ottla.local.processes import wait_until
from ottla.protocol.messages import JoinGroupRequest
from tests.judges.kafka_tools import Command, run_all
from tests.judges.one_broker import OneBroker, one_broker
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(300)
TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
HOUR_MS = 3_600_000
RECORDS = 10
COMMITTED = {TopicPartition("t", 0): 7, TopicPartition("t", 1): 2}
OF_OTHERS = {"h": {TopicPartition("t", 0): 5, TopicPartition("u", 0): 1}, "i": {TopicPartition("u", 0): 9}}
DAY = "2026-01-31"
FORMS: Sequence[tuple[Sequence[str], Sequence[str]]] = [
    (["--topic", "t", "--to-earliest"], ["t", "--to", "earliest"]),
    (["--topic", "t", "--to-latest"], ["t", "--to", "latest"]),
    (["--topic", "t", "--to-current"], ["t", "--to", "current"]),
    (["--topic", "t", "--to-offset", "4"], ["t", "--to", "4"]),
    (["--topic", "t", "--to-offset", "400"], ["t", "--to", "400"]),
    (["--topic", "t:0,1", "--shift-by", "-3"], ["t:0,1", "--shift-by", "-3"]),
    (["--topic", "t:0", "--shift-by", "2"], ["t:0", "--shift-by", "2"]),
    (["--all-topics", "--to-latest"], ["--all-topics", "--to", "latest"]),
    (["--topic", "t:0", "--topic", "u", "--to-earliest"], ["t:0", "u", "--to", "earliest"]),
    (["--topic", "t", "--by-duration", "PT4H30M"], ["t", "--by-duration", "PT4H30M"]),
    (["--topic", "t", "--by-duration", "P30D"], ["t", "--by-duration", "P30D"]),
    (["--topic", "u", "--to-datetime", f"{DAY}T05:30:00.000"], ["u", "--to", f"{DAY}T05:30:00.000"]),
    (
        ["--topic", "u", "--to-datetime", f"{DAY}T05:30:00.000+02:00"],
        ["u", "--to", f"{DAY}T05:30:00.000+02:00"],
    ),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneBroker]:
    """Topic t with a record an hour until now, u with one an hour of DAY (UTC), in each partition."""
    needs_kafka_jars()

    async def prepare(bootstrap: str) -> None:
        async with AdminClient(bootstrap_servers=bootstrap) as admin:
            (await admin.create_topics([NewTopic("t", 3, 1), NewTopic("u", 1, 1)])).raise_first()
            for group, offsets in {"g": COMMITTED, **OF_OTHERS}.items():
                (await admin.alter_group_offsets(group, offsets)).raise_first()

    with one_broker(tmp_path_factory.mktemp("broker")) as running:
        asyncio.run(prepare(running.bootstrap))
        producer = Producer({"bootstrap.servers": running.bootstrap})
        now_ms, day_ms = int(time.time() * 1000), 1_769_817_600_000
        for hour in range(RECORDS):
            for partition in range(3):
                ago = now_ms - (RECORDS - hour) * HOUR_MS
                producer.produce("t", b"v", partition=partition, timestamp=ago)
            producer.produce("u", b"v", partition=0, timestamp=day_ms + hour * HOUR_MS)
        assert producer.flush(60) == 0
        del producer  # it would outlive its broker
        yield running


def ottla(broker: OneBroker, *arguments: str) -> Result:
    return CliRunner(env={"OTTLA_BOOTSTRAP": broker.bootstrap}).invoke(main, ["groups", *arguments])


def ours(broker: OneBroker, *arguments: str, groups: Sequence[str] = ("g",)) -> list[list[str]]:
    ran = ottla(broker, "reset", *groups, *arguments, "--export")
    assert ran.exit_code == 0, ran.output
    return sorted(csv.reader(ran.stdout.splitlines()))


def theirs(broker: OneBroker, *arguments: str, groups: Sequence[str] = ("--group", "g")) -> Command:
    common = ("--bootstrap-server", broker.bootstrap, *groups, "--reset-offsets", "--export")
    return Command(TOOL, (*common, *arguments))


def rows(printed: str, columns: int = 3) -> list[list[str]]:
    return sorted(row for row in csv.reader(printed.splitlines()) if len(row) == columns)


def test_the_same_offsets(broker: OneBroker, tmp_path: Path) -> None:
    printed = run_all([theirs(broker, *form, "--dry-run") for form, _ in FORMS], tmp_path)
    for (form, ours_form), shown in zip(FORMS, printed, strict=True):
        assert rows(shown.out), (form, shown)
        assert ours(broker, *ours_form, "--dry-run") == rows(shown.out), form


def test_kafka_and_ottla_read_each_others_file(broker: OneBroker, tmp_path: Path) -> None:
    file = tmp_path / "ours.csv"
    exported = ours(broker, "t", "--to", "3", "--dry-run")
    file.write_text("".join(f"{','.join(row)}\n" for row in exported))
    (shown,) = run_all([theirs(broker, "--from-file", str(file), "--dry-run")], tmp_path)
    assert rows(shown.out) == exported
    file.write_text(shown.out)
    assert ours(broker, "--from-file", str(file), "--dry-run") == exported


SEVERAL: Sequence[tuple[Sequence[str], Sequence[str], Sequence[str]]] = [
    (("--group", "g", "--group", "h"), ["--topic", "t", "--to-earliest"], ["t", "--to", "earliest"]),
    (
        ("--group", "h", "--group", "g"),
        ["--all-topics", "--shift-by", "-1"],
        ["--all-topics", "--shift-by", "-1"],
    ),
    (("--all-groups",), ["--all-topics", "--to-current"], ["--all-topics", "--to", "current"]),
    (("--all-groups",), ["--topic", "t:2", "--topic", "u", "--to-latest"], ["t:2", "u", "--to", "latest"]),
]


def test_the_same_offsets_of_several_groups(broker: OneBroker, tmp_path: Path) -> None:
    printed = run_all(
        [theirs(broker, *form, "--dry-run", groups=groups) for groups, form, _ in SEVERAL], tmp_path
    )
    for (groups, form, ours_form), shown in zip(SEVERAL, printed, strict=True):
        assert {row[0] for row in rows(shown.out, 4)} == (
            {"g", "h", "i"} if "--all-groups" in groups else {"g", "h"}
        )
        assert ours(broker, *ours_form, "--dry-run", groups=groups) == rows(shown.out, 4), form


def test_kafka_and_ottla_read_each_others_file_of_several_groups(broker: OneBroker, tmp_path: Path) -> None:
    file, groups = tmp_path / "ours.csv", ("--group", "g", "--group", "h")
    exported = ours(broker, "t", "--to", "3", "--dry-run", groups=groups)
    file.write_text("".join(f"{','.join(row)}\n" for row in exported))
    (shown,) = run_all([theirs(broker, "--from-file", str(file), "--dry-run", groups=groups)], tmp_path)
    assert rows(shown.out, 4) == exported
    file.write_text(shown.out)
    assert ours(broker, "--from-file", str(file), "--dry-run", groups=groups) == exported
    # Of one group alone, by a file that has several.
    assert ours(broker, "--from-file", str(file), "--dry-run") == [
        row[1:] for row in exported if row[0] == "g"
    ]
    skipped = ottla(broker, "reset", "--all-groups", "--from-file", str(file), "--dry-run", "--export")
    assert (skipped.exit_code, rows(skipped.stdout, 4)) == (1, exported)
    assert f"{file} has no offsets for group 'i'" in skipped.stderr
    file.write_text("t,0,3\n")
    refused = ottla(broker, "reset", "--all-groups", "--from-file", str(file))
    assert (refused.exit_code, "line 1: must be GROUP,TOPIC," in refused.stderr) == (2, True)


def test_the_same_descriptions_of_all_groups(broker: OneBroker, tmp_path: Path) -> None:
    common = ("--bootstrap-server", broker.bootstrap, "--describe")
    forms = [("--all-groups",), ("--group", "i", "--group", "g"), ("--all-groups", "--state")]
    offsets, two, states = run_all([Command(TOOL, (*common, *form)) for form in forms], tmp_path)

    def reported(printed: str) -> list[list[str]]:
        """GROUP, TOPIC, PARTITION, CURRENT-OFFSET, LOG-END-OFFSET and LAG."""
        lines = [line.split() for line in printed.splitlines()]
        return sorted(words[:6] for words in lines if len(words) == 9 and words[0] != "GROUP")

    def described(*arguments: str) -> list[list[str]]:
        ran = ottla(broker, "describe", *arguments, "--offsets", "-o", "json")
        assert ran.exit_code == 0, ran.output
        keys = ("group", "topic", "partition", "committed", "end", "lag")
        return sorted([str(row[key]) for key in keys] for row in json.loads(ran.stdout))

    assert len(reported(offsets.out)) == len(COMMITTED) + 3
    assert described("--all-groups") == reported(offsets.out)
    assert described("i", "g") == reported(two.out)
    state = json.loads(ottla(broker, "describe", "--all-groups", "--state", "-o", "json").stdout)
    theirs_by_group = {
        line.split()[0]: line.split()[-2:] for line in states.out.splitlines() if "127.0.0.1" in line
    }
    assert {row["group"]: [row["state"], str(row["members"])] for row in state} == theirs_by_group

    whole = ottla(broker, "describe", "g", "nobody", "h")
    assert whole.exit_code == 1
    assert [line.split(":")[0] for line in whole.stdout.splitlines() if line.startswith("group ")] == [
        "group g",
        "group h",
    ]
    assert "there is no group 'nobody'" in whole.stderr
    for wrong in (("describe",), ("describe", "g", "--all-groups"), ("delete",), ("reset", "--to", "latest")):
        assert ottla(broker, *wrong).exit_code == 2


async def join_as_a_connect_worker(broker: OneBroker, group: str) -> None:
    """It is a member until its session expires."""
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="default", metadata=b"")
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=300_000,
        rebalance_timeout_ms=300_000,
        protocol_type="connect",
        protocols=[protocol],
    )
    async with AdminClient(bootstrap_servers=broker.bootstrap) as admin:
        node = (await admin.describe_group(group)).coordinator
        request.member_id = (await admin._brokers.to(node, request)).member_id
        assert not (await admin._brokers.to(node, request)).error_code


def test_groups_with_members_and_those_of_connect_are_skipped(broker: OneBroker, tmp_path: Path) -> None:
    """By resets and by deletions, of Kafka's tool and of ours."""
    everything = {"g": COMMITTED, **OF_OTHERS, "live": {TopicPartition("t", 2): 4}}

    async def ask(fill: bool) -> dict[str, dict[TopicPartition, int]]:
        async with AdminClient(bootstrap_servers=broker.bootstrap) as admin:
            if fill:
                for group, offsets in everything.items():
                    if group != "live" or not (await admin.describe_group("live")).members:
                        (await admin.alter_group_offsets(group, offsets)).raise_first()
            listed = (await admin.list_groups()).raise_first()
            return {
                group.group_id: await admin.group_offsets(group.group_id)
                for share in listed.values()
                for group in share
            }

    assert asyncio.run(ask(fill=True)) == everything
    asyncio.run(join_as_a_connect_worker(broker, "workers"))
    everything["workers"] = {}
    member = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "live", "enable.auto.commit": False}
    )
    member.subscribe(["t"])
    assert wait_until(lambda: member.poll(0.2) is not None or bool(member.assignment()), timeout_s=60)
    common = ("--bootstrap-server", broker.bootstrap, "--all-groups")
    try:
        forms = ("--reset-offsets", "--all-topics", "--to-earliest", "--execute"), ("--delete",)
        for form, our_form, word in (
            (
                forms[0],
                ("reset", "--all-groups", "--all-topics", "--to", "earliest"),
                "live: group 'live' is Stable",
            ),
            (forms[1], ("delete", "--all-groups", "--yes"), "live: NON_EMPTY_GROUP"),
        ):
            asyncio.run(ask(fill=True))
            (shown,) = run_all([Command(TOOL, (*common, *form))], tmp_path)
            assert "live" in shown.out + shown.err
            after = asyncio.run(ask(fill=False))
            assert after["live"] == everything["live"]
            assert after["workers"] == {}
            assert after.get("g") != everything["g"]
            assert asyncio.run(ask(fill=True)) == everything
            ran = ottla(broker, *our_form)
            assert ran.exit_code == 1
            assert word in ran.stderr
            assert "workers" not in ran.output
            assert asyncio.run(ask(fill=False)) == after
    finally:
        member.close()
