"""Kafka 0.8.2's clients and tools against Ottla: consumers that ZooKeeper coordinates.

The high-level consumer assigns partitions by ranges, finds topics by a filter, survives a broker restart, and
migrates its offsets from ZooKeeper to Kafka and back (dual.commit.enabled). Responses to SimpleConsumer and
the tools are compared with those of Apache Kafka 3.9.1 in the same test.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from ottla.cli.main import main
from ottla.client.admin import AdminClient
from ottla.local.cluster import run_admin
from ottla_operator.planning.observed import GroupQuery, GroupState
from ottla_operator.platform.kafka import KafkaAdmin
from tests.judges.brokers_082 import Brokers082, wait_for
from tests.judges.clients_082 import Clients, needs_jars_082, run_tool_082, start_tool_082
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers082]:
    needs_kafka_jars()
    needs_jars_082()
    with ExitStack() as running:
        yield Brokers082(tmp_path_factory.mktemp("brokers"), running)


def test_partitions_are_assigned_by_ranges(brokers: Brokers082) -> None:
    """As consumers come and go, orderly and not; every record reaches one of them."""
    clients, zookeeper = brokers.clients, brokers.ours.zookeeper
    brokers.make_topic("ranges", partitions=5)

    def wait_for_owners(*expected: str) -> None:
        wanted = [f"shared_{name}" for name in expected]
        wait_for(
            lambda: brokers.owners("shared", "ranges", 5) == wanted,
            f"owners {expected}",
            lambda: brokers.owners("shared", "ranges", 5),
        )

    clients.start("a", "shared", "topic:ranges", zookeeper)
    clients.allow("a", 10_000)
    wait_for_owners("a", "a", "a", "a", "a")
    brokers.produce("ranges", 0, 50)
    wait_for(lambda: set(clients.values("a")) == set(range(50)), "all to a", lambda: clients.seen("a"))

    clients.start("b", "shared", "topic:ranges", zookeeper)
    clients.allow("b", 10_000)
    wait_for_owners("a", "a", "a", "b", "b")
    brokers.produce("ranges", 50, 50)
    wait_for(
        lambda: set(clients.values("a", "b")) == set(range(100)),
        "all to both",
        lambda: clients.seen("a", "b"),
    )
    assert {item.split("/")[1] for item in clients.seen("b")} <= {"3", "4"}

    # A third, a console consumer, is killed: its nodes go with its session.
    settings = brokers.directory / "console.properties"
    settings.write_text(
        "group.id=shared\nconsumer.id=c\nzookeeper.session.timeout.ms=4000\n"
        "rebalance.max.retries=40\nrebalance.backoff.ms=500\n"
    )
    console = start_tool_082(
        brokers.directory / "console.log",
        "kafka.tools.ConsoleConsumer",
        *("--zookeeper", zookeeper, "--topic", "ranges", "--consumer.config", str(settings)),
    )
    try:
        wait_for_owners("a", "a", "b", "b", "c")
    finally:
        console.kill()
        console.wait()
    wait_for_owners("a", "a", "a", "b", "b")
    clients.do("stop", "a")
    wait_for_owners("b", "b", "b", "b", "b")
    clients.do("stop", "b")
    assert brokers.tree.get_children("/consumers/shared/ids") == []


def test_a_topic_filter_matches_new_topics_and_a_broker_restarts(brokers: Brokers082) -> None:
    clients = brokers.clients
    brokers.make_topic("found-1", partitions=1)
    brokers.make_topic("other", partitions=1)
    clients.start("f", "filtering", "filter:found-.*", brokers.ours.zookeeper)
    clients.allow("f", 10_000)
    brokers.produce("other", 900, 5)
    brokers.produce("found-1", 0, 20, "gzip")

    def wait_for_values(count: int) -> None:
        """Each at least once: a rebalance may bring some again."""
        seen = lambda: set(clients.values("f"))  # noqa: E731
        wait_for(lambda: seen() == set(range(count)), f"{count} values", seen)

    wait_for_values(20)
    brokers.make_topic("found-2", partitions=2)
    wait_for(lambda: brokers.owners("filtering", "found-2", 2) == ["filtering_f"] * 2, "the second topic")
    brokers.produce("found-2", 20, 20, "snappy", "async")
    wait_for_values(40)

    brokers.broker.kill()
    brokers.broker.start_and_wait()
    brokers.produce("found-1", 40, 10)
    wait_for_values(50)
    clients.do("commit", "f")
    assert brokers.in_zookeeper("filtering", "found-1") == 30
    clients.do("stop", "f")


def test_offsets_move_from_zookeeper_to_kafka_and_back(brokers: Brokers082) -> None:
    """By the steps of the manual: first commit to both, then to Kafka alone; and the same way back."""
    clients, group, topic = brokers.clients, "moving", "moved"
    brokers.make_topic(topic, partitions=1)
    brokers.produce(topic, 0, 60)
    zookeeper, kafka = ["offsets.storage=zookeeper"], ["offsets.storage=kafka", "dual.commit.enabled=false"]
    both = ["offsets.storage=kafka", "dual.commit.enabled=true"]
    taken = 0
    in_zookeeper = in_kafka = -1
    for step, settings in enumerate((zookeeper, both, kafka, both, zookeeper)):
        name = f"m{step}"
        manually = [*settings, "auto.commit.enable=false"]
        clients.start(name, group, f"topic:{topic}", brokers.ours.zookeeper, *manually)
        wait_for(lambda name=name: brokers.owners(group, topic, 1) == [f"{group}_{name}"], f"owner {name}")
        clients.allow(name, 10)
        wait_for(lambda name=name: clients.do("count", name) == "10", f"step {step}")
        values = clients.values(name)
        assert values[0] == taken, f"step {step}: {values}"
        taken = values[-1] + 1
        clients.do("commit", name)
        if settings != kafka:
            in_zookeeper = taken
        if settings != zookeeper:
            in_kafka = taken
        assert brokers.in_zookeeper(group, topic) == in_zookeeper, f"step {step}"
        assert brokers.in_kafka(group, topic) == in_kafka, f"step {step}"
        clients.do("stop", name)


def test_simple_consumers_and_tools_get_kafkas_responses(brokers: Brokers082) -> None:
    clients = brokers.clients
    brokers.make_topic("simple", partitions=2, everywhere=True)
    answers: dict[str, dict[str, str]] = {}
    for name, side in brokers.sides.items():
        reported = answers[name] = {}
        port = side.port
        clients.do("produce", port, "simple", 0, 30, "none", "sync")
        for partition in (0, 7):
            for time, most in ((-1, 5), (-2, 5), (-1, 0), (0, 5)):
                asked = ("before", port, "simple", partition, time, most)
                reported[f"before {partition} {time} {most}"] = clients.do(*asked)
            for offset in (0, 3, 15, 16):
                reported[f"fetch {partition} {offset}"] = clients.do(
                    "fetch", port, "simple", partition, offset
                )
        reported["nothing in ZooKeeper"] = clients.do("kept", 0, port, "old", "simple", 0)
        reported["keep in ZooKeeper"] = clients.do("keep", 0, port, "old", "simple", 0, 4, "meta")
        reported["kept in ZooKeeper"] = clients.do("kept", 0, port, "old", "simple", 0)
        # Version 1 is the coordinator's, which may have to be made first.
        wait_for(lambda port=port: _coordinates(clients, port), f"a coordinator at {name}")
        reported["nothing in Kafka"] = clients.do("kept", 1, port, "old", "simple", 0)
        reported["keep in Kafka"] = clients.do("keep", 1, port, "old", "simple", 1, 5, "meta")
        reported["kept in Kafka"] = clients.do("kept", 1, port, "old", "simple", 1)
        reported["the console"] = run_tool_082(
            "kafka.tools.ConsoleConsumer",
            *("--zookeeper", side.zookeeper, "--topic", "simple", "--from-beginning", "--max-messages", "30"),
        )
        reported["the console"] = " ".join(sorted(reported["the console"].split()))
        reported["its offsets"] = run_tool_082(
            "kafka.tools.ConsumerOffsetChecker",
            *("--zookeeper", side.zookeeper, "--group", "old", "--topic", "simple"),
            *("--socket.timeout.ms", "60000"),
        )
        reported["the ends of its partitions"] = run_tool_082(
            "kafka.tools.GetOffsetShell",
            *("--broker-list", f"127.0.0.1:{port}", "--topic", "simple", "--time", "-1"),
            *("--max-wait-ms", "60000"),  # 1 s by itself
        )
    kafka, ours = answers["Apache Kafka"], answers["Ottla"]
    differing = [label for label in kafka if ours[label] != kafka[label]]
    assert not differing, "\n".join(f"{x}:\n  Kafka {kafka[x]!r}\n  ours  {ours[x]!r}" for x in differing)
    assert ours["kept in ZooKeeper"].startswith("0 4")
    assert ours["kept in Kafka"] == "0 5 meta"
    assert ours["its offsets"].split("\n")[1].split()[2:6] == ["0", "4", "15", "11"]


def test_groups_in_zookeeper_are_shown_with_their_lag(brokers: Brokers082) -> None:
    """Kafka's own position checker of that time is the oracle."""
    clients, zookeeper = brokers.clients, brokers.ours.zookeeper
    brokers.make_topic("positions", partitions=3)
    brokers.produce("positions", 0, 30)
    clients.start("reads", "checked", "topic:positions", zookeeper, "auto.commit.interval.ms=100")
    clients.allow("reads", 12)
    committed = [f"/consumers/checked/offsets/positions/{partition}" for partition in range(3)]
    wait_for(
        lambda: sum(int(brokers.node(path) or 0) for path in committed) == 12,
        "the commits",
        lambda: [brokers.node(path) for path in committed],
    )
    brokers.produce("positions", 30, 3)

    def reported(*words: str) -> Any:
        to = ["--zookeeper", zookeeper, "-b", f"127.0.0.1:{brokers.ours.port}", "-o", "json"]
        result = CliRunner().invoke(main, ["groups", *words, *to])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    found = reported("describe", "checked")
    checker = run_tool_082(
        "kafka.tools.ConsumerOffsetChecker",
        *("--zookeeper", zookeeper, "--group", "checked", "--socket.timeout.ms", "60000"),
    )
    assert [line.split() for line in checker.splitlines()[1:]] == [
        ["checked", *(str(row[name]) for name in ("topic", "partition", "committed", "end", "lag", "member"))]
        for row in found["partitions"]
    ]
    assert (found["state"], found["lag"]) == ("Stable", 33 - 12)
    (member,) = found["members"]
    assert member == {"member": "checked_reads", "topics": ["positions"], "partitions": 3}
    listed = reported("list")
    assert {"group": "checked", "state": "Stable"} in listed
    everything = reported("describe", "--all-groups")
    assert [group["group"] for group in everything] == [row["group"] for row in listed]
    assert found in everything

    with urllib.request.urlopen(f"http://127.0.0.1:{brokers.http_port}/metrics", timeout=60) as response:
        families = {each.name: each for each in text_string_to_metric_families(response.read().decode())}

    def samples(family: str) -> dict[str, float]:
        return {
            each.labels.get("partition", ""): each.value
            for each in families[f"kafka_consumergroupzookeeper_{family}"].samples
            if each.labels["consumergroup"] == "checked"
        }

    rows = found["partitions"]
    assert samples("lag_zookeeper") == {str(row["partition"]): row["lag"] for row in rows}
    assert samples("current_offset_zookeeper") == {str(row["partition"]): row["committed"] for row in rows}
    assert samples("members") == {"": 1}

    observed = asyncio.run(observe(brokers.ours.port, "checked", "nobody"))
    assert (observed["checked"].state, observed["checked"].lags) == ("Unknown", {"positions": 33 - 12})
    assert (observed["nobody"].state, observed["nobody"].lags) == ("Dead", {})

    clients.do("stop", "reads")
    wait_for(lambda: reported("describe", "checked")["state"] == "Empty", "the member to be gone")
    to = ["--zookeeper", zookeeper, "-b", f"127.0.0.1:{brokers.ours.port}"]
    nothing = CliRunner().invoke(main, ["groups", "describe", "nobody", "checked", *to])
    assert nothing.exit_code == 1
    assert "group checked: Empty" in nothing.output
    assert f"there is no group 'nobody' in ZooKeeper at {zookeeper}" in nothing.output
    assert brokers.node("/consumers/nobody") is None


async def observe(port: int, *groups: str) -> Mapping[str, GroupState]:
    """As the operator observes groups whose resources say that they commit to ZooKeeper."""
    admin = KafkaAdmin()
    try:
        queries = dict.fromkeys(groups, GroupQuery(in_zookeeper=True))
        return (await admin.observe([("127.0.0.1", port)], queries)).groups
    finally:
        await admin.close()


def _coordinates(clients: Clients, port: int) -> bool:
    """Whether group `old` has a coordinator: that is the one broker there is."""
    run_admin([("127.0.0.1", port)], _find_coordinator)
    return clients.do("kept", 1, port, "old", "simple", 0).split()[0] == "0"


async def _find_coordinator(client: AdminClient) -> None:
    await client.group_offsets("old")
