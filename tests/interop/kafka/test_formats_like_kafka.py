"""Old formats, and records that brokers look into: Apache Kafka 3.9.1 and Ottla, asked the same, agree.

Compressed records are compared opened (codecs are free in what they write), all else byte for byte.

Left out, because Ottla's fast path does not look into batches: those that lie about their inside on a topic
that asks nothing of its records. And batches in which Kafka overlooks that a record's length lies (it skips
keys and values of compressed records by their own lengths): Ottla refuses them.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from crc32c import crc32c

from ottla.protocol.compression import Codec, compress, decompress, fix_lz4_v0_header
from ottla.protocol.legacy_records import encode_message_set
from ottla.protocol.messages import FetchRequest, ListOffsetsRequest
from ottla.protocol.records import CODEC_MASK, Record, TimestampType, build_batch, decode_batch, iter_batches
from tests.interop.kafka.test_records_like_kafka import SETTINGS, make_topic, produce
from tests.judges.request_recorder import RequestRecorder, kafka_and_ottla, same
from tests.legacy_messages import entry, message, wrapped
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(420)

Scenario = Callable[[RequestRecorder], Coroutine[Any, Any, None]]
NOW_MS = time.time_ns() // 1_000_000
OLD_CODECS = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
GOOD = build_batch([Record(at, 1000, b"k", b"v") for at in range(3)])


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    needs_kafka_jars()
    directory: Path = tmp_path_factory.mktemp("formats")
    with kafka_and_ottla(directory, SETTINGS) as by_name:
        yield by_name


async def write(recorder: RequestRecorder, label: str, topic: str, data: bytes, version: int = 9) -> None:
    """Note the answer: texts and times by whether there are any."""
    answer = await recorder.send("anna", produce(topic, data), version)
    part = answer.responses[0].partition_responses[0]
    recorder.note(
        f"{label} to {topic}, v{version}",
        (
            part.error_code,
            part.base_offset,
            part.log_append_time_ms >= 0,
            part.log_start_offset,
            [(e.batch_index, bool(e.batch_index_error_message)) for e in part.record_errors],
            bool(part.error_message) if part.record_errors else None,
        ),
    )


# --- what batches are made of --------------------------------------------------------------------------


def varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def record(offset: int, key: bytes | None = b"k", delta: int = 0) -> bytes:
    keyed = varint(-1) if key is None else varint(len(key)) + key
    fields = b"\0" + varint(delta) + varint(offset) + keyed + varint(1) + b"v" + varint(0)
    return varint(len(fields)) + fields


class Lie(NamedTuple):
    """A batch's records, and a count of them that may not be theirs."""

    body: bytes
    count: int


def sealed(
    lie: Lie,
    codec: int = Codec.NONE,
    *,
    base_timestamp: int = 1000,
    max_timestamp: int = 1000,
    compressed: bytes | None = None,
) -> bytes:
    """A batch of these records with a right checksum."""
    payload = compress(Codec(codec & CODEC_MASK), lie.body) if compressed is None else compressed
    times = base_timestamp, max_timestamp
    rest = struct.pack(">hiqqqhii", codec, lie.count - 1, *times, -1, -1, -1, lie.count) + payload
    return struct.pack(">qiibI", 0, len(rest) + 9, -1, 2, crc32c(rest)) + rest


def three(magic: int) -> bytes:
    return b"".join(message(magic, at, b"k%d" % at, timestamp=1000 + at) for at in range(3))


# --- appending -----------------------------------------------------------------------------------------


def test_batches_whose_headers_contradict_their_records(ports: dict[str, int]) -> None:
    good = record(0) + record(1) + record(2)
    lies = {
        "good": Lie(good, 3),
        "fewer counted": Lie(good, 2),
        "more counted": Lie(good, 4),
        "key too long": Lie(good[:4] + b"\x7e" + good[5:], 3),
        "headers that are not": Lie(good[:8] + b"\x7e" + good[9:], 3),
        "fewer headers than none": Lie(good[:8] + b"\x01" + good[9:], 3),
        "bytes after": Lie(good + b"zz", 3),
        "nothing": Lie(b"", 0),
        "no records": Lie(b"", 3),
        "keys missing": Lie(record(0) + record(1, None) + record(2) + record(3, None), 4),
        "offsets astray": Lie(record(5) + record(1) + record(7), 3),
    }
    uncompressed = {
        "record too long": Lie(bytes([good[0] + 20]) + good[1:], 3),
        "record too short": Lie(bytes([good[0] - 2]) + good[1:], 3),
        "record of less than nothing": Lie(b"\x01" + good[1:], 3),
    }

    async def scenario(recorder: RequestRecorder) -> None:
        await make_topic(recorder, "keyed", cleanup_policy="compact")
        for label, lie in {**lies, **uncompressed}.items():
            await write(recorder, label, "keyed", sealed(lie))
        for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
            for label, lie in lies.items():
                await write(recorder, f"{label}, {codec.name}", "keyed", sealed(lie, codec))
            for label, data in (
                ("garbage", b"garbage!" * 4),
                ("cut short", compress(codec, good)[:-6]),
            ):
                await write(
                    recorder, f"{label}, {codec.name}", "keyed", sealed(Lie(b"", 3), codec, compressed=data)
                )
        for code in (5, 7):
            await write(recorder, f"codec {code}", "keyed", sealed(Lie(good, 3), code, compressed=good))
        for version in (8, 7, 5, 3):
            await write(recorder, "a key missing", "keyed", sealed(Lie(record(0, None), 1)), version)

    same(ports, scenario)


def test_timestamps_of_the_producer_and_of_the_broker(ports: dict[str, int]) -> None:
    now_ms = time.time_ns() // 1_000_000  # limits count from when a record comes

    async def scenario(recorder: RequestRecorder) -> None:
        settings = {
            "plain": {},
            "keyed2": {"cleanup_policy": "compact"},
            "stamped": {"message_timestamp_type": "LogAppendTime"},
            "limited": {
                "message_timestamp_before_max_ms": "100000",
                "message_timestamp_after_max_ms": "100000",
            },
            "zipped": {"compression_type": "gzip"},
        }
        for topic, configs in settings.items():
            await make_topic(recorder, topic, **configs)
            for codec in (Codec.NONE, Codec.GZIP):

                async def send(label: str, deltas: list[int], codec: int, base: int, **highest: int) -> None:
                    body = b"".join(record(at, delta=delta) for at, delta in enumerate(deltas))
                    times = {"base_timestamp": base, "max_timestamp": base + max(deltas), **highest}
                    data = sealed(Lie(body, len(deltas)), codec, **times)
                    await write(recorder, f"{label}, codec {codec}", topic, data)  # noqa: B023

                await send("now", [0, 0], codec, now_ms)
                await send("none", [0, 0], codec, -1)
                await send("too early and too late", [0, -500_000, 500_000], codec, now_ms)
                await send("one without, one early", [0, 1000], codec, -1)
                await send("marked as a broker's", [0, 5], codec | 8, now_ms)
                await send("marked, but none", [0, 0], codec | 8, -1)
                await send("marked, too early", [0, 0], codec | 8, 5)
                if topic not in ("plain", "zipped"):  # where Ottla does not look
                    await send("a highest that lies", [0, 5], codec, now_ms, max_timestamp=9 * now_ms)
            if topic != "stamped":
                await note_stored(recorder, topic)

    same(ports, scenario)


async def note_stored(recorder: RequestRecorder, topic: str) -> None:
    """All of a topic as Fetch 10 gives it: headers, and records where a codec was at work."""
    answer = await recorder.send("anna", fetch(topic), 10)
    data = bytes(answer.responses[0].partitions[0].records)
    found: list[object] = []
    for pos, header in iter_batches(data):
        if header.attributes & CODEC_MASK:
            found.append((header._replace(crc=0, batch_length=0), decode_batch(data, pos)))
        else:
            found.append(data[pos : pos + header.size])
    recorder.note(f"what {topic} holds", "".join(f"\n    {each}" for each in found))


def test_recompression(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        settings = {
            "as-gzip": {"compression_type": "gzip", "compression_gzip_level": "1"},
            "as-snappy": {"compression_type": "snappy"},
            "as-lz4": {"compression_type": "lz4", "compression_lz4_level": "3"},
            "as-zstd": {"compression_type": "zstd", "compression_zstd_level": "7"},
            "as-is": {"compression_type": "producer"},
            "as-none": {"compression_type": "uncompressed", "max_message_bytes": "300"},
        }
        odd = record(3, delta=4) + record(1, delta=9) + record(9, delta=2)
        for topic, configs in settings.items():
            await make_topic(recorder, topic, **configs)
            for codec in Codec:
                for label, (lie, highest) in {
                    "good": (Lie(record(0) + record(1, delta=7) + record(2, delta=3), 3), 1007),
                    "offsets and times astray": (Lie(odd, 3), 1009),
                    "fewer counted": (Lie(record(0) + record(1), 1), 1000),
                    "large": (Lie(b"".join(record(at) for at in range(40)), 40), 1000),
                }.items():
                    unseen = topic == "as-is" or _in_place(topic, codec)
                    if unseen and label in ("offsets and times astray", "fewer counted"):
                        continue  # Ottla does not look
                    await write(
                        recorder, f"{label}, {codec.name}", topic, sealed(lie, codec, max_timestamp=highest)
                    )
                if codec is not Codec.ZSTD:
                    await write(recorder, f"marked, {codec.name}", topic, sealed(Lie(odd[:9], 1), codec | 8))
            early = sealed(Lie(record(0), 1), Codec.GZIP, base_timestamp=-5, max_timestamp=-1)
            await write(recorder, "before 1970", topic, early)
            for magic in (0, 1):
                await write(recorder, f"format {magic}", topic, three(magic), 2)
                await write(
                    recorder,
                    f"format {magic}, wrapped",
                    topic,
                    wrapped(magic, Codec.GZIP, 0, three(magic)),
                    2,
                )
            await note_stored(recorder, topic)

    same(ports, scenario)


def _in_place(topic: str, codec: Codec) -> bool:
    return topic == f"as-{codec.name.lower()}"


def test_message_sets_of_old_clients(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        await make_topic(recorder, "old")
        await make_topic(recorder, "old-keyed", cleanup_policy="compact")
        await make_topic(recorder, "old-small", max_message_bytes="100")
        await make_topic(recorder, "old-stamped", message_timestamp_type="LogAppendTime")
        await make_topic(
            recorder,
            "old-limited",
            message_timestamp_before_max_ms="1000",
            message_timestamp_after_max_ms="1000",
        )
        for topic in ("old", "old-keyed"):
            for magic in (0, 1):
                for label, data in message_sets(magic).items():
                    await write(recorder, f"{label}, format {magic}", topic, data, 2)
                for version in (0, 1):
                    await write(recorder, f"three, format {magic}", topic, three(magic), version)
            for label, data in {
                "empty": b"",
                "five bytes": b"12345",
                "magic 3": bytes(8) + b"\0\0\0\x30" + bytes(4) + b"\3" + bytes(50),
                "magic -1": bytes(8) + b"\0\0\0\x30" + bytes(4) + b"\xff" + bytes(50),
                "format 2": GOOD,
                "format 2 twice": GOOD * 2,
                "format 1, then 2": message(1) + GOOD,
                "format 2, then 1": GOOD + message(1),
            }.items():
                await write(recorder, label, topic, data, 2)
            await note_stored(recorder, topic)
        late, early = message(1, timestamp=9 * NOW_MS), message(1, timestamp=9)
        for topic in ("old", "old-stamped", "old-limited"):
            for label, data in {
                "no time": message(0),
                "before 1970": message(1, timestamp=-7),
                "late, then early": late + early,
                "early, wrapped": wrapped(1, Codec.GZIP, 0, early),
                "marked": message(1, attributes=8),
                "marked, without time": message(1, attributes=8, timestamp=-1),
                "marked, wrapped": wrapped(1, Codec.GZIP, 0, message(1), 8),
            }.items():
                await write(recorder, label, topic, data, 2)
        for label, data in {
            "one too large": message(1, value=b"v" * 100),
            "too large as format 2": message(1, value=b"v" * 60),
            "too large together": message(1, value=b"v" * 20) * 4,
        }.items():
            await write(recorder, label, "old-small", data, 2)

    same(ports, scenario)


def message_sets(magic: int) -> dict[str, bytes]:
    """What an old client might send, and what none should."""
    whole = three(magic)
    damaged = whole[:-1] + b"w"
    tiny = bytes(8) + b"\0\0\0\x05" + bytes(9)
    head = struct.pack(">bb", magic, 0) + (struct.pack(">q", 5) if magic else b"")
    some = message(magic) + message(magic, 1, None) + message(magic, 2, None)
    sets = {
        "three": whole,
        "no keys": some,
        "no keys, wrapped": wrapped(magic, Codec.GZIP, 2, some),
        "wrapper at 0": wrapped(magic, Codec.GZIP, 0, whole),
        "wrapper at 1": wrapped(magic, Codec.GZIP, 1, whole),
        "all at 0": wrapped(magic, Codec.GZIP, 0, message(magic) * 3),
        "two wrappers": wrapped(magic, Codec.GZIP, 2, whole) * 2,
        "a wrapper and one": wrapped(magic, Codec.GZIP, 2, whole) + message(magic),
        "empty wrapper": wrapped(magic, Codec.GZIP, 0, b""),
        "the other format within": wrapped(magic, Codec.GZIP, 0, message(1 - magic) + message(magic)),
        "wrapped twice": wrapped(magic, Codec.GZIP, 0, wrapped(magic, Codec.GZIP, 0, whole)),
        "damaged": damaged,
        "damaged within": wrapped(magic, Codec.GZIP, 2, damaged),
        "cut": whole[:-1],
        "cut within": wrapped(magic, Codec.GZIP, 2, whole[:-3]),
        "first cut": whole[:20],
        "too small": whole + tiny,
        "too small within": wrapped(magic, Codec.GZIP, 2, whole + tiny),
        "garbage within": message(magic, value=b"garbage!", attributes=1),
        "a wrapper of null": message(magic, 0, None, None, attributes=1),
        "zstd": message(magic, 0, None, compress(Codec.ZSTD, whole), attributes=4),
        "codec 6": message(magic, 0, None, b"x", attributes=6),
        "both formats": message(magic) + message(1 - magic),
        "a key that is too long": entry(0, head + struct.pack(">i", 500) + b"kkkkkk"),
        "a key of -3": entry(0, head + struct.pack(">ii", -3, 1) + b"v"),
    }
    for codec in OLD_CODECS:
        sets[f"wrapped, {codec.name}"] = wrapped(magic, codec, 2, whole)
    return sets


# --- fetching ------------------------------------------------------------------------------------------


def fetch(topic: str, offset: int = 0, *, partitions: int = 1, **options: int) -> FetchRequest:
    limits = {"partition_max_bytes": 1 << 20, "fetch_offset": offset}
    whole = {name: options.pop(name) for name in ("max_bytes", "replica_id") if name in options}
    rows = [
        FetchRequest.FetchPartition(partition=index, **{**limits, **options}) for index in range(partitions)
    ]
    asked = FetchRequest.FetchTopic(topic=topic, partitions=rows)
    return FetchRequest(max_wait_ms=0, min_bytes=1, topics=[asked], **whole)


def opened(data: bytes) -> list[Any]:
    """A message set with what codecs wrote replaced by what it stands for, without what was cut off."""
    found: list[Any] = []
    pos = 0
    while pos + 12 <= len(data):
        (size,) = struct.unpack_from(">i", data, pos + 8)
        end = pos + 12 + size
        if end > len(data):
            break
        magic, attributes = data[pos + 16], data[pos + 17]
        codec = Codec(attributes & CODEC_MASK)
        if codec is Codec.NONE:
            found.append(data[pos:end])
        else:
            value_at = pos + (34 if magic else 26)
            value = data[value_at:end]
            header = value[:7] if codec is Codec.LZ4 else b""
            if magic == 0 and codec is Codec.LZ4:
                value = fix_lz4_v0_header(value)
            head = data[pos : pos + 8] + data[pos + 16 : value_at - 4]
            found.append((head, header, decompress(codec, value)))
        pos = end
    return found


async def read(
    recorder: RequestRecorder, label: str, request: FetchRequest, *versions: int, exact: bool = True
) -> None:
    for version in versions or (0, 1, 2, 3):
        answer = await recorder.send("anna", request, version)
        for topic in answer.responses:
            for part in topic.partitions:
                data = bytes(part.records or b"")
                noted = (part.error_code, part.high_watermark, data if exact else opened(data))
                recorder.note(f"{label} of {topic.topic}-{part.partition_index}, v{version}", noted)


async def refill(recorder: RequestRecorder, topic: str, *batches: bytes, **configs: str) -> None:
    await make_topic(recorder, topic, **configs)
    for data in batches:
        answer = await recorder.send("anna", produce(topic, data), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0


def some(count: int, size: int = 10, codec: Codec = Codec.NONE, **options: Any) -> bytes:
    records = [
        Record(
            at, NOW_MS + at % 7, b"k%d" % at if at % 3 else None, bytes([65 + at % 26]) * size, [("h", b"")]
        )
        for at in range(count)
    ]
    records[-1] = records[-1]._replace(value=None)
    return build_batch(records, codec=codec, **options)


def test_uncompressed_records_are_converted_to_the_same_bytes(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        await refill(recorder, "bytes", some(5), some(1), some(30), some(200, 50), some(3000, 100), some(2))
        await refill(recorder, "growing", *[some(40, 0)] * 5)
        for topic in ("bytes", "growing"):
            for offset in (0, 2, 6, 35, 36, 100, 199, 200):
                await read(recorder, f"from {offset}", fetch(topic, offset))
            for size in (0, 1, 50, 200, 300, 400, 1000, 5000, 14_000, 60_000, 400_000):
                await read(recorder, f"{size} bytes", fetch(topic, partition_max_bytes=size))
                await read(recorder, f"{size} bytes in all", fetch(topic, max_bytes=size), 3)
            await read(recorder, "beyond the end", fetch(topic, 99_999))
            await read(recorder, "before the start", fetch(topic, -1))
        await read(recorder, "no such partition", fetch("bytes", partitions=3))
        await read(recorder, "no such topic", fetch("nowhere"))

    same(ports, scenario)


def test_compressed_records_are_converted_to_the_same_messages(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        for codec in OLD_CODECS:
            topic = f"packed-{codec.name.lower()}"
            await refill(recorder, topic, some(5, 10, codec), some(1, 10, codec), some(20, 10, codec))
            for offset in (0, 2, 5, 6, 25, 26):
                await read(
                    recorder, f"from {offset}", fetch(topic, offset, partition_max_bytes=10_000), exact=False
                )
        stamped = {"message_timestamp_type": "LogAppendTime"}
        await refill(recorder, "packed-stamped", some(5, 10, Codec.GZIP), some(4), **stamped)
        answers: list[list[Any]] = []
        for version in (0, 1, 2, 3):
            answer = await recorder.send("anna", fetch("packed-stamped"), version)
            answers.append(opened(bytes(answer.responses[0].partitions[0].records)))
        # The times are the brokers' own: what is compared is where they are, and which of them agree.
        recorder.note("marks", [(entry[0][9], entry[2][17]) for entry in (each[0] for each in answers)])
        times = {entry[0][10:18] for each in answers[2:] for entry in each[:1]}
        times |= {entry[2][18:26] for each in answers[2:] for entry in each[:1]}
        recorder.note("one time", len(times))

    same(ports, scenario)


def test_batches_that_cannot_be_converted(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        zstd = some(3, 10, Codec.ZSTD)
        await refill(recorder, "zstd-first", zstd, some(3))
        await refill(recorder, "zstd-later", some(3), zstd, some(3))
        await refill(recorder, "zstd-far", some(2), some(100, 1000), some(100, 1000), zstd)
        await refill(recorder, "zstd-only", some(3), compression_type="zstd")
        await refill(recorder, "refusing", some(3), message_downconversion_enable="false")
        for topic in ("zstd-first", "zstd-later", "zstd-far", "zstd-only", "refusing"):
            await read(recorder, "the start", fetch(topic), 0, 1, 2, 3)
            await read(recorder, "further on", fetch(topic, 3), 0, 1, 2, 3)
            await read(recorder, "the end", fetch(topic, 9), 0, 3)
            await read(recorder, "beyond", fetch(topic, 99_999), 0, 3)
            for version in (4, 9, 10):
                answer = await recorder.send("anna", fetch(topic), version)
                part = answer.responses[0].partitions[0]
                has_records = bool(part.records)
                recorder.note(f"{topic}, v{version}", (part.error_code, part.high_watermark, has_records))

    same(ports, scenario)


def test_offsets_of_old_clients(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        await refill(recorder, "before", some(3), some(4), some(1))
        for timestamp in (-1, -2, 0, NOW_MS * 2):
            for count in (0, 1, 2, 10):
                part = ListOffsetsRequest.ListOffsetsPartition(
                    partition_index=0, timestamp=timestamp, max_num_offsets=count
                )
                row = ListOffsetsRequest.ListOffsetsTopic(name="before", partitions=[part])
                request = ListOffsetsRequest(replica_id=-1, topics=[row])
                await recorder.ask(f"{count} before {timestamp}", "anna", request, 0)

    same(ports, scenario)


def test_kafka_reads_converted_batches_of_old_clients(ports: dict[str, int]) -> None:
    """Message sets of ours, appended by Apache Kafka, come back as the records they were made of."""
    records = [Record(at, NOW_MS + at, b"k", b"v%d" % at) for at in range(20)]

    async def scenario(recorder: RequestRecorder) -> None:
        await make_topic(recorder, "written")
        for magic in (0, 1):
            for codec in (Codec.NONE, *OLD_CODECS):
                data = encode_message_set(records, magic, codec)
                await write(recorder, f"format {magic}, {codec.name}", "written", data, 2)
        data = encode_message_set(records, 1, Codec.GZIP, append_time=5)
        await write(recorder, "marked", "written", data, 2)
        await note_stored(recorder, "written")
        answer = await recorder.send("anna", fetch("written"), 4)
        found = bytes(answer.responses[0].partitions[0].records)
        values = [r.value for pos, _ in iter_batches(found) for r in decode_batch(found, pos)]
        assert values == [record.value for record in records] * 9

    same(ports, scenario)


assert TimestampType.LOG_APPEND_TIME << 3 == 8
