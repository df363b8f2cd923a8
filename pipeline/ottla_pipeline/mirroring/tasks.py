"""The Spark task of each source partition: writes its rows (Arrow, in the source's order) in transactions.

Called by the job through `mapInArrow`; runs in Spark's Python workers. Spark's Kafka source assigns each
source partition to one task (the job sets no `minPartitions`), and the task verifies that.

A worker keeps its open writers for the next batch, because opening one costs a connection and several
round trips. The driver tells each batch which worker wrote a partition last: the writer of any other
worker has been fenced since, and is replaced.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from ottla_pipeline.mirroring.target import Limits, MirroredTopic, Target
from ottla_pipeline.mirroring.writer import PartitionWriter, WriteFailed, Written

if TYPE_CHECKING:
    import pyarrow as pa

WRITERS_MAX: Final = 16
"""Kept open by one worker. Each has a thread for every broker that it talks to."""
COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
REPORT_SCHEMA: Final = (
    "topic STRING, partition INT, records BIGINT, bytes BIGINT, skipped BIGINT, looped BIGINT, "
    "transactions BIGINT, read_s DOUBLE, produce_s DOUBLE, commit_s DOUBLE, newest_ms BIGINT, worker STRING"
)


Owners = Mapping[tuple[str, int], str]
"""Which worker wrote a source partition last."""


class Writers:
    """The open writers of one worker process, at most WRITERS_MAX. `worker` is the process' random id."""

    def __init__(self) -> None:
        self.worker = uuid4().hex
        self._open: OrderedDict[tuple[Target, MirroredTopic, int], PartitionWriter] = OrderedDict()

    def get(
        self, target: Target, mirrored: MirroredTopic, partition: int, owner: str | None
    ) -> PartitionWriter:
        """The partition's writer: the open one, if this worker was the last to write the partition, else a
        new one."""
        key = (target, mirrored, partition)
        writer = self._open.pop(key, None)
        if writer is not None and owner != self.worker:
            writer.close()
            writer = None
        self._open[key] = writer = writer or PartitionWriter(*key)
        while len(self._open) > WRITERS_MAX:
            _, oldest = self._open.popitem(last=False)
            oldest.close()
        return writer


@lru_cache(maxsize=1)
def worker_writers() -> Writers:
    """The writers of this process; a worker runs one task at a time."""
    return Writers()


def split_transactions(batches: Iterable[pa.RecordBatch], limits: Limits) -> Iterator[list[pa.RecordBatch]]:
    """Splits records into lists that fit one transaction each, in the same order."""
    pending: list[pa.RecordBatch] = []
    records = size = 0
    for whole in batches:
        for batch in split_batch(whole, limits):
            if pending and (
                records + batch.num_rows > limits.records_max or size + batch.nbytes > limits.bytes_max
            ):
                yield pending
                pending, records, size = [], 0, 0
            pending.append(batch)
            records += batch.num_rows
            size += batch.nbytes
    if pending:
        yield pending


def split_batch(batch: pa.RecordBatch, limits: Limits) -> Iterator[pa.RecordBatch]:
    """Splits a batch into slices within the limits; a single record may exceed them."""
    if batch.num_rows > 1 and (batch.num_rows > limits.records_max or batch.nbytes > limits.bytes_max):
        half = batch.num_rows // 2
        yield from split_batch(batch.slice(0, half), limits)
        yield from split_batch(batch.slice(half), limits)
    elif batch.num_rows:
        yield batch


def mirror_partition(
    target: Target, topics: Mapping[str, MirroredTopic], owners: Owners
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """The function for `mapInArrow`: writes a task's records and returns one row of REPORT_SCHEMA."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        writers, written, newest_ms, where = worker_writers(), Written(), -1, None
        writer: PartitionWriter | None = None
        began = time.monotonic()
        for chunk in split_transactions(batches, target.limits):
            here = {source_partition(batch) for batch in chunk} | ({where} if where else set())
            if len(here) != 1:
                raise WriteFailed(
                    f"one task received records of {here}: each source partition needs its own task"
                )
            where = here.pop()
            topic, partition = where
            if topic not in topics:
                raise WriteFailed(f"{topic} is in the batch, but was not on the source at the batch's start")
            if writer is None:
                writer = writers.get(target, topics[topic], partition, owners.get(where))
            writer.write(chunk, written)
            newest_ms = max(newest_ms, *(batch.column("timestamp")[-1].as_py() for batch in chunk))
        if where is not None:
            busy_s = written.produce_s + written.commit_s
            row: dict[str, Any] = {
                "topic": where[0],
                "partition": where[1],
                "records": written.records,
                "bytes": written.bytes,
                "skipped": written.skipped,
                "looped": written.looped,
                "transactions": written.transactions,
                "read_s": time.monotonic() - began - busy_s,
                "produce_s": written.produce_s,
                "commit_s": written.commit_s,
                "newest_ms": newest_ms,
                "worker": writers.worker,
            }
            columns = {
                name: pa.array([value], pa.int32() if name == "partition" else None)
                for name, value in row.items()
            }
            yield pa.RecordBatch.from_pydict(columns)

    return run


def source_partition(batch: pa.RecordBatch) -> tuple[str, int]:
    """The source partition of a batch. Raises WriteFailed if there are two."""
    topics, partitions = batch.column("topic").unique(), batch.column("partition").unique()
    if len(topics) != 1 or len(partitions) != 1:
        raise WriteFailed(
            f"one task received records of {topics.to_pylist()} and partitions {partitions.to_pylist()}"
        )
    return str(topics[0].as_py()), int(partitions[0].as_py())
