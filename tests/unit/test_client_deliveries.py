"""The outcome of a batch completes the delivery of each of its records."""

from __future__ import annotations

from concurrent.futures import Future

from ottla.client.core.accumulator import BatchResult
from ottla.client.core.batches import Batch
from ottla.client.core.types import RecordMetadata, TopicPartition
from ottla.client.deliveries import complete_deliveries
from ottla.client.errors import CorruptMessageError

TP = TopicPartition("orders", 3)
STAMPS = (1_000, 999, 1_007)


def _batch() -> tuple[Batch, list[Future[RecordMetadata]]]:
    batch = Batch(TP, 0.0, 1)
    futures: list[Future[RecordMetadata]] = [Future() for _ in STAMPS]
    for stamp, future in zip(STAMPS, futures, strict=True):
        batch.records.append((stamp, None, b"v", ()))
        batch.deliveries.append(future)
    return batch, futures


def test_records_get_consecutive_offsets_and_their_own_timestamps() -> None:
    batch, futures = _batch()
    complete_deliveries(BatchResult(batch, 40, -1, None))
    found = [future.result(0) for future in futures]
    assert found == [RecordMetadata(*TP, 40 + n, stamp) for n, stamp in enumerate(STAMPS)]
    assert all(type(metadata) is RecordMetadata for metadata in found)


def test_the_brokers_append_time_is_the_timestamp_of_all_records() -> None:
    batch, futures = _batch()
    complete_deliveries(BatchResult(batch, 0, 5_000, None))
    assert [future.result(0).timestamp_ms for future in futures] == [5_000] * 3
    assert [future.result(0).offset for future in futures] == [0, 1, 2]


def test_a_missing_offset_stays_missing() -> None:
    batch, futures = _batch()
    complete_deliveries(BatchResult(batch, -1, -1, None))
    assert [future.result(0).offset for future in futures] == [-1] * 3
    assert [future.result(0).timestamp_ms for future in futures] == list(STAMPS)


def test_a_cancelled_delivery_does_not_shift_the_offsets_of_others() -> None:
    batch, futures = _batch()
    batch.deliveries[0] = None
    futures[1].cancel()
    complete_deliveries(BatchResult(batch, 40, -1, None))
    assert futures[2].result(0) == RecordMetadata(*TP, 42, STAMPS[2])


def test_an_invalid_record_has_an_error_of_its_own() -> None:
    batch, futures = _batch()
    own = CorruptMessageError("bad")
    complete_deliveries(BatchResult(batch, -1, -1, CorruptMessageError("refused"), {1: own}))
    assert futures[1].exception(0) is own
    assert "other records" in str(futures[0].exception(0))
