"""What the storage tests share: small batches, and logs to put them in."""

from __future__ import annotations

from pathlib import Path

from ottla.protocol.compression import Codec
from ottla.protocol.records import Record, build_batch, decode_records
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig

NOW_MS = 1_700_000_000_000


def batch(
    *values: str,
    timestamp: int = NOW_MS,
    codec: Codec = Codec.NONE,
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """A batch with a record per value; `producer` is (id, epoch, first sequence)."""
    producer_id, producer_epoch, base_sequence = producer
    return build_batch(
        [Record(0, timestamp, b"k", value.encode()) for value in values],
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


def open_log(
    directory: Path,
    config: LogConfig | None = None,
    *,
    clean: bool = True,
    recovery_point: int | None = None,
    log_start_offset: int = 0,
) -> Log:
    return Log.open(
        directory / "events-0",
        config or LogConfig(),
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        clean_shutdown=clean,
        now_ms=NOW_MS,
    )


def append(log: Log, *values: str, epoch: int = 0, now_ms: int = NOW_MS, **batch_options: object) -> int:
    """Append one batch as the leader; its first offset."""
    data = batch(*values, **batch_options)  # type: ignore[arg-type]
    return log.append_as_leader(data, leader_epoch=epoch, now_ms=now_ms).first_offset


def contents(log: Log) -> list[tuple[int, str]]:
    """(offset, value) of everything that the log holds from its start offset on."""
    found = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, up_to=log.log_end_offset).to_bytes()
        records = decode_records(data)
        if not records:
            break
        found += [(r.offset, (r.value or b"").decode()) for r in records if r.offset >= offset]
        offset = records[-1].offset + 1
    return found


def values(log: Log) -> list[str]:
    return [value for _, value in contents(log)]
