"""The console's records: decoding, masks, filters, scans forwards and backwards, and the pages over a log in
memory."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Mapping
from html import unescape
from pathlib import Path as FilePath
from typing import Any
from urllib.parse import parse_qsl
from urllib.request import Request

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonpath import JSONPathEnvironment
from starlette.testclient import TestClient

from ottla.client import errors
from ottla.client.core.types import TopicPartition
from ottla.client.errors import SerializationError
from ottla.client.registry import Answer
from ottla.protocol.messages import FetchResponse
from ottla.protocol.records import ControlType, Record, build_batch, build_control_batch
from ottla_console.cluster.log_reader import Fetched, LogRecord, records_in
from ottla_console.cluster.schema_decoder import SchemaDecoder
from ottla_console.command import console
from ottla_console.pages.records.decoding import CHOICES, Rules, header_shown, shown
from ottla_console.pages.records.filters import Filter
from ottla_console.pages.records.producing import BadField, Draft, encode
from ottla_console.pages.records.scanning import Limits, Scan, Slice, Stop
from ottla_console.pages.records.view import LIMITS, OFFSET_MAX, Choice, plan_of, time_of
from ottla_console.settings import Mask, Registry, read_clusters
from ottla_console.views import json_paths
from ottla_console.views.json_paths import BadPath, Path, masked
from tests.worlds.console_cluster import FakeCluster
from tests.worlds.console_logs import FakeLogs, Log

PLAIN = Rules()
CARD = Rules.of("payments", (Mask(("$.card.number", "$..email"), ("Authorization",)),), None, visible=True)

# --- decoding ---


@pytest.mark.parametrize(
    ("data", "choice", "kind", "text"),
    [
        (None, "auto", "null", "null"),
        (b"", "auto", "empty", ""),
        (b"word", "auto", "text", "word"),
        (b"12", "auto", "text", "12"),
        (b"12", "json", "json", "12"),
        (b'{"a":[1]}', "auto", "json", '{\n  "a": [\n    1\n  ]\n}'),
        (b'{"a":[1]}', "text", "text", '{"a":[1]}'),
        (b"{no", "json", "text", "{no"),
        (b"\x00\x01\xff", "auto", "hex", f"00000000  {'00 01 ff':<47}  ..."),
        (b"a", "hex", "hex", f"00000000  {'61':<47}  a"),
        (b"\xff", "text", "text", "\\xff"),
        ("\u202eabc\x1b[1m".encode(), "text", "text", "\\u202eabc\\x1b[1m"),
        (b"a\r\nb\tc", "auto", "text", "a\nb    c"),
        (b"\x00\x00\x00\x00\x07x", "schema", "hex", f"00000000  {'00 00 00 00 07 78':<47}  .....x"),
        (b"[" * 100_000, "auto", "text", "[" * 65_536),
    ],
)
def test_bytes_are_shown_by_the_chosen_decoder(data: bytes | None, choice: str, kind: str, text: str) -> None:
    found = shown(data, choice, PLAIN)
    assert (found.kind, found.text) == (kind, text)


@given(st.binary(max_size=300), st.sampled_from(list(CHOICES)))
def test_any_bytes_are_shown_as_printable_text(data: bytes, choice: str) -> None:
    found = shown(data, choice, PLAIN)
    assert all(line.isprintable() for line in found.text.split("\n"))
    assert found.preview.isprintable()
    assert len(found.preview) <= 160


def test_a_value_of_10_mb_is_cut_and_says_its_size() -> None:
    found = shown(b"x" * 10_000_000, "auto", PLAIN)
    assert (found.kind, found.size, found.cut, len(found.text)) == ("text", 10_000_000, True, 65_536)
    assert shown("é".encode() * 5_000_000, "auto", PLAIN).kind == "text"


def by_schema(data: bytes) -> tuple[Any, str]:
    if data[4] != 7:
        raise SerializationError(f"schema {data[4]}: not registered")
    return {"id": 1, "raw": b"\xff", "card": {"number": "4111"}}, "Avro, schema 7"


def test_a_value_with_a_schema_id_is_decoded_by_the_registry_and_says_why_it_cannot() -> None:
    rules = Rules(schema=by_schema)
    found = shown(b"\0\0\0\0\x07...", "auto", rules)
    assert (found.kind, found.label) == ("schema", "Avro, schema 7")
    assert json.loads(found.text) == {"id": 1, "raw": "ff", "card": {"number": "4111"}}
    missing = shown(b"\0\0\0\0\x08...", "auto", rules)
    assert (missing.kind, missing.problem) == ("hex", "schema 8: not registered")
    assert "no schema registry" in shown(b"\0\0\0\0\x07", "schema", PLAIN).problem


def test_a_registry_is_asked_once_for_a_schema_and_after_a_failure_not_soon_again() -> None:
    asked: list[str] = []
    answers: dict[str, Answer] = {}
    clock = [0.0]

    def transport(request: Request, timeout_s: float, tls: object) -> Answer:
        asked.append(request.selector)
        if request.selector not in answers:
            raise OSError("refused")
        return answers[request.selector]

    decoder = SchemaDecoder(Registry("http://registry"), lambda: clock[0], transport)
    value = b'\0\0\0\0\x07{"a": 1}'

    def prepare() -> None:
        asyncio.run(decoder.prepare([value, None, b"plain", value]))

    prepare()
    prepare()
    assert len(asked) == 1
    with pytest.raises(SerializationError, match=r"schema 7: .*refused"):
        decoder.decode(value)
    answers["/schemas/ids/7"] = Answer(200, json.dumps({"schemaType": "JSON", "schema": "{}"}).encode())
    clock[0] = 60.0
    prepare()
    prepare()
    assert len(asked) == 2
    assert decoder.decode(value) == ({"a": 1}, "JSON Schema, schema 7")


# --- masks ---


@pytest.mark.parametrize("choice", list(CHOICES))
@pytest.mark.parametrize(
    "data",
    [
        b'{"card": {"number": "4111"}, "id": 1}',
        b'{"card": {"number": "4111"}, "id": 1',
        b'\xff{"card": {"number": "4111"}}',
        b'[{"email": "4111"}]',
        b"\0\0\0\0\x07{4111}",
        b'{"card": {"number": "4111"}, "x": "' + b"x" * 2_000_000 + b'"}',
        b"[" * 5_000 + b'{"email": "4111"}' + b"]" * 5_000,
        b"email=4111",
    ],
)
def test_no_decoder_and_no_filter_shows_what_is_masked(choice: str, data: bytes) -> None:
    for rules in (CARD, Rules(CARD.visible, CARD.paths, CARD.headers, by_schema)):
        found = shown(data, choice, rules)
        assert "4111" not in found.text
        assert "4111" not in found.preview
        assert "34 31 31 31" not in found.text
        record = LogRecord(0, 0, 0, None, data)
        assert not Filter(text="4111").accepting(rules, choice, choice)(record)
        assert not Filter(path="$..number", equals="4111").accepting(rules, choice, choice)(record)


def test_a_mask_keeps_the_other_fields_and_plain_keys() -> None:
    found = shown(b'{"card": {"number": "4111"}, "id": 1}', "auto", CARD)
    assert json.loads(found.text) == {"card": {"number": json_paths.MASKED}, "id": 1}
    assert shown(b"order-1", "auto", CARD).text == "order-1"
    assert header_shown("AUTHORIZATION", b"secret", CARD).text == json_paths.MASKED
    assert header_shown("trace", b"abc", CARD).text == "abc"
    record = LogRecord(0, 0, 0, None, None, (("AUTHORIZATION", b"secret"), ("trace", b"abc")))
    found = [Filter(text=text).accepting(CARD, "auto", "auto")(record) for text in ("secret", "abc")]
    assert found == [False, True]
    assert not Filter(header="AUTHORIZATION=secret").accepting(CARD, "auto", "auto")(record)


def test_masks_apply_to_the_topics_of_their_patterns() -> None:
    masks = (Mask(("$.a",), (), ("pay*",)), Mask((), ("h",)))
    assert [path.text for path in Rules.of("payments", masks, None, visible=True).paths] == ["$.a"]
    orders = Rules.of("orders", masks, None, visible=True)
    assert (orders.paths, orders.headers) == ((), {"h"})


def test_without_values_nothing_of_the_content_is_shown() -> None:
    for choice in CHOICES:
        found = shown(b"secret", choice, Rules(visible=False))
        assert (found.kind, found.text, found.preview, found.document) == ("hidden", "", "", found.document)
    assert header_shown("h", b"secret", Rules(visible=False)).text == ""


def test_masks_may_overlap() -> None:
    document = {"a": {"a": {"a": 1}}, "b": [{"a": 2}]}
    assert masked(document, [Path("$..a"), Path("$.a.a"), Path("$.b[0].a")]) == {
        "a": "•••",
        "b": [{"a": "•••"}],
    }
    assert masked({"a": 1}, [Path("$")]) == "•••"


@pytest.mark.parametrize(
    "text", ["$.[", "a", "$..*..*", "$[?@.a == 'x' && match(@.b, '(a+)+')]", "$" + ".a" * 200, ""]
)
def test_a_path_that_is_wrong_or_could_take_long_is_refused(text: str) -> None:
    with pytest.raises(BadPath):
        json_paths.of_reader(text)


def test_signs_in_names_do_not_count_as_wide_parts() -> None:
    path = json_paths.of_reader("$['a*b,c?d:e*f..g']")
    assert list(path.values({"a*b,c?d:e*f..g": 1})) == [1]


@pytest.mark.parametrize(
    "text",
    ["$", "$.a", "$.a.b", "$.a['b']", "$.l[0]", "$.l[-1].x", "$.l[-3]", "$.l[9]", "$.l.x", "$.a[0]", "$.n.x"],
)
def test_a_path_of_names_and_indexes_selects_what_the_library_selects(text: str) -> None:
    document = {"a": {"b": 1}, "l": [{"x": 1}, {"x": 2}], "n": None, "0": 3}
    path = Path(text)
    assert list(path.values(document)) == [
        each.value for each in JSONPathEnvironment().finditer(text, document)
    ]


def test_masks_and_the_registry_are_read_from_the_file(tmp_path: FilePath) -> None:
    file = tmp_path / "clusters.yaml"
    text = """
clusters:
  - name: orders
    bootstrap: kafka:9092
    registry: {url: "http://registry:8081", properties: {basic.auth.user.info: "a:b"}}
    masks: [{topics: ["pay*"], paths: ["$.card"], headers: [h]}, {paths: ["$.x"]}]
"""
    file.write_text(text)
    (cluster,) = read_clusters(file)
    assert cluster.registry == Registry("http://registry:8081", {"basic.auth.user.info": "a:b"})
    assert cluster.masks == (Mask(("$.card",), ("h",), ("pay*",)), Mask(("$.x",)))
    assert "a:b" not in repr(cluster)
    file.write_text(text.replace("$.card", "$.["))
    refused = CliRunner().invoke(console, ["--config", str(file)])
    assert (refused.exit_code, "cluster orders: $.[" in refused.output) == (2, True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--mask", "card"], "cluster kafka: card: "),
        (["--schema-registry", "registry:8081"], "must be http[s]://HOST"),
    ],
)
def test_a_mask_or_a_registry_that_is_wrong_is_told_at_the_start(options: list[str], text: str) -> None:
    refused = CliRunner().invoke(console, ["-b", "127.0.0.1:9092", *options])
    assert refused.exit_code == 2
    assert text in refused.output


# --- filters ---

VALUE = json.dumps({"id": 7, "customer": {"name": "Änne", "vip": True}, "items": [{"sku": "A1"}]}).encode()
ORDER = LogRecord(0, 5, 0, b"order-7", VALUE, (("trace", b"abc"), ("nul", None)))


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        (Filter(), True),
        (Filter(text="änne"), True),
        (Filter(text='"id":7'), True),
        (Filter(text='"id": 7'), True),
        (Filter(text="ORDER-7"), True),
        (Filter(text="trace"), True),
        (Filter(text="order-7", place="value"), False),
        (Filter(text="order-7", place="key"), True),
        (Filter(text="abc", place="headers"), True),
        (Filter(text="nothing"), False),
        (Filter(key="order-7"), True),
        (Filter(key="order"), False),
        (Filter(header="trace"), True),
        (Filter(header="trace=abc"), True),
        (Filter(header="trace=ab"), False),
        (Filter(header="other"), False),
        (Filter(path="$.customer.name"), True),
        (Filter(path="$.customer.name", equals="Änne"), True),
        (Filter(path="$.id", equals="7"), True),
        (Filter(path="$.id", equals="8"), False),
        (Filter(path="$.customer.vip", equals="true"), True),
        (Filter(path="$.items[?@.sku == 'A1']"), True),
        (Filter(path="$.missing"), False),
        (Filter(text="änne", key="other"), False),
    ],
)
def test_a_filter_looks_at_text_key_header_and_path(wanted: Filter, matches: bool) -> None:
    assert wanted.accepting(PLAIN, "auto", "auto")(ORDER) is matches


@pytest.mark.parametrize(
    ("data", "text", "matches"),
    [
        (b'{"name": "\\u00c4nne"}', "änne", True),
        (b'{"a":1,"b":2}', '"a": 1, "b"', True),
        (b'{"a": 1, "b": 2}', '"a":1,"b"', True),
        (b"\xffbinary", "binary", True),
        (b"\xffbinary", "\\xff", True),
        (b"x" * 2_000_000 + b"end", "end", False),
        (None, "null", False),
    ],
)
def test_a_text_is_found_as_it_is_shown(data: bytes | None, text: str, matches: bool) -> None:
    accept = Filter(text=text).accepting(PLAIN, "auto", "auto")
    assert accept(LogRecord(0, 0, 0, None, data)) is matches


def test_a_scan_lets_others_run() -> None:
    log = log_of({0: [(True, t) for t in range(2_000)]})
    log.batch = 2_000
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def run() -> None:
        task = asyncio.ensure_future(other())
        await scan(log, 5_000).forwards({0: 0}, log.ends)
        task.cancel()

    asyncio.run(run())
    assert turns >= 10


def test_a_filter_takes_no_control_records_and_no_tombstones_for_their_label() -> None:
    accept = Filter(text="null").accepting(PLAIN, "auto", "auto")
    assert not accept(LogRecord(0, 0, 0, b"k", None))
    assert not Filter(text="").accepting(PLAIN, "auto", "auto")(LogRecord(0, 0, 0, b"", b"", control="abort"))


# --- the URL ---


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"from": "oldest", "partition": "3", "rows": "100", "k": "hex", "v": "json", "committed": "1"},
        {"from": "offset", "offset": "12", "at": "0-5.7-12", "dir": "newer"},
        {"from": "time", "time": "2026-01-31T12:00:00"},
        {"from": "time", "time": "2026-01-31T12:00:00.250"},
        {"q": "a & b", "in": "value", "key": "k", "header": "h=1", "path": "$.a[?@.b > 1]", "equals": "x"},
        {"live": "1700000000000"},
    ],
)
def test_a_link_has_the_whole_view(query: dict[str, str]) -> None:
    choice = Choice.of(query)
    assert dict(parse_qsl(choice.link().removeprefix("?"))) == query
    assert Choice.of(dict(parse_qsl(choice.link().removeprefix("?")))) == choice


@pytest.mark.parametrize(
    "query",
    [
        {"from": "offset", "offset": "-1"},
        {"from": "offset", "offset": "٣"},
        {"from": "time", "time": "noon"},
        {"from": "time", "time": "0001-01-01T00:00:00"},
    ],
)
def test_a_start_that_makes_no_sense_is_told_and_the_newest_are_shown(query: dict[str, str]) -> None:
    choice = Choice.of(query)
    assert choice.start == "newest"
    assert choice.mistakes


@given(
    st.dictionaries(
        st.sampled_from(["from", "offset", "time", "partition", "rows", "at", "live", "in", "k"]),
        st.text("0123456789-.:TZ\x00\u0663", max_size=25),
    )
)
def test_any_query_is_understood_somehow(query: dict[str, str]) -> None:
    choice = Choice.of(query)
    assert 1 <= choice.rows <= 200
    choice.link()


def test_times_are_utc_by_default() -> None:
    assert time_of("1970-01-02T00:00") == 86_400_000
    assert time_of("1970-01-02T00:00+01:00") == 82_800_000
    assert time_of("1700000000000") == 1_700_000_000_000
    assert time_of("99999999999999999999") is None


@pytest.mark.parametrize(
    ("query", "older", "offsets", "noted"),
    [
        ({}, True, {0: 20, 1: 40}, False),
        ({"from": "oldest"}, False, {0: 10, 1: 30}, False),
        ({"from": "offset", "offset": "35"}, False, {0: 20, 1: 35}, False),
        ({"from": "offset", "offset": "5"}, False, {0: 10, 1: 30}, True),
        ({"from": "offset", "offset": str(OFFSET_MAX)}, True, {0: 20, 1: 40}, True),
        ({"from": "time", "time": "1970-01-02T00:00"}, False, {0: 15, 1: 40}, False),
        ({"at": "0-12.1-99.5-3"}, True, {0: 12, 1: 40}, False),
        ({"at": "0-12", "dir": "newer"}, False, {0: 12, 1: 30}, False),
    ],
)
def test_a_scan_begins_where_the_url_says_within_the_log(
    query: dict[str, str], older: bool, offsets: dict[int, int], noted: bool
) -> None:
    plan = plan_of(Choice.of(query), {0: 10, 1: 30}, {0: 20, 1: 40}, {0: 15})
    assert (plan.older, plan.offsets, bool(plan.notes)) == (older, offsets, noted)


# --- scans ---


def log_of(gaps: Mapping[int, list[tuple[bool, int]]], size: int = 1) -> Log:
    """By partition, for each offset whether there is a record, and its timestamp."""
    return Log(
        {
            p: [LogRecord(p, o, t, None, b"v" * size) for o, (there, t) in enumerate(listed) if there]
            for p, listed in gaps.items()
        },
        {p: len(listed) for p, listed in gaps.items()},
    )


def scan(log: Log, want: int, limits: Limits = LIMITS, **given: Any) -> Scan:
    return Scan(log.read, lambda: 0.0, want, limits, **given)


def pages(log: Log, *, older: bool, want: int) -> list[Slice]:
    """All pages in one direction."""
    starts, ends = dict.fromkeys(log.ends, 0), log.ends
    at = dict(ends) if older else dict(starts)
    found: list[Slice] = []
    for _ in range(200):
        one = scan(log, want)
        part = asyncio.run(one.backwards(at, starts) if older else one.forwards(at, ends))
        found.append(part)
        at = part.low if older else part.high
        if all(at[p] <= starts[p] if older else at[p] >= ends[p] for p in at):
            return found
    raise AssertionError("the pages do not end")


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.integers(0, 3), st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=40), min_size=1
    ),
    st.integers(1, 12),
    st.booleans(),
)
def test_pages_have_each_record_once_in_either_direction(
    gaps: dict[int, list[tuple[bool, int]]], want: int, older: bool
) -> None:
    log = log_of(gaps)
    found = [each for part in pages(log, older=older, want=want) for each in part.records]
    expected = {(p, r.offset) for p, records in log.partitions.items() for r in records}
    assert len(found) == len(expected)
    assert {(each.partition, each.offset) for each in found} == expected
    for partition in gaps:
        offsets = [each.offset for each in found if each.partition == partition]
        assert offsets == sorted(offsets, reverse=older)


def test_a_page_is_in_the_order_of_time() -> None:
    log = log_of({0: [(True, t) for t in range(0, 100, 2)], 1: [(True, t) for t in range(1, 100, 2)]})
    forwards = asyncio.run(scan(log, 10).forwards({0: 0, 1: 0}, log.ends))
    assert [each.timestamp_ms for each in forwards.records] == list(range(10))
    backwards = asyncio.run(scan(log, 10).backwards(log.ends, {0: 0, 1: 0}))
    assert [each.timestamp_ms for each in backwards.records] == list(range(99, 89, -1))
    back = asyncio.run(scan(log, 10).forwards(backwards.low, backwards.high))
    assert back.records == backwards.records[::-1]


@pytest.mark.parametrize("older", [True, False])
def test_a_filtered_scan_stops_at_its_limit_and_goes_on_from_there(older: bool) -> None:
    log = log_of({0: [(True, t) for t in range(100)]})

    def accept(record: LogRecord) -> bool:
        return record.offset == (3 if older else 96)

    limits = Limits(records=40)
    at = dict(log.ends) if older else {0: 0}
    counts = []
    for _ in range(3):
        one = scan(log, 5, limits, accept=accept)
        part = asyncio.run(one.backwards(at, {0: 0}) if older else one.forwards(at, log.ends))
        counts.append((part.scanned, len(part.records), part.stop))
        at = part.low if older else part.high
    assert counts == [(40, 0, Stop.RECORDS), (40, 0, Stop.RECORDS), (20, 1, Stop.END)]


@pytest.mark.parametrize("older", [True, False])
def test_a_scan_of_large_records_ends_by_its_bytes_and_reads_little_more(older: bool) -> None:
    log = log_of({0: [(True, t) for t in range(50)]}, size=1 << 20)
    log.batch = 1
    one = scan(log, 50, Limits(bytes=8 << 20))
    part = asyncio.run(one.backwards(log.ends, {0: 0}) if older else one.forwards({0: 0}, log.ends))
    assert part.stop is Stop.BYTES
    assert 1 <= len(part.records) < 15
    assert log.bytes <= 16 << 20


def test_a_scan_ends_by_its_seconds() -> None:
    log = log_of({0: [(True, t) for t in range(5_000)]})
    clock = iter(range(1_000))

    def read(offsets: Mapping[int, int], _: int) -> Awaitable[Fetched]:
        return log.read(offsets, 8)

    one = Scan(read, lambda: float(next(clock)), 5_000, Limits(seconds=4), accept=lambda _: False)
    part = asyncio.run(one.forwards({0: 0}, log.ends))
    assert part.stop is Stop.SECONDS
    assert log.reads <= 5


@pytest.mark.parametrize("older", [True, False])
def test_a_partition_that_fails_or_returns_nothing_does_not_hold_up_the_others(older: bool) -> None:
    log = log_of({0: [(True, t) for t in range(10)]})

    async def read(offsets: Mapping[int, int], bytes_max: int) -> Fetched:
        got = await log.read({p: o for p, o in offsets.items() if p == 0}, bytes_max)
        if 1 in offsets:
            got.errors[1] = errors.TopicAuthorizationFailedError("no")
        return got

    one = Scan(read, lambda: 0.0, 50)
    at, ends = {0: 0, 1: 0, 2: 0}, {0: 10, 1: 10, 2: 10}
    part = asyncio.run(one.backwards(ends, at) if older else one.forwards(at, ends))
    assert len(part.records) == 10
    assert set(part.errors) == {1, 2}


# --- fetched bytes ---


def test_control_records_are_named_and_aborted_records_left_out_on_demand() -> None:
    def data(*records: Record, **given: Any) -> bytes:
        return bytes(build_batch(list(records), **given))

    def marker(kind: ControlType, offset: int) -> bytes:
        return build_control_batch(
            kind, producer_id=7, producer_epoch=0, coordinator_epoch=1, timestamp=5, base_offset=offset
        )

    tp = TopicPartition("t", 3)
    log = (
        data(Record(0, 1, b"k", b"plain", [("h", None)]))
        + data(
            Record(1, 2, None, b"lost"),
            base_offset=1,
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        + marker(ControlType.ABORT, 2)
        + data(
            Record(3, 4, None, b"kept"),
            base_offset=3,
            producer_id=7,
            producer_epoch=0,
            base_sequence=1,
            transactional=True,
        )
        + marker(ControlType.COMMIT, 4)
    )
    view = memoryview(log + log[:30])
    found = [(each.offset, each.value, each.control) for each in records_in(tp, view, 0) if not each.control]
    assert found == [(0, b"plain", ""), (1, b"lost", ""), (3, b"kept", "")]
    assert [each.control for each in records_in(tp, view, 0) if each.control] == ["abort", "commit"]
    aborted = [FetchResponse.AbortedTransaction(producer_id=7, first_offset=1)]
    kept = [each.offset for each in records_in(tp, view, 0, aborted) if not each.control]
    assert kept == [0, 3]
    assert [each.offset for each in records_in(tp, view, 4, aborted)] == [4]


# --- the pages ---


HOSTILE = b'{"a": "<script>alert(1)</script>\xe2\x80\xae"}'
LIST = "/c/test/topics/topic-00001/records"


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    records = [
        LogRecord(0, o, 1_700_000_000_000 + o, f"key-{o}".encode(), HOSTILE, (("h", b"head"),))
        for o in range(300)
    ]
    cluster.ends = {tp: 300 if tp.partition == 0 else 0 for tp in cluster.ends}
    cluster.logs = FakeLogs(Log({0: records, 1: [], 2: []}, {0: 300, 1: 0, 2: 0}))
    return cluster


def test_the_list_shows_the_newest_records_and_leads_to_the_others(cluster: FakeCluster) -> None:
    with cluster.console() as browser:
        page = browser.get(LIST).text
        assert "50 records" in page
        assert "&lt;script&gt;" in page
        assert "<script>alert" not in page
        assert "\u202e" not in page
        offsets = re.findall(r'id="r-0-(\d+)"', page)
        assert offsets == [str(o) for o in range(299, 249, -1)]
        older = unescape(re.findall(r'rel="next" href="([^"]+)"', page)[0])
        page = browser.get(LIST + older).text
        assert re.findall(r'id="r-0-(\d+)"', page) == [str(o) for o in range(249, 199, -1)]
        newer = unescape(re.findall(r'rel="prev" href="([^"]+)"', page)[0])
        assert re.findall(r'id="r-0-(\d+)"', browser.get(LIST + newer).text) == offsets
        assert "hx-get" not in page
        oldest = browser.get(f"{LIST}?at=0-20").text
        assert re.findall(r'id="r-0-(\d+)"', oldest) == [str(o) for o in range(19, -1, -1)]
        assert 'rel="next"' not in oldest
        assert 'rel="prev"' in oldest


def test_a_live_tail_refreshes_itself_for_some_minutes_only(cluster: FakeCluster) -> None:
    with cluster.console() as browser:
        now = time.time_ns() // 1_000_000
        live = browser.get(f"{LIST}?live={now}").text
        assert 'hx-trigger="every 2s"' in live
        part = browser.get(f"{LIST}?live={now}", headers={"hx-request": "true"}).text
        assert part.startswith('<div id="live" hx-get=')
        ended = browser.get(f"{LIST}?live={now - 5 * 60_000}").text
        assert "hx-trigger" not in ended
        assert "Resume" in ended


def test_a_filter_finds_and_says_how_much_it_has_scanned(cluster: FakeCluster) -> None:
    with cluster.console() as browser:
        page = browser.get(f"{LIST}?key=key-17").text
        assert "1 record found; scanned 300 of 300, from 2023-11-14 22:13:20 to 2023-11-14 22:13:20" in page
        assert "No record matches." in browser.get(f"{LIST}?q=nothing").text
        assert "JSON path $.[" in browser.get(f"{LIST}?path=$.[").text


def test_a_record_has_a_page_and_its_content_a_file(cluster: FakeCluster) -> None:
    with cluster.console() as browser:
        one = LIST.removesuffix("s")
        page = browser.get(f"{one}?partition=0&offset=17").text
        assert "offset 17" in page
        assert "&lt;script&gt;" in page
        saved = browser.get(f"{one}/content?partition=0&offset=17&part=value")
        assert saved.content == HOSTILE
        assert saved.headers["content-type"] == "application/octet-stream"
        assert saved.headers["content-disposition"] == 'attachment; filename="topic-00001-0-17.value"'
        assert browser.get(f"{one}?partition=0&offset=300").status_code == 404
        assert browser.get(f"{one}/content?partition=0&offset=300").status_code == 404
        older = browser.get(f"{one}?partition=0&offset=17&dir=older")
        assert older.headers["location"].endswith("partition=0&offset=16")


def test_without_values_no_page_has_any_content(cluster: FakeCluster) -> None:
    with cluster.console(values=False) as browser:
        one = LIST.removesuffix("s")
        for path in (LIST, f"{LIST}?q=script", f"{LIST}?key=key-17", f"{one}?partition=0&offset=17"):
            page = browser.get(path).text
            assert "alert(1)" not in page, path
            assert "key-2" not in page, path
            assert "head</" not in page, path
            assert "--no-values" in page, path
        assert browser.get(f"{one}/content?partition=0&offset=17").status_code == 404


def test_masked_fields_are_in_no_page_and_no_file(cluster: FakeCluster) -> None:
    cluster.masks = (Mask(("$.a",), ("h",)),)
    with cluster.console() as browser:
        one = f"{LIST.removesuffix('s')}?partition=0&offset=17"
        for path in (LIST, f"{LIST}?v=text", f"{LIST}?v=hex&k=hex", one, f"{one}&v=text"):
            page = browser.get(path).text
            assert "alert(1)" not in page, path
            assert "61 6c 65 72 74" not in page, path
            assert "<code>head" not in page, path
        assert browser.get(one.replace("?", "/content?")).status_code == 404


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (errors.TopicAuthorizationFailedError("no"), "lacks Read on the topic topic-00001"),
        (errors.UnknownTopicOrPartitionError("gone"), "it does not exist, or you may not see it"),
        (errors.NetworkError("refused"), "No response"),
    ],
)
def test_what_fails_is_told_with_what_to_do(cluster: FakeCluster, failure: Exception, text: str) -> None:
    cluster.logs.failure = failure
    with cluster.console() as browser:
        response = browser.get(LIST)
        assert response.status_code == 200
        assert text in response.text


def test_a_topic_that_is_not_there_and_an_offset_out_of_range_are_told(cluster: FakeCluster) -> None:
    with cluster.console() as browser:
        gone = browser.get("/c/test/topics/gone/records")
        assert gone.status_code == 404
        assert "no topic of this name" in gone.text
        assert "no partition 9" in browser.get(f"{LIST}?partition=9").text
        ranged = browser.get(f"{LIST}?from=offset&offset=999&partition=0").text
        assert "Offset 999 is out of range: partition 0 has 0 to 299" in ranged
        assert "The partition has no records." in browser.get(f"{LIST}?partition=1").text


# --- producing ---


@pytest.mark.parametrize(
    ("text", "kind", "data"),
    [
        ("word", "text", b"word"),
        ("", "text", b""),
        ("x", "null", None),
        ("00 ff", "hex", b"\x00\xff"),
        ('{"a": 1}', "json", b'{"a": 1}'),
        ('{"a": 1}', "schema", b"t-value:{'a': 1}"),
    ],
)
def test_a_field_becomes_bytes_by_its_kind(text: str, kind: str, data: bytes | None) -> None:
    async def by_schema(subject: str, value: object) -> bytes:
        return f"{subject}:{value}".encode()

    assert asyncio.run(encode(text, kind, "Value", "t-value", by_schema)) == data


@pytest.mark.parametrize(
    ("text", "kind"), [("0", "hex"), ("{", "json"), ("[" * 100_000, "json"), ("1", "schema")]
)
def test_a_field_that_cannot_be_sent_is_refused(text: str, kind: str) -> None:
    with pytest.raises(BadField, match="Value: "):
        asyncio.run(encode(text, kind, "Value", "t-value", None))


def test_headers_are_lines_and_a_partition_is_one_of_the_topic() -> None:
    draft = Draft.of({"headers": "a: 1\r\n\r\nb:x: y", "partition": "2"})
    assert draft.header_list() == [("a", b"1"), ("b", b"x: y")]
    assert draft.partition_of(3) == 2
    assert Draft().partition_of(3) is None
    for wrong in (Draft(headers="no colon"), Draft(headers=": 1"), Draft(headers="a: 1\n" * 101)):
        with pytest.raises(BadField):
            wrong.header_list()
    for partition in ("3", "-1", "x", "\u0663"):
        with pytest.raises(BadField):
            Draft(partition=partition).partition_of(3)


PRODUCE = "/c/test/topics/topic-00001/produce"
ORIGIN = {"origin": "http://127.0.0.1"}


def submit(browser: TestClient, **fields: str) -> Any:
    found = re.search(r'name="csrf" value="([^"]+)"', browser.get(PRODUCE).text)
    assert found
    return browser.post(PRODUCE, data={"csrf": found[1], **fields}, headers=ORIGIN)


def test_a_record_is_written_and_the_audit_log_has_no_content(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster.console(writes=True) as browser, caplog.at_level(logging.INFO, "ottla_console.audit"):
        assert "Produce" in browser.get(LIST).text
        done = submit(
            browser, key="secret-key", value="secret-value", headers="h: secret-head", partition="1"
        )
        assert done.status_code == 303
        assert done.headers["location"].endswith("/record?partition=1&offset=999")
    assert cluster.logs.produced == [(b"secret-key", b"secret-value", [("h", b"secret-head")], 1)]
    lines = [each.getMessage() for each in caplog.records if each.name == "ottla_console.audit"]
    assert len(lines) == 1
    assert "action=records.produce resource=topic-00001 outcome=done partition=1" in lines[0]
    assert "secret" not in lines[0]


def test_a_form_that_cannot_be_sent_is_shown_again_with_its_texts(cluster: FakeCluster) -> None:
    with cluster.console(writes=True) as browser:
        wrong = submit(browser, value="<b>{", value_as="json")
        assert wrong.status_code == 400
        assert "Value: not JSON" in wrong.text
        assert "&lt;b&gt;{" in wrong.text
        cluster.logs.failure = errors.TopicAuthorizationFailedError("no")
        refused = submit(browser, value="kept")
        assert refused.status_code == 502
        assert "lacks Write on the topic topic-00001" in refused.text
        assert "kept" in refused.text


def test_without_writes_there_is_no_form_and_a_post_is_refused(cluster: FakeCluster) -> None:
    with cluster.console() as browser:
        page = browser.get(LIST).text
        assert "Produce</a>" not in page
        form = browser.get(PRODUCE)
        assert form.status_code == 403
        assert "The console is read-only" in form.text
        found = re.search(r'name="csrf" value="([^"]+)"', browser.get("/c/test/topics").text)
        assert found
        assert browser.post(PRODUCE, data={"csrf": found[1], "value": "x"}, headers=ORIGIN).status_code == 403
    assert cluster.logs.produced == []
