"""Appends that look at records, or write them anew, because of the topic's settings or an old client."""

from __future__ import annotations

from pathlib import Path

import pytest
from crc32c import crc32c

from ottla.protocol.compression import Codec
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.records import (
    BatchHeader,
    Record,
    TimestampType,
    build_batch,
    decode_records,
    parse_batch_header,
    verify_crc,
)
from ottla.storage.log import Log, LogAppendInfo
from ottla.storage.log_config import LogConfig
from ottla.storage.log_validator import SlowPath, needs_rewrite_or_records, slow_paths
from ottla.storage.record_validation import InvalidRecords
from tests.legacy_messages import message, wrapped
from tests.worlds.storage_logs import NOW_MS, append, batch, contents, open_log, values

COMPACTED = LogConfig(cleanup_policy="compact")
STAMPED = LogConfig(message_timestamp_type="LogAppendTime")
LIMITED = LogConfig(message_timestamp_after_max_ms=10, message_timestamp_before_max_ms=100)
KEYS_AT = (0, 2)
LAT = TimestampType.LOG_APPEND_TIME


def add(log: Log, data: bytes) -> LogAppendInfo:
    return log.append_as_leader(data, leader_epoch=3, now_ms=NOW_MS)


def refused(log: Log, data: bytes) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        add(log, data)
    assert log.log_end_offset == 0, "a refused batch changes nothing"
    return caught.value


def stored(log: Log) -> tuple[BatchHeader, list[Record]]:
    """The first batch of the log, which must be whole, and its records."""
    data = log.read(0, 1 << 20, up_to=log.log_end_offset).to_bytes()
    header = parse_batch_header(data)
    assert verify_crc(data, 0, header)
    return header, decode_records(data[: header.size])


def resealed(data: bytes) -> bytes:
    """The batch with the checksum that its bytes need."""
    return data[:17] + crc32c(data[21:]).to_bytes(4, "big") + data[21:]


class TestWhichPathsAreTaken:
    @pytest.mark.parametrize(
        ("config", "attributes", "paths"),
        [
            (LogConfig(), 0, SlowPath.NONE),
            (LogConfig(), Codec.ZSTD, SlowPath.COMPRESSED),
            (LogConfig(), 8, SlowPath.MARKED),
            (COMPACTED, 0, SlowPath.KEYS),
            (LogConfig(cleanup_policy="compact,delete"), 0, SlowPath.KEYS),
            (STAMPED, 0, SlowPath.LOG_APPEND_TIME),
            (LIMITED, 0, SlowPath.TIMESTAMPS),
            (LogConfig(compression_type="gzip"), Codec.GZIP, SlowPath.COMPRESSED),
            (LogConfig(compression_type="gzip"), Codec.LZ4, SlowPath.RECOMPRESSION | SlowPath.COMPRESSED),
            (LogConfig(compression_type="uncompressed"), Codec.NONE, SlowPath.NONE),
            (
                LogConfig(compression_type="uncompressed"),
                Codec.LZ4,
                SlowPath.RECOMPRESSION | SlowPath.COMPRESSED,
            ),
        ],
    )
    def test_settings_and_header_decide(self, config: LogConfig, attributes: int, paths: SlowPath) -> None:
        assert slow_paths(config, 2, attributes) is paths
        assert slow_paths(config, 1, attributes) is paths & ~SlowPath.COMPRESSED | SlowPath.OLD_FORMAT

    def test_limits_on_timestamps_do_not_matter_where_the_broker_sets_them(self) -> None:
        config = LogConfig(message_timestamp_type="LogAppendTime", message_timestamp_after_max_ms=10)
        assert slow_paths(config, 2, 0) is SlowPath.LOG_APPEND_TIME

    def test_a_plain_topic_leads_to_none(self) -> None:
        assert not needs_rewrite_or_records(LogConfig())
        assert needs_rewrite_or_records(LogConfig(compression_type="gzip"))


class TestKeys:
    @pytest.mark.parametrize("codec", Codec)
    def test_a_compacted_topic_wants_them_and_every_record_without_is_named(
        self, tmp_path: Path, codec: Codec
    ) -> None:
        log = open_log(tmp_path, COMPACTED)
        records = [Record(at, 1, b"k" if at in KEYS_AT else None, b"v") for at in range(4)]
        error = refused(log, build_batch(records, codec=codec))
        assert isinstance(error, InvalidRecords)
        assert error.code is ErrorCode.INVALID_RECORD
        assert [each.batch_index for each in error.record_errors] == [1, 3]
        assert append(log, "a", codec=codec) == 0

    def test_a_tombstone_is_taken(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, COMPACTED)
        assert add(log, build_batch([Record(0, 1, b"k", None)])).first_offset == 0


class TestTimestamps:
    def test_timestamps_that_are_too_far_off_are_refused_and_named(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, LIMITED)
        times = [NOW_MS, NOW_MS + 11, -1, NOW_MS - 101, NOW_MS - 100]
        error = refused(log, build_batch([Record(0, at, b"k", b"v") for at in times]))
        assert isinstance(error, InvalidRecords)
        assert error.code is ErrorCode.INVALID_TIMESTAMP
        assert [each.batch_index for each in error.record_errors] == [1, 3]
        assert append(log, "a", timestamp=NOW_MS + 10) == 0
        assert append(log, "a", timestamp=-1) == 1

    def test_wrong_timestamps_weigh_more_than_missing_keys(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, LogConfig(cleanup_policy="compact", message_timestamp_after_max_ms=10))
        records = [Record(0, NOW_MS, None, b"v"), Record(1, NOW_MS + 99, b"k", b"v")]
        error = refused(log, build_batch(records))
        assert isinstance(error, InvalidRecords)
        assert error.code is ErrorCode.INVALID_TIMESTAMP
        codes = [each.code for each in error.record_errors]
        assert codes == [ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP]

    def test_the_header_does_not_lie_about_the_highest_once_records_are_read(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, LIMITED)
        data = bytearray(batch("a"))
        data[35:43] = (9 * NOW_MS).to_bytes(8, "big")
        assert add(log, resealed(bytes(data))).max_timestamp == NOW_MS
        assert stored(log)[0].max_timestamp == NOW_MS


class TestLogAppendTime:
    def test_the_broker_stamps_the_batch_with_its_own_time(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, STAMPED)
        info = add(log, batch("a", timestamp=5))
        assert (info.max_timestamp, info.log_append_time) == (NOW_MS, NOW_MS)
        assert stored(log)[1][0].timestamp == NOW_MS

    def test_a_client_may_not_say_so_where_brokers_do(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, STAMPED)
        error = refused(log, build_batch([Record(0, 5, b"k", b"v")] * 2, timestamp_type=LAT))
        assert isinstance(error, InvalidRecords)
        assert error.code is ErrorCode.INVALID_TIMESTAMP
        assert [each.batch_index for each in error.record_errors] == [0, 1]

    def test_elsewhere_it_is_the_clients_time_after_all(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        assert add(log, build_batch([Record(0, 5, b"k", b"v")], timestamp_type=LAT)).max_timestamp == 5
        header, _ = stored(log)
        assert (header.timestamp_type, header.max_timestamp) == (TimestampType.CREATE_TIME, 5)

    def test_a_message_without_a_timestamp_is_refused_where_times_are_limited(self, tmp_path: Path) -> None:
        data = build_batch([Record(0, -1, b"k", b"v")], timestamp_type=LAT)
        assert refused(open_log(tmp_path), data).code is ErrorCode.INVALID_TIMESTAMP


class TestRecompression:
    @pytest.mark.parametrize("target", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
    @pytest.mark.parametrize("codec", Codec)
    def test_batches_are_stored_in_the_topics_codec(self, tmp_path: Path, target: str, codec: Codec) -> None:
        log = open_log(tmp_path, LogConfig(compression_type=target))
        append(log, "a", "b", codec=codec, producer=(7, 2, 40))
        header, records = stored(log)
        assert header.codec is LogConfig(compression_type=target).target_codec
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 40)
        assert [record.value for record in records] == [b"a", b"b"]
        assert append(log, "c", codec=header.codec, producer=(7, 2, 42)) == 2

    @pytest.mark.parametrize(
        ("codec", "levels"), [("gzip", ("1", "9")), ("lz4", ("9", "8")), ("zstd", ("1", "19"))]
    )
    def test_the_topics_compression_level_is_used(
        self, tmp_path: Path, codec: str, levels: tuple[str, str]
    ) -> None:
        data = batch(*[f"value {number} of {number % 7}" for number in range(2000)])
        sizes = []
        for level in levels:
            props = {"compression.type": codec, f"compression.{codec}.level": level}
            log = open_log(tmp_path / level, LogConfig.from_mapping(props))
            add(log, data)
            sizes.append(log.size)
        assert sizes[0] != sizes[1]

    def test_records_that_are_not_as_we_write_them_are_written_anew(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, LogConfig(compression_type="gzip"))
        records = [Record(at, 1000 + at, b"k", b"%d" % at) for at in (0, 1, 2)]
        data = bytearray(build_batch(records))
        data[27:35] = (900).to_bytes(8, "big")  # the base timestamp: the first record is not at it
        for at, first in enumerate(range(61, len(data), 9)):
            assert data[first + 3] == 2 * at
            data[first + 2] = 2 * (100 + at) & 0x7F
            data[first + 3] = 6 * at  # offsets with gaps
        add(log, resealed(bytes(data)))
        header, found = stored(log)
        assert [record.offset for record in found] == [0, 1, 2]
        assert header.base_timestamp == found[0].timestamp

    def test_a_batch_that_becomes_too_large_is_refused(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, LogConfig(compression_type="uncompressed", max_message_bytes=500))
        assert refused(log, batch("x" * 600, codec=Codec.GZIP)).code is ErrorCode.MESSAGE_TOO_LARGE

    def test_a_bomb_is_refused(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, LogConfig(compression_type="gzip"))
        bomb = build_batch([Record(0, 1, b"k", bytes(65 << 20))], codec=Codec.ZSTD)
        assert refused(log, bomb).code is ErrorCode.MESSAGE_TOO_LARGE


class TestBatchesThatLie:
    GOOD = build_batch([Record(at, 1000, b"k", b"v") for at in range(3)])

    @pytest.mark.parametrize(
        ("position", "value"),
        [(61, 0x7E), (61, 0x0C), (61, 0x01), (65, 0x7E), (67, 0x7E), (69, 0x7E), (69, 0x01)],
        ids=["long", "short", "negative", "key", "value", "headers", "fewer headers than none"],
    )
    def test_lengths_and_counts_that_do_not_fit_are_found(
        self, tmp_path: Path, position: int, value: int
    ) -> None:
        data = bytearray(self.GOOD)
        data[position] = value
        assert refused(open_log(tmp_path, COMPACTED), resealed(bytes(data))).code is ErrorCode.INVALID_RECORD

    @pytest.mark.parametrize("count", [2, 4, 10**9])
    def test_so_are_more_or_fewer_records_than_there_are(self, tmp_path: Path, count: int) -> None:
        data = bytearray(self.GOOD)
        data[23:27] = (count - 1).to_bytes(4, "big")
        data[57:61] = count.to_bytes(4, "big")
        assert refused(open_log(tmp_path, COMPACTED), resealed(bytes(data))).code is ErrorCode.INVALID_RECORD

    @pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
    def test_a_batch_that_does_not_decompress_is_refused_with_kafkas_error(
        self, tmp_path: Path, codec: Codec
    ) -> None:
        data = bytearray(self.GOOD)
        data[22] = codec
        refusal = refused(open_log(tmp_path, COMPACTED), resealed(bytes(data)))
        assert refusal.code is ErrorCode.UNKNOWN_SERVER_ERROR

    @pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
    def test_the_highest_timestamp_of_a_compressed_batch_is_put_right(
        self, tmp_path: Path, codec: Codec
    ) -> None:
        records = [Record(at, NOW_MS + delta, b"k", b"v") for at, delta in enumerate((0, 70_000, 300, -5))]
        data = bytearray(build_batch(records, codec=codec))
        for number, told in enumerate((NOW_MS + 69_999, 9 * NOW_MS)):
            data[35:43] = told.to_bytes(8, "big")
            log = open_log(tmp_path / str(number))
            assert add(log, resealed(bytes(data))).max_timestamp == NOW_MS + 70_000
            assert stored(log)[0].max_timestamp == NOW_MS + 70_000

    @pytest.mark.parametrize("offsets", [(1, 2, 3), (0, 2, 1), (0, 0, 0), (0, 1, -1), (0, 1, 2**31 - 1)])
    def test_a_compressed_batch_has_its_offsets_in_order(
        self, tmp_path: Path, offsets: tuple[int, ...]
    ) -> None:
        records = [Record(offset, NOW_MS, b"k", b"v") for offset in offsets]
        data = bytearray(build_batch(records, codec=Codec.LZ4, keep_offsets=True))
        data[23:27] = (2).to_bytes(4, "big")
        assert refused(open_log(tmp_path), resealed(bytes(data))).code is ErrorCode.UNKNOWN_SERVER_ERROR

    @pytest.mark.parametrize("size", [0, 50, 5_000, 500_000])
    def test_records_of_all_sizes_are_in_order(self, tmp_path: Path, size: int) -> None:
        count = max(3, min(9_000, 2_000_000 // (size + 20)))
        log = open_log(tmp_path)
        records = [Record(at, NOW_MS + at * 40, b"k", bytes(size)) for at in range(count)]
        info = add(log, build_batch(records, codec=Codec.GZIP))
        assert (info.last_offset, info.max_timestamp) == (count - 1, NOW_MS + (count - 1) * 40)

    def test_the_fast_path_does_not_decompress_a_batch(self, tmp_path: Path) -> None:
        data = bytearray(self.GOOD)
        data[65] = 0x7E
        assert add(open_log(tmp_path), resealed(bytes(data))).last_offset == 2


class TestOldFormats:
    @pytest.mark.parametrize("magic", [0, 1])
    def test_messages_are_stored_as_one_batch(self, tmp_path: Path, magic: int) -> None:
        log = open_log(tmp_path)
        info = add(log, message(magic, 0, b"k", b"a") + message(magic, 1, b"k", b"b"))
        assert (info.first_offset, info.last_offset) == (0, 1)
        assert values(log) == ["a", "b"]
        assert stored(log)[0].partition_leader_epoch == 3

    def test_messages_are_stored_in_the_topics_codec(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, LogConfig(compression_type="lz4"))
        add(log, wrapped(1, Codec.GZIP, 0, message(1, 0, b"k", b"a")))
        assert stored(log)[0].codec is Codec.LZ4
        assert contents(log) == [(0, "a")]

    def test_messages_of_the_old_formats_obey_the_topics_settings(self, tmp_path: Path) -> None:
        keyless, early = message(1, 0, None, b"a", timestamp=NOW_MS), message(1, 0, b"k", b"a", timestamp=9)
        by_broker = message(1, 0, b"k", b"a", attributes=8)
        for name, config, data, code in (
            ("keys", COMPACTED, keyless, ErrorCode.INVALID_RECORD),
            ("wrapped keys", COMPACTED, wrapped(1, Codec.GZIP, 0, keyless), ErrorCode.INVALID_RECORD),
            ("times", LIMITED, early, ErrorCode.INVALID_TIMESTAMP),
            ("stamped", STAMPED, by_broker, ErrorCode.INVALID_TIMESTAMP),
            ("size", LogConfig(max_message_bytes=30), early, ErrorCode.MESSAGE_TOO_LARGE),
        ):
            assert refused(open_log(tmp_path / name, config), data).code is code, name

    def test_a_log_with_the_brokers_time_stamps_them(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, STAMPED)
        assert add(log, message(0, 0, b"k", b"a")).log_append_time == NOW_MS
        assert stored(log)[1][0].timestamp == NOW_MS

    @pytest.mark.parametrize("data", [b"", b"\0" * 10, message(1, 0, b"k", b"a")[:-1]])
    def test_without_a_whole_message_nothing_is_appended(self, tmp_path: Path, data: bytes) -> None:
        log = open_log(tmp_path)
        append(log, "a")
        assert add(log, data)[:4] == (-1, -1, -1, -1)
        assert values(log) == ["a"]

    @pytest.mark.parametrize(
        "data",
        [
            wrapped(1, Codec.GZIP, 0, message(1, 0, b"k", b"a")) * 2,
            wrapped(1, Codec.GZIP, 0, message(1, 0, b"k", b"a")) + message(1, 0, b"k", b"a"),
            wrapped(1, Codec.GZIP, 1, message(0, 0, b"k", b"a")),
            wrapped(1, Codec.GZIP, 1, message(1, 2, b"k", b"a")),
            message(1, 0, b"k", b"a") + message(0, 0, b"k", b"a"),
            message(1, 0, None, b"a", attributes=Codec.ZSTD),
            message(1, 0, b"k", b"a") + batch("b"),
        ],
        ids=["two wrappers", "a wrapper and more", "inner magic", "inner offset", "magics", "zstd", "v2"],
    )
    def test_messages_that_kafka_refuses_are_refused(self, tmp_path: Path, data: bytes) -> None:
        assert refused(open_log(tmp_path), data).code is ErrorCode.INVALID_RECORD
