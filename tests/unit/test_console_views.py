"""The console's view models: snapshots and queries to rows, states and charts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ottla.client import errors
from ottla.client.admin_types import (
    ClusterDescription,
    ConfigEntry,
    ConfigSynonym,
    GroupListing,
    ListedOffset,
    LogDirDescription,
    ProducerState,
    QuotaEntity,
    Reassignment,
    ReplicaInfo,
    TopicDescription,
    TopicPartition,
    TransactionDescription,
    TransactionListing,
)
from ottla.security import jaas
from ottla.security.acls import (
    AclBinding,
    Entry,
    Operation,
    Permission,
    ResourcePattern,
    ResourceType,
)
from ottla_console.cluster.collector import pause_s
from ottla_console.cluster.credentials import Password
from ottla_console.cluster.problems import Kind, Need, Problem, problem_of
from ottla_console.cluster.rates import Counts, History, Point, point_between
from ottla_console.cluster.snapshot import Part, Snapshot
from ottla_console.pages.acls.view import acls_of
from ottla_console.pages.brokers.list_view import list_of as brokers_list
from ottla_console.pages.groups.view import groups_of
from ottla_console.pages.overview.view import overview_of
from ottla_console.pages.partitions.view import partitions_of
from ottla_console.pages.quotas.view import quotas_of
from ottla_console.pages.reassignments.view import reassignments_of
from ottla_console.pages.topics import favourites
from ottla_console.pages.topics.topic_view import permitted
from ottla_console.pages.topics.view import topics_of
from ottla_console.pages.transactions.view import (
    held_back,
    held_of,
    ids_of,
    ongoing,
    producers_of,
    transaction_of,
    transactions_of,
)
from ottla_console.views import charts, formats
from ottla_console.views.configs import readable, settings_table
from ottla_console.views.tables import Column, Query, table_of
from tests.worlds.console_cluster import NODES, FakeCluster

TOPIC = FakeCluster.topic


def snapshot(**parts: Any) -> Snapshot:
    """Three brokers and three topics in sync; `parts` replace the values of parts."""
    values: dict[str, Any] = {
        "cluster": ClusterDescription("id", 1, NODES),
        "topics": {name: TOPIC(name) for name in ("a", "b", "__internal")},
        "log_dirs": {},
        "end_offsets": {},
        "groups": {},
        "committed": {},
        **parts,
    }
    taken: dict[str, Any] = {name: Part(value, (), 1) for name, value in values.items()}
    return Snapshot(**taken)


NO_LEADER = TOPIC("a", isr=(), leader=-1)
BEHIND = TOPIC("b", isr=(0, 1))
FULL = {0: (LogDirDescription("/data", None, 100, 5, {}),)}


@pytest.mark.parametrize(
    ("parts", "level", "title"),
    [
        ({}, "ok", "All partitions are in sync"),
        ({"topics": {"b": BEHIND}}, "warn", "3 partitions not in sync"),
        ({"topics": {"a": NO_LEADER, "b": BEHIND}}, "alarm", "3 partitions offline"),
        ({"cluster": ClusterDescription("id", -1, NODES)}, "alarm", "No controller"),
        ({"cluster": ClusterDescription("id", 1, NODES[:2])}, "warn", "Broker 2 is away"),
        ({"log_dirs": FULL}, "warn", "The disk of broker 0 is over 90 % full"),
        ({"cluster": None}, "unknown", "Asking the brokers"),
        ({"topics": None}, "unknown", "The topics are not known"),
    ],
)
def test_the_overview_says_the_worst_first(parts: dict[str, Any], level: str, title: str) -> None:
    state = overview_of(snapshot(**parts)).state
    assert (state.level, state.title) == (level, title)


def test_a_cluster_that_stops_responding_is_an_alarm_with_what_was_known() -> None:
    lost = problem_of(errors.NetworkError("refused"), "the brokers")
    known = snapshot()
    view = overview_of(replace(known, cluster=Part(known.cluster.value, (lost,), 1)))
    assert view.state.title == "No broker responds any more"
    assert len(view.brokers) == 3
    assert view.problems == (lost,)


def test_a_broker_that_is_away_is_listed_with_its_replicas() -> None:
    view = overview_of(snapshot(cluster=ClusterDescription("id", 1, NODES[:2])))
    assert [(row.id, row.online, row.replicas, row.controller) for row in view.brokers] == [
        (0, True, 9, False),
        (1, True, 9, True),
        (2, False, 9, False),
    ]


MOVED = Point(
    1.0,
    30.0,
    10.0,
    12.0,
    broker_bytes={0: 7.0, 1: 3.0},
    broker_records_in={0: 10.0, 2: 20.0},
    broker_records_out={0: 12.0},
)


@pytest.mark.parametrize(
    ("params", "ids"),
    [
        ({}, [0, 2, 1]),
        ({"sort": "-in"}, [2, 0, 1]),
        ({"sort": "-written"}, [0, 1, 2]),
        ({"q": "broker-2"}, [2]),
    ],
)
def test_the_hottest_broker_is_first_by_the_records_of_the_partitions_that_it_leads(
    params: dict[str, str], ids: list[int]
) -> None:
    given = replace(snapshot(log_dirs={0: (), 1: (), 2: ()}), history=History((MOVED,)))
    view = brokers_list(given, Query.of(params))
    assert [row.broker.id for row in view.table.rows] == ids
    assert view.hottest is not None
    assert (view.hottest.id, round(view.hottest_share, 2)) == (0, 0.52)


def test_an_idle_cluster_has_no_hottest_broker() -> None:
    view = brokers_list(replace(snapshot(), history=History((Point(1.0, 0.0, 0.0, 0.0),))), Query())
    assert (view.hottest, [row.broker.id for row in view.table.rows]) == (None, [0, 1, 2])


def test_records_count_for_the_leader_of_their_partition() -> None:
    before = Counts(0.0, {tp("a"): 1, tp("b"): 5}, committed={("g", tp("a")): 1})
    leaders = {tp("a"): 2, tp("b"): 0}
    after = Counts(2.0, {tp("a"): 9, tp("b"): 5}, committed={("g", tp("a")): 5}, leaders=leaders)
    point = point_between(before, after)
    assert (point.broker_records_in, point.broker_records_out) == ({2: 4.0}, {2: 2.0})


def _acl(principal: str, operation: Operation, permission: Permission, host: str = "*") -> AclBinding:
    return AclBinding(ResourcePattern(ResourceType.TOPIC, "a"), Entry(principal, host, operation, permission))


ALLOW, DENY = Permission.ALLOW, Permission.DENY


@pytest.mark.parametrize(
    ("acls", "writers"),
    [
        ([], ()),
        (
            [_acl("User:b", Operation.WRITE, ALLOW), _acl("User:a", Operation.ALL, ALLOW)],
            ("User:a", "User:b"),
        ),
        ([_acl("User:a", Operation.READ, ALLOW)], ()),
        ([_acl("User:a", Operation.WRITE, ALLOW), _acl("User:a", Operation.ALL, DENY)], ()),
        (
            [_acl("User:a", Operation.WRITE, ALLOW), _acl("User:a", Operation.WRITE, DENY, "10.0.0.1")],
            ("User:a",),
        ),
        ([_acl("User:*", Operation.WRITE, ALLOW), _acl("User:*", Operation.WRITE, DENY)], ()),
        ([_acl("User:a", Operation.WRITE, ALLOW, "10.0.0.1")], ("User:a from 10.0.0.1",)),
    ],
)
def test_who_may_write_follows_the_acls(acls: list[AclBinding], writers: tuple[str, ...]) -> None:
    assert permitted(acls, Operation.WRITE) == writers


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("retention.ms", "604800000", "7 d"),
        ("retention.ms", "-1", ""),
        ("segment.ms", str(2**63 - 1), ""),
        ("segment.bytes", "1073741824", "1.0 GiB"),
        ("cleanup.policy", "delete", ""),
        ("min.insync.replicas", "2000", ""),
        ("retention.ms", None, ""),
    ],
)
def test_settings_in_milliseconds_and_bytes_are_readable(name: str, value: str | None, text: str) -> None:
    assert readable(name, value) == text


def test_the_producer_whose_transaction_began_first_holds_the_last_stable_offset_back() -> None:
    def state(producer: int, start: int) -> ProducerState:
        return ProducerState(producer, 0, 5, 1_000, 0, start)

    found = {tp("a", 0): (state(7, 30), state(8, 20), state(9, -1)), tp("a", 1): (state(9, -1),)}
    ids = ids_of(Part({0: (TransactionListing("payments-1", 8, "Ongoing"),)}, (), 1))
    view = producers_of("a", False, Part(found, (), 1), 2_000, Query(), ends={tp("a", 0): 50}, ids=ids)
    held = [(row.partition, row.state.producer_id, row.waiting, row.transactional_id) for row in view.holding]
    assert held == [(0, 8, 30, "payments-1")]
    assert [row.state.producer_id for row in view.table.rows][:2] == [8, 7]


def test_a_transaction_hangs_if_its_coordinator_does_not_know_of_it_and_it_is_quiet() -> None:
    def producer(id_: int, at_ms: int = 0) -> tuple[ProducerState, ...]:
        return (ProducerState(id_, 0, 5, at_ms, 0, 10),)

    ids = {1: "Empty", 2: "Ongoing", 3: "PrepareCommit", 4: "Ongoing", 5: "CompleteAbort"}
    listed = Part({0: tuple(TransactionListing(f"id-{n}", n, state) for n, state in ids.items())}, (), 1)
    described = {
        f"id-{n}": TransactionDescription(BROKER, "Ongoing", n, 0, 60_000, 1, (tp("a", n),)) for n in (2, 4)
    }
    producers = {tp("a", n): producer(n) for n in (1, 2, 3, 5, 6)}
    producers |= {tp("a", 0): producer(1, at_ms=99_000), tp("a", 9): producer(4), tp("a", 8): ()}
    held = dict.fromkeys([*producers], (10, 25))

    def hanging(listed: Part[Any]) -> set[int]:
        table = held_of(held, Part(producers, (), 1), listed, Part(described, (), 1), 100_000, Query(rows=99))
        assert {row.waiting for row in table.rows} == {15}
        return {row.partition for row in table.rows if row.hangs}

    assert hanging(listed) == {1, 5, 6, 9}
    unknown = replace(listed, problems=(Problem(Kind.UNREACHABLE, "broker 1", "it is away"),))
    assert hanging(unknown) == set(), "a coordinator that is away may know the transaction"


def test_a_partition_is_held_back_if_its_last_stable_offset_is_behind_the_high_watermark() -> None:
    def offsets(**found: int) -> Part[dict[TopicPartition, ListedOffset]]:
        return Part({tp(name): ListedOffset(offset, -1, 0) for name, offset in found.items()}, (), 1)

    assert held_back(offsets(a=9, b=9, c=9), offsets(a=9, b=4)) == {tp("b"): (4, 9)}


def test_a_partition_with_fewer_replicas_in_sync_than_it_needs_refuses_records() -> None:
    behind = TOPIC("b", isr=(0, 1))
    view = partitions_of(snapshot(topics={"b": behind, "c": replace(behind, name="c")}), Query(), 1, {"c": 3})
    assert {(row.topic, row.refuses) for row in view.table.rows} == {("b", False), ("c", True)}
    assert view.table.rows[0].topic == "c", "those that refuse records come first"
    assert view.refusing == sum(row.topic == "c" for row in view.table.rows)


def test_the_quotas_of_a_user_are_its_own_and_those_of_others_that_can_apply() -> None:
    entities = (
        {"user": "anna"},
        {"user": "boris"},
        {"user": None},
        {"client-id": "etl"},
        {"ip": "10.0.0.1"},
        {"user": "anna", "client-id": None},
    )
    found = Part({QuotaEntity(each): {"producer_byte_rate": 1.0} for each in entities}, (), 1)
    rows = quotas_of(found, Query(others={"user": "anna"})).table.rows
    assert {row.name for row in rows} == {
        "user anna",
        "each other user",
        "client id etl",
        "user anna, each other client id",
    }


def test_the_acls_of_a_principal_are_its_own_and_those_of_all_users() -> None:
    def acl(principal: str) -> AclBinding:
        entry = Entry(principal, "*", Operation.READ, Permission.ALLOW)
        return AclBinding(ResourcePattern(ResourceType.TOPIC, "orders"), entry)

    found = Part([acl(each) for each in ("User:anna", "User:annabel", "User:*")], (), 1)
    view = acls_of(found, Query(others={"principal": "User:anna"}), unsecured=False)
    assert [each.entry.principal for each in view.table.rows] == ["User:*", "User:anna"]


def test_partitions_that_are_not_in_sync_know_since_when_as_far_as_the_console_has_looked() -> None:
    def at(ms: int, *topics: TopicDescription) -> Snapshot:
        return replace(snapshot(), topics=Part({each.name: each for each in topics}, (), ms))

    first = at(1_000, BEHIND).after(Snapshot())
    second = at(2_000, BEHIND, NO_LEADER).after(first)
    rows = partitions_of(second, Query(), 3_000).table.rows
    assert [(row.topic, row.partition, row.offline, row.for_ms, row.longer) for row in rows[2:4]] == [
        ("a", 2, True, 1_000, False),
        ("b", 0, False, 2_000, True),
    ]
    assert rows[3].missing == (2,)
    well = at(4_000, TOPIC("b")).after(second)
    again = at(5_000, BEHIND).after(well)
    assert again.behind_since[("b", 0)] == 5_000
    assert again.watched_ms == 1_000


def test_topics_that_were_not_read_again_change_nothing_of_since_when() -> None:
    first = replace(snapshot(topics={"b": BEHIND}), topics=Part({"b": BEHIND}, (), 1_000)).after(Snapshot())
    kept = replace(first, topics=Part(first.topics.value, (), 9_000))
    assert kept.after(first).behind_since == {("b", each): 1_000 for each in range(3)}


def tp(topic: str, partition: int = 0) -> TopicPartition:
    return TopicPartition(topic, partition)


COMMITTED = {
    "g": {tp("a", 0): 5, tp("a", 1): 10, tp("b", 0): 7},
    "done": {tp("a", 0): 9},
    "": {tp("a", 0): 0},
}
ENDS = {tp("a", 0): 9, tp("a", 1): 9, tp("b", 0): 8}
GROUPS = {name: GroupListing(name, "consumer", "Stable", "classic") for name in COMMITTED}


def test_topics_name_the_groups_that_read_them_the_largest_lag_first() -> None:
    view = topics_of(snapshot(committed=COMMITTED, end_offsets=ENDS, groups=GROUPS), Query(), {"b"})
    rows = {row.name: row for row in view.table.rows}
    assert list(rows) == ["a", "b"]
    assert rows["a"].groups == (("", 9), ("g", 4), ("done", 0))  # an offset beyond the end is no lag
    assert (rows["a"].lag, rows["b"].lag, rows["b"].starred) == (9, 1, True)
    assert view.hidden == 1


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({}, ["a", "b"]),
        ({"internal": "1"}, ["__internal", "a", "b"]),
        ({"starred": "1"}, ["b"]),
        ({"q": "B"}, ["b"]),
        ({"q": "intern"}, []),
        ({"sort": "-name"}, ["b", "a"]),
        ({"sort": "-lag"}, ["a", "b"]),
        ({"sort": "lag"}, ["b", "a"]),
        ({"sort": "nonsense"}, ["a", "b"]),
        ({"page": "99"}, ["a", "b"]),
        ({"page": "x", "rows": "-5"}, ["a"]),
    ],
)
def test_the_list_of_topics_follows_the_query(params: dict[str, str], names: list[str]) -> None:
    query = Query.of(params, "internal", "starred")
    view = topics_of(snapshot(committed=COMMITTED, end_offsets=ENDS), query, {"b"})
    assert [row.name for row in view.table.rows] == names


def test_topics_that_are_not_well_come_first_by_state() -> None:
    topics = {"a": TOPIC("a"), "b": BEHIND, "c": replace(NO_LEADER, name="c")}
    view = topics_of(snapshot(topics=topics), Query(sort="state"), ())
    assert [row.name for row in view.table.rows] == ["c", "b", "a"]


def test_groups_have_lag_and_topics_and_can_be_chosen_by_state() -> None:
    groups = {**GROUPS, "idle": GroupListing("idle", "", "Empty", "classic")}
    known = snapshot(committed=COMMITTED, end_offsets=ENDS, groups=groups)
    view = groups_of(known, Query())
    assert [(row.id, row.lag, row.topics) for row in view.table.rows] == [
        ("", 9, ("a",)),
        ("g", 5, ("a", "b")),
        ("done", 0, ("a",)),
        ("idle", None, ()),
    ]
    assert view.states == (("Empty", 1), ("Stable", 3))
    assert [row.id for row in groups_of(known, Query(others={"state": "Empty"})).table.rows] == ["idle"]


# --- transactions, reassignments ---

BROKER = NODES[0]


def transaction(state: str, start_ms: int, timeout_ms: int = 60_000) -> TransactionDescription:
    return TransactionDescription(BROKER, state, 1, 0, timeout_ms, start_ms, ())


def test_transactions_that_are_over_their_time_out_come_first() -> None:
    described = {"new": transaction("Ongoing", 100_000), "late": transaction("Ongoing", 10_000)}
    listings = [("done", "CompleteCommit"), ("new", "Ongoing"), ("late", "Ongoing"), ("unknown", "Ongoing")]
    listed = Part({0: tuple(TransactionListing(id_, 1, state) for id_, state in listings)}, (), 1)
    assert ongoing(listed) == ["new", "late", "unknown"]
    view = transactions_of(listed, Part(described, (), 1), 110_000, Query())
    assert [(row.id, row.open_ms, row.late) for row in view.table.rows] == [
        ("late", 100_000, True),
        ("new", 10_000, False),
        ("done", None, False),
        ("unknown", None, False),
    ]
    assert (view.open, view.late, view.states) == (3, 1, (("CompleteCommit", 1), ("Ongoing", 3)))
    chosen = transactions_of(
        listed, Part(described, (), 1), 110_000, Query(others={"state": "CompleteCommit"})
    )
    assert [row.id for row in chosen.table.rows] == ["done"]


def test_a_transaction_without_a_start_is_not_open() -> None:
    assert not transaction_of("t", Part(transaction("Empty", -1), (), 1), 99, Part()).late
    missing = problem_of(errors.TransactionalIdNotFoundError(), "it")
    assert transaction_of("t", Part(None, (missing,), 1), 99, Part()).missing


@pytest.mark.parametrize(
    ("leader", "new", "copied", "left"),
    [
        (1000, 250, 0.25, 750),
        (1000, 2000, 1.0, 0),
        (0, 0, 1.0, 0),
        (1000, None, 0.0, 1000),
        (None, 10, None, 0),
    ],
)
def test_a_reassignment_is_copied_as_far_as_the_size_of_the_new_replica(
    leader: int | None, new: int | None, copied: float | None, left: int
) -> None:
    sizes = {broker: size for broker, size in ((0, leader), (2, new)) if size is not None}
    dirs = {
        broker: (LogDirDescription("/d", None, -1, -1, {tp("a"): ReplicaInfo(size, 0, False)}),)
        for broker, size in sizes.items()
    }
    moves = {tp("a"): Reassignment((0, 1, 2), (2,), (1,))}
    view = reassignments_of(snapshot(log_dirs=dirs), Part(moves, (), 1), Query())
    [row] = view.table.rows
    assert (row.staying, row.adding, row.removing, row.copied, view.bytes) == ((0,), (2,), (1,), copied, left)


# --- rates ---


def test_rates_count_what_has_grown_in_partitions_of_both_collections() -> None:
    before = Counts(
        10.0, {tp("a"): 5, tp("gone"): 9, tp("shrunk"): 100}, {tp("a"): 1000}, {(0, tp("a")): 1000}, {}
    )
    after = Counts(
        20.0,
        {tp("a"): 25, tp("new"): 1000, tp("shrunk"): 50},
        {tp("a"): 3000},
        {(0, tp("a")): 3000, (1, tp("a")): 500},
        {("g", tp("a")): 7},
        {"g": 18},
    )
    point = point_between(before, after)
    assert (point.records_in, point.bytes_in, point.records_out) == (2.0, 200.0, 0)
    assert (point.topic_records, point.broker_bytes, point.lags) == ({"a": 2.0}, {0: 200.0}, {"g": 18})


def test_rates_are_unknown_where_a_collection_lacks_them() -> None:
    point = point_between(Counts(0.0, {tp("a"): 1}), Counts(1.0))
    assert (point.records_in, point.bytes_in, point.records_out) == (None, None, None)


@pytest.mark.parametrize(
    ("duration_s", "away", "pause"),
    [(0.1, False, 5.0), (2.0, False, 18.0), (30.0, False, 60.0), (7.0, True, 5.0)],
)
def test_a_collector_rests_nine_times_its_work_but_not_after_waiting_for_a_broker(
    duration_s: float, away: bool, pause: float
) -> None:
    assert pause_s(duration_s, 5.0, away=away) == pause


def test_the_history_is_bounded() -> None:
    history = History()
    for i in range(500):
        history = history.with_point(Point(float(i)))
    assert len(history.points) == 90
    assert history.last == Point(499.0)


# --- tables ---

ROWS = [("b", 2), ("a", None), ("c", 1)]
COLUMNS: tuple[Column[tuple[str, int | None]], ...] = (
    Column("name", "Name", lambda row: row[0]),
    Column("n", "N", lambda row: row[1], numeric=True),
)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        (Query(), ["a", "b", "c"]),
        (Query(sort="n"), ["c", "b", "a"]),
        (Query(sort="n", descending=True), ["b", "c", "a"]),
        (Query("b"), ["b"]),
        (Query(rows=2, page=2), ["c"]),
    ],
)
def test_a_table_is_searched_sorted_and_cut(query: Query, names: list[str]) -> None:
    table = table_of(ROWS, COLUMNS, query, text=lambda row: row[0], default_sort="name")
    assert [row[0] for row in table.rows] == names


def test_links_keep_what_was_chosen() -> None:
    query = Query.of({"q": "a&b", "sort": "-n", "page": "3", "internal": "1", "evil": "x"}, "internal")
    table = table_of(ROWS * 100, COLUMNS, query, text=lambda row: "a&b", default_sort="name")
    assert table.page_link(2) == "?q=a%26b&sort=-n&page=2&internal=1"
    assert table.sort_link(COLUMNS[1]) == "?q=a%26b&sort=n&internal=1"
    assert table.sort_link(COLUMNS[0]) == "?q=a%26b&sort=name&internal=1"
    assert table.sorted_by(COLUMNS[1]) == "descending"


# --- charts, formats ---


@pytest.mark.parametrize("values", [[], [None], [1.0], [None, 0.0, 0.0], [1, None, 3], [1e18, 5], [0.001]])
def test_charts_are_well_formed_and_have_a_text(values: list[float | None]) -> None:
    for chart in (charts.sparkline(values, 'a<"b'), charts.line(values, 'a<"b', text=formats.byte_rate)):
        parsed = ElementTree.fromstring(chart)
        assert parsed.attrib["aria-label"].startswith('a<"b')
        assert "nan" not in chart
        assert "style" not in chart


@given(st.floats(min_value=1e-6, max_value=1e15))
def test_a_scale_ends_above_its_values_but_not_far(value: float) -> None:
    assert value <= charts.nice(value) <= 2.5 * value + 1e-9


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (formats.size(None), "–"),
        (formats.size(1023), "1023 B"),
        (formats.size(1536), "1.5 KiB"),
        (formats.size(2**50 * 4), "4.0 PiB"),
        (formats.number(1234567), "1,234,567"),
        (formats.compact(12345), "12.3 k"),
        (formats.compact(1234567), "1.23 M"),
        (formats.rate(0.25), "0.2/s"),
        (formats.duration(59_000), "59 s"),
        (formats.duration(3 * 86400_000), "3 d"),
        (formats.time(0), "1970-01-01 00:00:00"),
        (formats.shown("a\u202eb\n"), "a\\u202eb\\n"),
        (formats.shown("עברית"), "עברית"),
        (formats.count(1, "topic"), "1 topic"),
        (formats.count(2000, "topic"), "2,000 topics"),
    ],
)
def test_numbers_and_names_as_text(text: str, expected: str) -> None:
    assert text == expected


# --- settings, problems, credentials ---


def test_settings_of_the_topic_come_first_and_show_what_they_replace() -> None:
    synonyms = (ConfigSynonym("retention.ms", "5", 1), ConfigSynonym("log.retention.ms", "7", 5))
    entries = {
        "cleanup.policy": ConfigEntry("delete", 5),
        "retention.ms": ConfigEntry("5", 1, synonyms=synonyms),
        "ssl.key": ConfigEntry("secret", 4, sensitive=True),
    }
    rows = settings_table(entries, Query()).rows
    assert [(row.name, row.value, row.default, row.own) for row in rows] == [
        ("retention.ms", "5", "7", True),
        ("ssl.key", None, None, False),
        ("cleanup.policy", "delete", None, False),
    ]
    assert rows[0].default_source == ""
    inherited = (ConfigSynonym("retention.ms", "5", 1), ConfigSynonym("log.retention.ms", "5", 3))
    [row] = settings_table({"retention.ms": ConfigEntry("5", 1, synonyms=inherited)}, Query()).rows
    assert (row.default, row.default_source) == ("5", "all brokers, dynamic")


@pytest.mark.parametrize(
    ("need", "lacks", "command"),
    [
        (
            Need(Operation.DESCRIBE, ResourceType.CLUSTER),
            "User:anna lacks Describe on the cluster",
            "ottla acls add --allow User:anna --operation describe --cluster",
        ),
        (
            Need(Operation.READ, ResourceType.GROUP, "it's; rm"),
            "User:anna lacks Read on the group it's; rm",
            "ottla acls add --allow User:anna --operation read --group 'it'\\''s; rm'",
        ),
        (
            Need(Operation.DESCRIBE, ResourceType.TOPIC),
            "User:anna lacks Describe on topics",
            "ottla acls add --allow User:anna --operation describe --topic '*'",
        ),
    ],
)
def test_a_refused_request_names_the_right(need: Need, lacks: str, command: str) -> None:
    problem = problem_of(errors.TopicAuthorizationFailedError(), "it", need, "User:anna")
    assert (problem.kind, problem.reason, problem.command) == (Kind.FORBIDDEN, lacks, command)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.SaslAuthenticationFailedError("no"), Kind.FORBIDDEN),
        (errors.SecurityDisabledError(), Kind.UNSUPPORTED),
        (errors.UnsupportedVersionError("old"), Kind.UNSUPPORTED),
        (errors.UnknownTopicOrPartitionError(), Kind.MISSING),
        (errors.NetworkError("refused"), Kind.UNREACHABLE),
        (TimeoutError(), Kind.UNREACHABLE),
        (errors.InvalidRequestError("odd"), Kind.FAILED),
    ],
)
def test_errors_have_kinds(error: Exception, kind: Kind) -> None:
    assert problem_of(error, "it").kind is kind


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    st.text(st.characters(exclude_categories=["Cs"])),
)
@example("0", "\n")
def test_any_user_and_password_can_be_sent(user: str, password: str) -> None:
    options = jaas.parse(Password("PLAIN", user, password).properties()["sasl.jaas.config"]).options
    assert (options["username"], options["password"]) == (user, password)


def test_a_password_is_in_no_text_of_the_credentials() -> None:
    assert "geheim" not in repr(Password("PLAIN", "anna", "geheim"))


@given(st.frozensets(st.text("aZ0._-", min_size=1, max_size=249)))
def test_favourites_fit_into_a_cookie(names: frozenset[str]) -> None:
    text = favourites.written(names)
    assert len(text) <= favourites.BYTES_MAX
    assert favourites.read(text) <= names
    if sum(map(len, names)) + len(names) < 3000:
        assert favourites.read(text) == names


@pytest.mark.parametrize("text", [None, "", ":", "a b", "<script>", "a:<b>:c", "a;b"])
def test_what_is_no_name_of_a_topic_is_no_favourite(text: str | None) -> None:
    assert favourites.read(text) <= {"a", "c"}


def test_sizes_and_leaders_are_sums_over_what_responded() -> None:
    replicas = {tp("a", 0): ReplicaInfo(10, 0, False), tp("a", 1): ReplicaInfo(5, 0, False)}
    dirs = {broker: (LogDirDescription("/d", None, -1, -1, replicas),) for broker in (0, 1)}
    known = snapshot(log_dirs=dirs)
    assert known.topic_sizes == {"a": 30}
    assert known.leaders == {0: 9}
    row = next(row for row in overview_of(known).brokers if row.id == 0)
    assert (row.used_bytes, row.disk_share) == (15, None)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (
            "b:9092 serves IncrementalAlterConfigsRequest in versions None, this client 0 to 1",
            "the brokers are older than Apache Kafka 2.3, which has introduced it",
        ),
        (
            "b:9092 serves SomethingNewRequest in versions None, this client 0 to 1",
            "this version of the brokers does not support it (UNSUPPORTED_VERSION: b:9092 serves "
            "SomethingNewRequest in versions None, this client 0 to 1)",
        ),
        (
            "b:9092 serves DescribeProducersRequest in versions 0 to 3, this client 5 to 6",
            "this version of the brokers does not support it (UNSUPPORTED_VERSION: b:9092 serves "
            "DescribeProducersRequest in versions 0 to 3, this client 5 to 6)",
        ),
    ],
)
def test_an_api_that_brokers_lack_is_named_by_the_version_that_has_it(message: str, says: str) -> None:
    problem = problem_of(errors.UnsupportedVersionError(message), "the settings")
    assert (problem.kind, problem.reason) == (Kind.UNSUPPORTED, says)
