"""Transaction requests to Apache Kafka 3.9.1 and to Ottla: every response is the same.

One broker of each kind; raw requests, so that invalid requests are compared as well.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ottla.cli.main import main
from ottla.protocol import messages as m
from tests.judges.kafka_tools import Command, Printed, run_all
from tests.judges.request_recorder import (
    RequestRecorder,
    commit,
    fetch_offsets,
    join,
    kafka_and_ottla,
    same,
    side_by_side,
    sync,
    until,
    until_led,
)
from tests.judges.transaction_requests import (
    PRODUCER,
    Producer,
    add,
    add_many,
    add_offsets,
    batch,
    commit_offset,
    end,
    init,
    initialized,
    marker,
    produce,
    wait_for_stable_offset,
    wait_for_state,
    wait_for_transaction_coordinator,
)
from tests.oracles import needs_kafka_jars

SETTINGS = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "3",
    "auto.create.topics.enable": "false",
}
TOPICS = ("t", "u", "v", "w", "x", "y")
TIMES = (*PRODUCER, "transaction_start_time_ms")
pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    needs_kafka_jars()
    directory: Path = tmp_path_factory.mktemp("transactions")
    with kafka_and_ottla(directory, SETTINGS) as by_name:
        side_by_side(by_name, prepare)
        yield by_name


async def prepare(recorder: RequestRecorder) -> None:
    row = m.CreateTopicsRequest.CreatableTopic
    topics = [row(name=name, num_partitions=2, replication_factor=1) for name in TOPICS]
    await recorder.send("anna", m.CreateTopicsRequest(topics=topics, timeout_ms=20_000), 5)
    await until_led(recorder, TOPICS)
    await wait_for_transaction_coordinator(recorder)
    await recorder.wait_for_coordinator()


def test_init_producer_id(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        await recorder.ask("no id at all", "anna", init(""), 4)
        for timeout_ms in (0, -1, 900_001):
            await recorder.ask(f"timeout {timeout_ms}", "anna", init("i", timeout_ms=timeout_ms), 4)
        await recorder.ask("half given", "anna", init("i", producer_id=5), 4)
        await recorder.ask("half given, the other half", "anna", init("i", epoch=5), 4)
        await recorder.ask(
            "given, and unknown", "anna", init("i-new", producer_id=5, epoch=7), 4, ignoring=PRODUCER
        )
        for version in range(6):
            await recorder.ask(f"v{version}", "anna", init("i"), version, ignoring=PRODUCER)
        one = await initialized(recorder, "i")
        for version in (3, 4, 5):
            unknown_producer = init("i", producer_id=one.id + 500, epoch=one.epoch)
            await recorder.ask(f"another producer, v{version}", "anna", unknown_producer, version)
            late = init("i", producer_id=one.id, epoch=one.epoch - 1)
            await recorder.ask(f"an epoch of old, v{version}", "anna", late, version)
        goes_on = init("i", producer_id=one.id, epoch=one.epoch)
        for label in ("goes on", "asks again", "and again"):
            await recorder.ask(label, "anna", goes_on, 4, ignoring=PRODUCER)
        await recorder.ask("another begins", "anna", init("i"), 4, ignoring=PRODUCER)
        await recorder.ask("so that the first is fenced", "anna", goes_on, 4)
        two = await initialized(recorder, "i")
        await recorder.send("anna", add(two, {"t": [0]}), 3)
        await recorder.ask("in the midst of a transaction", "anna", init("i"), 4)
        await wait_for_state(recorder, "i", "CompleteAbort")
        await recorder.ask("once that is aborted", "anna", init("i"), 4, ignoring=PRODUCER)
        await recorder.ask("what the first hears", "anna", end(two, commit=True), 3)

    same(ports, scenario)


def test_partitions_are_added(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        one = await initialized(recorder, "a")
        for version in range(4):
            for label, producer in (
                ("no id", one._replace(transactional_id="")),
                ("unknown id", one._replace(transactional_id="a-unknown")),
                ("another producer", one._replace(id=one.id + 500)),
                ("an epoch of old", one._replace(epoch=one.epoch - 1)),
                ("an epoch to come", one._replace(epoch=one.epoch + 1)),
            ):
                request = add(producer, {"t": [0, 1]})
                await recorder.ask(f"{label}, v{version}", "anna", request, version)
                await recorder.ask(
                    f"offsets: {label}, v{version}", "anna", add_offsets(producer, "g"), version
                )
            unknown = add(one, {"t": [0, 9], "nope": [0]})
            await recorder.ask(f"unknown partitions, v{version}", "anna", unknown, version)
            await recorder.ask(
                f"added, v{version}", "anna", add(one, {"t": [0], "u": [version % 2]}), version
            )
            await recorder.ask(f"offsets added, v{version}", "anna", add_offsets(one, "g"), version)
        await recorder.ask("no partitions", "anna", add(one, {}), 3)
        describe = m.DescribeTransactionsRequest(transactional_ids=["a", "a-unknown", ""])
        await recorder.ask("the transaction", "anna", describe, 0, ignoring=TIMES)
        await recorder.ask("aborted", "anna", end(one, commit=False), 3)

    same(ports, scenario)


def test_partitions_are_verified(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        one, two = await initialized(recorder, "v1"), await initialized(recorder, "v2")
        three = await initialized(recorder, "v3")
        await recorder.send("anna", add(one, {"t": [0]}), 3)
        for version in (4, 5):
            for verify_only in (True, False):
                request = add_many(
                    (one, {"t": [0, 1]}),
                    (two._replace(epoch=two.epoch + 3), {"u": [0]}),
                    (two._replace(transactional_id="v-unknown"), {"u": [0]}),
                    (three, {"nope": [0], "u": [1]}),
                    (three._replace(transactional_id=""), {"u": [1]}),
                    verify_only=verify_only,
                )
                await recorder.ask(f"v{version}, {verify_only}", "anna", request, version)
            both = add_many((two, {"u": [version % 2]}), (one, {"t": [0, 1]}), verify_only=False)
            await recorder.ask(f"added for two, v{version}", "anna", both, version)
            await recorder.ask(
                f"verified, v{version}", "anna", add_many((two, {"u": [0, 1]}), verify_only=True), version
            )
        for producer in (one, two):
            await recorder.ask(f"end of {producer.transactional_id}", "anna", end(producer, commit=False), 3)

    same(ports, scenario)


def test_end_txn(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        one = await initialized(recorder, "e")
        for version in range(5):
            for label, producer in (
                ("no id", one._replace(transactional_id="")),
                ("unknown id", one._replace(transactional_id="e-unknown")),
                ("another producer", one._replace(id=one.id + 500)),
                ("an epoch of old", one._replace(epoch=one.epoch - 1)),
                ("an epoch to come", one._replace(epoch=one.epoch + 1)),
            ):
                await recorder.ask(f"{label}, v{version}", "anna", end(producer, commit=True), version)
        for commits in (True, False):
            await recorder.ask(f"nothing to end: {commits}", "anna", end(one, commit=commits), 3)
        for commits, state in ((True, "CompleteCommit"), (False, "CompleteAbort")):
            await recorder.ask(f"added: {commits}", "anna", add(one, {"t": [0], "u": [1]}), 3)
            await recorder.ask(f"ended: {commits}", "anna", end(one, commit=commits), 3)
            await wait_for_state(recorder, "e", state)
            await recorder.ask(f"again: {commits}", "anna", end(one, commit=commits), 3)
            await recorder.ask(f"the other way: {commits}", "anna", end(one, commit=not commits), 3)
            describe = m.DescribeTransactionsRequest(transactional_ids=["e"])
            await recorder.ask(f"described: {commits}", "anna", describe, 0, ignoring=TIMES)
        await recorder.ask("an empty transaction", "anna", add(one, {}), 3)
        await recorder.ask("is committed", "anna", end(one, commit=True), 3)

    same(ports, scenario)


def test_batches_need_a_transaction(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        one, two = await initialized(recorder, "b1"), await initialized(recorder, "b2")
        for version in (3, 7, 9, 10, 11):
            early = produce("b1", "v", {0: batch(one, 0, b"early")})
            await recorder.ask(f"not added, v{version}", "anna", early, version)
        nameless = produce(None, "v", {0: batch(one, 0, b"x"), 1: batch(one, 0, b"x")})
        await recorder.ask("without a transactional id", "anna", nameless, 9)
        mixed_ids = produce("b1", "v", {0: batch(one, 0, b"x"), 1: batch(two, 0, b"x")})
        await recorder.ask("of two producers", "anna", mixed_ids, 9)
        await recorder.send("anna", add(one, {"v": [0]}), 3)
        half = produce("b1", "v", {0: batch(one, 0, b"one"), 1: batch(one, 0, b"one")})
        await recorder.ask("one of two was added", "anna", half, 9)
        await recorder.ask("the next", "anna", produce("b1", "v", {0: batch(one, 1, b"two")}), 11)
        await recorder.ask("a duplicate", "anna", produce("b1", "v", {0: batch(one, 1, b"two")}), 9)
        await recorder.ask(
            "a gap", "anna", produce("b1", "v", {0: batch(one, 5, b"two")}), 9, ignoring=OTHERS_WORDS
        )
        plain = produce(None, "v", {0: batch(one, 2, b"plain", transactional=False)})
        await recorder.ask("outside of the transaction", "anna", plain, 9, ignoring=OTHERS_WORDS)
        named = produce("b1", "v", {0: batch(two, 0, b"plain", transactional=False)})
        await recorder.ask("a plain batch under a transactional id", "anna", named, 9)
        unknown_producer = produce("b2", "v", {1: batch(one._replace(epoch=one.epoch + 1), 0, b"x")})
        await recorder.ask("under another's id", "anna", unknown_producer, 9)
        await recorder.ask("committed", "anna", end(one, commit=True), 3)
        await wait_for_state(recorder, "b1", "CompleteCommit")
        await recorder.ask("too late", "anna", produce("b1", "v", {0: batch(one, 2, b"late")}), 10)
        await recorder.ask("too late, v11", "anna", produce("b1", "v", {0: batch(one, 2, b"late")}), 11)
        await recorder.send("anna", add(one, {"v": [0]}), 3)
        later = produce("b1", "v", {0: batch(one, 3, b"three")})
        await recorder.ask("what comes before was refused", "anna", later, 9, ignoring=OTHERS_WORDS)
        await recorder.ask("and comes again", "anna", produce("b1", "v", {0: batch(one, 2, b"late")}), 9)
        newer = await begun_again(recorder, one)
        await recorder.ask("the fenced one", "anna", produce("b1", "v", {0: batch(one, 3, b"x")}), 9)
        await recorder.send("anna", add(newer, {"v": [0]}), 3)
        await recorder.ask("the new one", "anna", produce("b1", "v", {0: batch(newer, 0, b"new")}), 9)
        await recorder.ask(
            "the fenced one, v11",
            "anna",
            produce("b1", "v", {0: batch(one, 3, b"x")}),
            11,
            ignoring=OTHERS_WORDS,
        )
        await recorder.ask("aborted", "anna", end(newer, commit=False), 3)
        await wait_for_state(recorder, "b1", "CompleteAbort")
        producers = m.DescribeProducersRequest.TopicRequest(name="v", partition_indexes=[0])
        answer = await recorder.send("anna", m.DescribeProducersRequest(topics=[producers]), 0)
        recorder.note("producers", answer, ignoring=(*PRODUCER, "last_timestamp"))

    same(ports, scenario)


OTHERS_WORDS = ("error_message",)
"""What logs find fault with, each broker says in its own words."""


async def begun_again(recorder: RequestRecorder, producer: Producer) -> Producer:
    """The next producer, once the transaction of the last is aborted."""
    await recorder.send("anna", init(producer.transactional_id), 4)
    await wait_for_state(recorder, producer.transactional_id, "CompleteAbort")
    return await initialized(recorder, producer.transactional_id)


def test_offsets_in_a_transaction(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        one = await initialized(recorder, "o")
        stable = fetch_offsets("go", {"t": [0]})
        stable.require_stable = True
        for version in range(5):
            await recorder.ask(f"not added, v{version}", "anna", commit_offset(one, "go", 5), version)
        await recorder.send("anna", add_offsets(one, "go"), 3)
        await recorder.ask("no group", "anna", commit_offset(one, "", 5), 3)
        await recorder.ask("unknown topic", "anna", commit_offset(one, "go", 5, topic="nope"), 3)
        await recorder.ask("unknown partition", "anna", commit_offset(one, "go", 5, partition=9), 3)
        await recorder.ask("metadata", "anna", commit_offset(one, "go", 5, metadata="x" * 5000), 3)
        for version in range(5):
            await recorder.ask(f"pending, v{version}", "anna", commit_offset(one, "go", 5 + version), version)
        await recorder.ask("who needs certainty waits", "bert", stable, 7)
        await recorder.ask("who does not sees nothing", "bert", fetch_offsets("go", {"t": [0]}), 7)
        await recorder.ask("all of the group", "bert", fetch_offsets("go", None), 7)
        await recorder.ask("committed", "anna", end(one, commit=True), 3)
        await wait_for_state(recorder, "o", "CompleteCommit")

        async def is_committed() -> bool:
            answer = await recorder.send("bert", stable, 7)
            return bool(answer.topics[0].partitions[0].error_code == 0)

        await until(is_committed)
        await recorder.ask("there it is", "bert", stable, 7)
        await recorder.send("anna", add_offsets(one, "go"), 3)
        await recorder.ask("pending again", "anna", commit_offset(one, "go", 50), 3)
        await recorder.ask("a plain commit meanwhile", "bert", commit("go", -1, "", 20), 8)
        await recorder.ask("aborted", "anna", end(one, commit=False), 3)
        await wait_for_state(recorder, "o", "CompleteAbort")
        await until(is_committed)
        await recorder.ask("as it was", "bert", stable, 7)
        await recorder.ask("too late", "anna", commit_offset(one, "go", 60), 3)

    same(ports, scenario)


def test_members_commit_in_a_transaction(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        member = str((await recorder.send("carl", join("gm"), 9)).member_id)
        joined = await recorder.send("carl", join("gm", member), 9)
        assert joined.error_code == 0
        await recorder.send("carl", sync("gm", 1, member, {member: b"all"}), 5)
        one = await initialized(recorder, "om")
        await recorder.send("anna", add_offsets(one, "gm"), 3)
        for label, generation, who in (
            ("the member", 1, member),
            ("another generation", 7, member),
            ("no generation", -1, member),
            ("a stranger", 1, "stranger"),
            ("a generation of nobody", 1, ""),
            ("nobody", -1, ""),
        ):
            request = commit_offset(one, "gm", 5, generation=generation, member=who)
            await recorder.ask(label, "anna", request, 3)
        await recorder.ask("aborted", "anna", end(one, commit=False), 3)

    same(ports, scenario)


def test_markers_as_raw_requests(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        await initialized(recorder, "m")
        one = await initialized(recorder, "m")
        await recorder.send("anna", add(one, {"w": [0]}), 3)
        await recorder.ask("a record", "anna", produce("m", "w", {0: batch(one, 0, b"x")}), 9)
        await recorder.ask("nothing", "anna", m.WriteTxnMarkersRequest(), 1)
        for version in (0, 1):
            unknown = marker(one, {"w": [9], "nope": [0]}, commit=True)
            await recorder.ask(f"unknown partitions, v{version}", "anna", unknown, version)
        fenced = marker(one._replace(epoch=one.epoch - 1), {"w": [0]}, commit=True)
        await recorder.ask("an epoch of old", "anna", fenced, 1)
        abort = marker(one, {"w": [0, 1], "nope": [0]}, commit=False, coordinator_epoch=5)
        await recorder.ask("an abort", "anna", abort, 1)
        await recorder.ask("an older coordinator", "anna", marker(one, {"w": [0]}, commit=True), 0)
        await wait_for_stable_offset(recorder, "w", 0, 2)
        producers = m.DescribeProducersRequest.TopicRequest(name="w", partition_indexes=[0, 1])
        answer = await recorder.send("anna", m.DescribeProducersRequest(topics=[producers]), 0)
        recorder.note("producers", answer, ignoring=(*PRODUCER, "last_timestamp"))

    same(ports, scenario)


def test_list_transactions(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        one, two = await initialized(recorder, "l1"), await initialized(recorder, "l2")
        await recorder.send("anna", add(one, {"t": [0]}), 3)
        await recorder.send("anna", add(two, {"t": [0]}), 3)
        await recorder.send("anna", end(two, commit=True), 3)
        await wait_for_state(recorder, "l2", "CompleteCommit")
        ours = {one.id, two.id}
        for label, fields in (
            ("all", {}),
            ("ongoing", {"state_filters": ["Ongoing"]}),
            ("unknown states", {"state_filters": ["ongoing", "PrepareEpochFence", "CompleteCommit"]}),
            ("nothing known", {"state_filters": ["x"]}),
        ):
            request = m.ListTransactionsRequest(producer_id_filters=sorted(ours), **fields)  # type: ignore[arg-type]
            await recorder.ask(label, "anna", request, 1, ignoring=PRODUCER)
            await recorder.ask(f"{label}, v0", "anna", request, 0, ignoring=PRODUCER)
        old = m.ListTransactionsRequest(producer_id_filters=sorted(ours), duration_filter=10**9)
        await recorder.ask("older than that", "anna", old, 1, ignoring=PRODUCER)
        none = m.ListTransactionsRequest(producer_id_filters=[10**9])
        await recorder.ask("of nobody", "anna", none, 1)
        await recorder.ask("aborted", "anna", end(one, commit=False), 3)

    same(ports, scenario)


TOOL = "org.apache.kafka.tools.TransactionsCommand"
VERIFICATION = "transaction.partition.verification.enable"


async def verify(recorder: RequestRecorder, enabled: bool) -> None:
    """Set whether first batches are verified, while the broker runs."""
    setting = m.IncrementalAlterConfigsRequest.AlterableConfig(name=VERIFICATION, value=str(enabled).lower())
    row = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=4, resource_name="", configs=[setting]
    )
    answer = await recorder.send("anna", m.IncrementalAlterConfigsRequest(resources=[row]), 1)
    assert answer.responses[0].error_code == 0, answer


async def hang(recorder: RequestRecorder, prefix: str = "k") -> None:
    """Producers of a tool's story: one whose transaction is open, one whose is over, and one that hangs: in a
    log, where its coordinator knows nothing of it."""
    ids = [f"{prefix}-{name}" for name in ("open", "over", "hanging")]
    one, two, hanging = [await initialized(recorder, name) for name in ids]
    for producer in (one, two):
        await recorder.send("anna", add(producer, {"x": [0]}), 3)
        answer = await recorder.send("anna", produce(producer[0], "x", {0: batch(producer, 0, b"x")}), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
    await recorder.send("anna", end(two, commit=True), 3)
    await wait_for_state(recorder, ids[1], "CompleteCommit")
    await verify(recorder, False)

    async def slipped_in() -> bool:
        request = produce(ids[2], "x", {1: batch(hanging, 0, b"hangs")})
        answer = await recorder.send("anna", request, 9)
        return bool(answer.responses[0].partition_responses[0].error_code == 0)

    await until(slipped_in)
    recorder.note("ids", {str(each.id): each.transactional_id for each in (one, two, hanging)})


async def verify_again(recorder: RequestRecorder) -> None:
    await verify(recorder, True)

    numbers = itertools.count()

    async def refused() -> bool:
        name = f"k-late-{next(numbers)}"  # One that slipped in goes on unasked.
        other = await initialized(recorder, name)
        answer = await recorder.send("anna", produce(name, "y", {0: batch(other, 0, b"late")}), 9)
        return bool(answer.responses[0].partition_responses[0].error_code)

    await until(refused)


COMMANDS = (
    "list",
    "describe --transactional-id k-open",
    "describe --transactional-id k-over",
    "describe --transactional-id k-nobody",
    "describe-producers --topic x --partition 0",
    "find-hanging --broker-id 0",
    "find-hanging --topic x",
    "abort --topic x --partition 1 --start-offset 77",
    "abort --topic x --partition 1 --start-offset 0",
    "find-hanging --topic x --partition 1",
    "describe-producers --topic x --partition 1",
)


def words(text: str, names: dict[str, str]) -> list[list[str]]:
    """What is printed, row by row, without what hangs on the moment; producer ids by name."""

    def shown(word: str) -> str:
        bare = word.strip("(),;.=")
        if bare in names:
            return names[bare]
        # Times and durations, of a second and more: the virtual machine has started meanwhile.
        return "#" if bare.isdigit() and int(bare) > 90 else word

    return sorted([shown(word) for word in line.split()] for line in text.splitlines())


def test_kafka_transactions_sh(ports: dict[str, int], tmp_path: Path) -> None:
    ids = {name: answers["ids"] for name, answers in side_by_side(ports, hang).items()}

    def ask(name: str) -> list[Printed]:
        commands = [
            Command(TOOL, ["--bootstrap-server", f"127.0.0.1:{ports[name]}", *line.split()])
            for line in COMMANDS
        ]
        directory = tmp_path / name.split()[0]
        directory.mkdir()
        return run_all(commands, directory)

    with ThreadPoolExecutor() as pool:
        kafka, ours = pool.map(ask, ("Apache Kafka", "Ottla"))
    side_by_side(ports, verify_again)
    for line, theirs, mine in zip(COMMANDS, kafka, ours, strict=True):
        assert mine.status == theirs.status, (line, mine, theirs)
        if line.startswith("list"):
            continue  # Of all tests' ids: compared below.
        assert words(mine.out, ids["Ottla"]) == words(theirs.out, ids["Apache Kafka"]), line
    listed = [
        [row for row in words(each[0].out, ids[name]) if row[0] in ("TransactionalId", *names)]
        for each, name, names in (
            (kafka, "Apache Kafka", ids["Apache Kafka"].values()),
            (ours, "Ottla", ids["Ottla"].values()),
        )
    ]
    assert listed[0] == listed[1]
    assert len(listed[0]) == 4
    shown = dict(zip(COMMANDS, ours, strict=True))
    assert "x" in shown["find-hanging --topic x"].out
    assert ours[-3].status == 0, "the hanging transaction is ended"


def test_ottla_transactions_prints_what_kafkas_tool_prints(ports: dict[str, int], tmp_path: Path) -> None:
    """Of both brokers, so that it is not our broker's opinion of itself."""
    side_by_side(ports, lambda recorder: hang(recorder, "o"))
    for name, port in ports.items():
        address = f"127.0.0.1:{port}"

        def ottla(*words: str, address: str = address) -> Result:
            return CliRunner().invoke(main, ["transactions", *words, "-b", address, "-o", "json"])

        def rows(*words: str) -> list[list[str]]:
            reported = json.loads(ottla(*words).stdout)
            return sorted([str(value) for value in row.values()] for row in reported)

        def asked(*lines: str, address: str = address) -> list[list[list[str]]]:
            commands = [Command(TOOL, ["--bootstrap-server", address, *line.split()]) for line in lines]
            printed = run_all(commands, tmp_path)
            return [sorted(line.split() for line in shown.out.splitlines()[1:]) for shown in printed]

        hanging, listed, described, producers = asked(
            "find-hanging --topic x",
            "list",
            "describe --transactional-id o-open",
            "describe-producers --topic x --partition 0",
        )
        mine = rows("hanging", "x")
        # Theirs end with the duration; ours have the last sequence, which theirs have not.
        assert [[*row[:5], row[7], row[6]] for row in mine] == [row[:7] for row in hanging], name
        assert len(mine) == 1
        assert rows("list") == listed
        open_one = json.loads(ottla("describe", "o-open").stdout)
        assert open_one["partitions"] == ["x-0"]
        assert [str(value) for value in open_one.values()][:7] == described[0][:7]
        assert rows("producers", "x", "--partition", "0") == sorted(
            ["x", "0", *row[:5], row[5]] for row in producers
        )
        refused = ottla("abort", "x", "1", "--start-offset", "77")
        assert (refused.exit_code, "no transaction of x-1 begins at offset 77" in refused.output) == (1, True)
        start = mine[0][-1]
        assert ottla("abort", "x", "1", "--start-offset", start).exit_code == 0
        assert asked("find-hanging --topic x --partition 1") == [[]]
        assert rows("hanging", "x") == []
    side_by_side(ports, verify_again)
