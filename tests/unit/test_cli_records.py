"""Filters, formats and values of `ottla consume`, and how `ottla produce` reads its input."""

from __future__ import annotations

import io
import json
import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from ottla.cli import record_filters
from ottla.cli.perf import Latencies, Throughput, due_s
from ottla.cli.produce import _InputError, _RecordBuilder, _records
from ottla.cli.record_filters import BadFilter
from ottla.cli.record_formats import DecodedRecord, header_line, make_formatter
from ottla.cli.record_values import plain, reader, writer
from ottla.client.core.types import ConsumerRecord

ORDER = {"id": 7, "user": {"name": "Ann", "tags": ["a", "b"]}, "a.b": None, "total": 9.5}


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("id", True),
        ("id=7", True),
        ("$.id == 7", True),
        ("id=8", False),
        ("id!=8", True),
        ("no.such!=8", False),
        ("total>9", True),
        ("total >= 9.5", True),
        ("total<9", False),
        ("user.name=Ann", True),
        ('user.name="Ann"', True),
        ("user.name>Al", True),
        ("user.name~^A", True),
        ("user.name~^B", False),
        ("user.tags[1]=b", True),
        ("user.tags[2]", False),
        ('user.tags=["a","b"]', True),
        ('["a.b"]=null', True),
        ("user.name>5", False),
        ("id.more", False),
        ("$", True),
    ],
)
def test_a_filter_by_path_compares_a_field_of_the_json_value(text: str, accepted: bool) -> None:
    accepts = record_filters.by_path(text)
    assert accepts(None, json.dumps(ORDER).encode(), []) is accepted
    assert accepts(None, ORDER, []) is accepted, "a decoded value is filtered alike"
    assert accepts(None, None, []) is (text == "$")


def test_values_that_are_not_json_have_no_paths() -> None:
    assert not record_filters.by_path("id")(None, b"{no json", [])
    assert not record_filters.by_path("id")(None, b"\xff", [])
    assert record_filters.by_path("id=7")(None, b'{"id": "7"}', []), "a text is compared as text"


@pytest.mark.parametrize("text", ["=7", "id=~", "a b", "user..", "x~(", ""])
def test_a_bad_path_is_refused(text: str) -> None:
    if text == "id=~":
        assert not record_filters.by_path(text)(None, ORDER, [])
        return
    with pytest.raises(BadFilter):
        record_filters.by_path(text)


def test_filters_compare_keys_headers_and_text() -> None:
    headers = [("h", b"1"), ("h", b"2"), ("none", None)]
    assert record_filters.by_header("h=2")(b"k", b"v", headers)
    assert record_filters.by_header("none")(b"k", b"v", headers)
    assert not record_filters.by_header("none=")(b"k", b"v", headers)
    assert not record_filters.by_header("h=3")(b"k", b"v", headers)
    assert record_filters.by_key("k")(b"k", None, [])
    assert not record_filters.by_key("k")(None, None, [])
    assert record_filters.by_key_pattern("^a.c$")(b"abc", None, [])
    assert record_filters.by_text("é")(None, "café".encode(), [])
    assert not record_filters.by_text(".")(None, None, [])
    with pytest.raises(BadFilter, match="regular expression"):
        record_filters.by_text("(")


RECORD = ConsumerRecord("t", 2, 5, 1_700_000_000_123, 0, b"k", b"v,\xff", [("h", b"x"), ("h", None)])


def shown(value: Any = b"v,\xff", key: Any = b"k") -> DecodedRecord:
    return DecodedRecord(RECORD._replace(key=key, value=value), key, value)


def test_a_format_determines_how_a_record_is_written() -> None:
    assert make_formatter("text", None, None)(shown()) == b"v,\xff\n"
    assert make_formatter("text", None, ":")(shown()) == b"k:v,\xff\n"
    assert make_formatter("text", None, None)(shown({"a": 1})) == b'{"a": 1}\n'
    assert make_formatter("raw", None, None)(shown()) == b"v,\xff"
    assert json.loads(make_formatter("json", None, None)(shown())) == {
        "topic": "t", "partition": 2, "offset": 5, "timestamp": 1_700_000_000_123, "key": "k",
        "value": "v,\\xff", "headers": [["h", "x"], ["h", None]],
    }  # fmt: skip
    assert header_line("csv", None) == b"topic,partition,offset,timestamp,key,value,headers\r\n"
    assert make_formatter("csv", None, None)(shown('say "x"', None)) == (
        b't,2,5,1700000000123,,"say ""x""","[[""h"", ""x""], [""h"", null]]"\r\n'
    )
    template = make_formatter(
        "text", r"{topic}-{partition}@{offset}\t{time} {key}={value} {header:h}{header:no}", None
    )
    assert template(shown(b"v")) == b"t-2@5\t2023-11-14T22:13:20.123+00:00 k=v \n"
    with pytest.raises(ValueError, match=r"\{nokey\}; allowed: topic"):
        make_formatter("text", "{nokey}", None)


def test_values_of_javas_serializers_are_read() -> None:
    assert reader("int", None)("t", struct.pack(">i", -7)) == -7
    assert reader("long", None)("t", b"\0" * 7 + b"\x05") == 5
    assert reader("double", None)("t", struct.pack(">d", 0.5)) == 0.5
    assert reader("hex", None)("t", b"\xca\xfe") == "cafe"
    assert reader("json", None)("t", None) is None
    assert reader("auto", None)("t", b"\xff") == b"\xff"
    with pytest.raises(ValueError, match="3 bytes, not 4"):
        reader("int", None)("t", b"abc")
    for form, text in (("int", "-7"), ("long", "5"), ("double", "0.5"), ("hex", "cafe"), ("base64", "yv4=")):
        assert str(reader(form, None)("t", writer(form)(text))) == text
    with pytest.raises(ValueError, match="99999"):
        writer("short")("99999")
    at = datetime(2026, 1, 2, tzinfo=UTC)
    assert plain({"a": [at, Decimal("1.50"), b"\xff"]}) == {
        "a": ["2026-01-02T00:00:00+00:00", "1.50", "\\xff"]
    }


def builder(**changes: Any) -> _RecordBuilder:
    settings: dict[str, Any] = {
        "topic": "t", "partition": None, "headers": [("all", b"1")], "null": None, "separator": None,
        "encode_key": lambda data: data, "encode_value": lambda data: data, "json_keys": False,
        "json_values": False, "last": 2,
    }  # fmt: skip
    return _RecordBuilder(**{**settings, **changes})


def read(text: bytes, form: str, **changes: Any) -> list[Any]:
    file = io.BufferedReader(io.BytesIO(text))  # type: ignore[arg-type]
    found: list[Any] = []
    for each in _records([file], form, builder(**changes)):
        found += [str(each)] if isinstance(each, _InputError) else each
    return found


def test_csv_columns_are_read_by_name() -> None:
    columns = b"value,key,partition,headers,timestamp\r\n"
    text = columns + b'"a\nb",k,2,"[[""h"", ""x""], [""h"", null]]",5\r\nNULL,,,,\r\n'
    first, second = read(text, "csv", null=b"NULL")
    assert (first.value, first.key, first.partition, first.timestamp_ms) == (b"a\nb", b"k", 2, 5)
    assert list(first.headers) == [("all", b"1"), ("h", b"x"), ("h", None)]
    assert (second.value, second.key, second.partition) == (None, None, None)


def test_records_that_consume_prints_as_csv_and_json_are_read_again() -> None:
    for form in ("csv", "json"):
        text = header_line(form, None) + make_formatter(form, None, None)(shown(b"v"))
        (record,) = read(text, form)
        assert (record.key, record.value, record.partition, record.timestamp_ms) == (
            b"k", b"v", 2, 1_700_000_000_123,
        )  # fmt: skip
        assert list(record.headers)[1:] == [("h", b"x"), ("h", None)]


@pytest.mark.parametrize(
    ("form", "text", "says"),
    [
        ("json", b'{"value": 1}\n[]\n', "line 2: not an object with a value"),
        ("json", b'{"value": 1}\n{"value": 1, "kee": 2}\n', "line 2: field kee is not known"),
        ("json", b'{"value": 1}\n{"value": 1, "partition": 3}\n', "line 2: t has partitions 0 to 2, not 3"),
        ("json", b'{"value": 1}\n{"value": 1, "timestamp": "x"}\n', "line 2: timestamp: 'x' is not a whole"),
        ("json", b'{"value": 1}\n{"value": 1, "headers": 5}\n', "line 2: headers: 5 is neither"),
        ("json", b'{"value": 1}\n{"value"\n', "line 2: Expecting"),
        ("csv", b"value,key\na,b\nc\n", "line 3: 1 fields for 2 columns"),
        ("csv", b"value,partition\na,0\nc,-1\n", "line 3: partition: '-1' is not a whole number from 0"),
    ],
)
def test_invalid_input_is_reported_by_line_and_the_rest_is_read(form: str, text: bytes, says: str) -> None:
    first, problem, last = read(text + text.splitlines(keepends=True)[-2], form)
    assert says in problem
    assert first.value == last.value


def test_records_are_due_by_their_rate_and_latencies_have_percentiles() -> None:
    assert due_s(50, 100.0) == 0.5
    assert due_s(50, -1.0) == 0.0
    found = Latencies.of([float(each) for each in range(1000, 0, -1)])
    assert (found.average, found.most) == (500.5, 1000.0)
    assert found.percentiles == (501.0, 951.0, 991.0, 1000.0)
    assert Latencies.of([]).percentiles == (0.0, 0.0, 0.0, 0.0)
    assert Throughput(10, 2 * 1024 * 1024, 2.0).mb_per_s == 1.0
