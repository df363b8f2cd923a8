"""Appends whose batches are looked into elsewhere: nothing is different but the place."""

from __future__ import annotations

import pickle
import random
import tempfile
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.compression import Codec
from ottla.protocol.errors import KafkaError
from ottla.protocol.records import Record, TimestampType, build_batch
from ottla.storage.log import Log, LogAppendInfo
from ottla.storage.log_config import LogConfig
from ottla.storage.log_validator import (
    INLINE_BYTES_MAX,
    INLINE_LEGACY_BYTES_MAX,
    INLINE_RECORDS_MAX,
    ValidationDeferred,
    validate,
)
from ottla.storage.record_validation import InvalidRecords
from tests.legacy_messages import message, wrapped
from tests.worlds.storage_logs import NOW_MS, batch, open_log

CONFIGS = (
    LogConfig(),
    LogConfig(cleanup_policy="compact"),
    LogConfig(message_timestamp_type="LogAppendTime"),
    LogConfig(message_timestamp_after_max_ms=10, message_timestamp_before_max_ms=100),
    LogConfig(compression_type="gzip"),
    LogConfig(compression_type="uncompressed", cleanup_policy="compact,delete"),
    LogConfig(max_message_bytes=150),
)


def samples() -> list[bytes]:
    """What clients send, right and wrong."""
    keyless = build_batch([Record(0, NOW_MS, None, b"v")])
    found = [
        b"",
        b"short",
        batch("a", "b"),
        batch("a" * 300, codec=Codec.GZIP),
        batch("a", "b", codec=Codec.ZSTD, producer=(5, 0, 0)),
        batch("late", timestamp=NOW_MS - 1000),
        batch("a") + batch("b"),
        batch("moved", base_offset=7),
        keyless,
        build_batch([Record(0, NOW_MS, b"k", b"v")], timestamp_type=TimestampType.LOG_APPEND_TIME),
        message(0, 0, b"k", b"v"),
        message(1, 0, b"k", b"v", timestamp=NOW_MS) + message(1, 1, None, b"w", timestamp=NOW_MS),
        message(1, 0, b"k", b"v")[:-3],
    ]
    for magic in (0, 1):
        inner = b"".join(message(magic, n, b"k", b"v" * 50, timestamp=NOW_MS) for n in range(5))
        found += [wrapped(magic, codec, 4, inner) for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4)]
    return found


SAMPLES = samples()


def outcome(log: Log, data: bytes, *, elsewhere: bool) -> LogAppendInfo | tuple[object, ...]:
    """Where it went, or how it was refused."""
    try:
        if elsewhere:
            validated = validate(data, log.config, NOW_MS)
            kept = bytes(validated[0]), validated[1]  # as another process returns it
            return log.append_as_leader(data, leader_epoch=1, now_ms=NOW_MS, validated=kept)
        return log.append_as_leader(data, leader_epoch=1, now_ms=NOW_MS)
    except KafkaError as error:
        again = pickle.loads(pickle.dumps(error)) if elsewhere else error
        records = again.record_errors if isinstance(again, InvalidRecords) else None
        return again.code, again.message, records


def both(config: LogConfig, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as here, tempfile.TemporaryDirectory() as there:
        logs = [open_log(Path(place), config) for place in (here, there)]
        outcomes = [outcome(log, data, elsewhere=n == 1) for n, log in enumerate(logs)]
        stored = [log.read(0, 1 << 20, up_to=log.log_end_offset).to_bytes() for log in logs]
        for log in logs:
            log.close()
    assert outcomes[0] == outcomes[1]
    assert stored[0] == stored[1]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.cleanup_policy} {c.compression_type}")
def test_an_append_validated_in_a_worker_ends_the_same(config: LogConfig) -> None:
    for data in SAMPLES:
        both(config, data)


@given(st.sampled_from(SAMPLES), st.sampled_from(CONFIGS), st.randoms(use_true_random=False), st.booleans())
def test_damage_ends_the_same(data: bytes, config: LogConfig, rng: random.Random, sealed: bool) -> None:
    damaged = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        if damaged:
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    if sealed and len(damaged) > 61:
        damaged[17:21] = crc32c(bytes(damaged[21:])).to_bytes(4, "big")
    both(config, bytes(damaged))


def many(count: int, codec: Codec) -> bytes:
    return build_batch([Record(0, NOW_MS, b"k", b"")] * count, codec=codec)


def large(size: int, codec: Codec) -> bytes:
    return build_batch([Record(0, NOW_MS, b"k", bytes(size))], codec=codec)


COMPACTED = LogConfig(cleanup_policy="compact")
GZIPPED = LogConfig(compression_type="gzip")


@pytest.mark.parametrize(
    ("config", "data"),
    [
        (COMPACTED, many(INLINE_RECORDS_MAX + 1, Codec.NONE)),
        (COMPACTED, many(INLINE_RECORDS_MAX + 1, Codec.GZIP)),
        (COMPACTED, large(INLINE_BYTES_MAX + 1, Codec.NONE)),
        *[(COMPACTED, large(INLINE_BYTES_MAX + 1, codec)) for codec in Codec if codec is not Codec.NONE],
        (GZIPPED, large(100_000, Codec.ZSTD)),
        (LogConfig(), many(INLINE_RECORDS_MAX + 1, Codec.GZIP)),
        *[(LogConfig(), large(INLINE_BYTES_MAX + 1, codec)) for codec in Codec if codec is not Codec.NONE],
        (LogConfig(), message(1, 0, b"k", bytes(INLINE_LEGACY_BYTES_MAX))),
        (LogConfig(), wrapped(1, Codec.GZIP, 0, message(1, 0, b"k", b"v"))),
    ],
)
def test_a_validation_that_may_take_long_is_deferred_and_changes_nothing(
    tmp_path: Path, config: LogConfig, data: bytes
) -> None:
    log = open_log(tmp_path, config)
    with pytest.raises(ValidationDeferred):
        log.append_as_leader(data, leader_epoch=1, now_ms=NOW_MS, allow_deferral=True)
    assert log.log_end_offset == 0
    assert log.append_as_leader(data, leader_epoch=1, now_ms=NOW_MS).last_offset >= 0
    log.close()


@pytest.mark.parametrize(
    "data",
    [many(100, Codec.NONE), many(100, Codec.LZ4), large(10_000, Codec.ZSTD), message(0, 0, b"k", b"v")],
)
def test_a_short_validation_is_done_inline(tmp_path: Path, data: bytes) -> None:
    log = open_log(tmp_path, COMPACTED)
    log.append_as_leader(data, leader_epoch=1, now_ms=NOW_MS, allow_deferral=True)
    log.close()


def test_a_batch_is_opaque_where_nobody_needs_to_look(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for data in (many(INLINE_RECORDS_MAX + 1, Codec.NONE), large(INLINE_BYTES_MAX + 1, Codec.NONE)):
        log.append_as_leader(data, leader_epoch=1, now_ms=NOW_MS, allow_deferral=True)
    log.close()
