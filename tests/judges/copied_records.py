"""A load that shows lost, duplicated and reordered records, with and without transactions.

An idempotent producer (librdkafka) writes numbered records to `plain`. A member of a consumer group copies
them to `copied`, in transactions with their offsets, one in ten of which it aborts. It is our own client:
librdkafka's send_offsets_to_transaction can hang after a restart of the group's coordinator (issues 5456 and
5511 of librdkafka). `verify` reads both topics by librdkafka.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from ottla import client
from ottla.client.consumer_runtime import Records
from ottla.client.errors import ClientError
from ottla.protocol.errors import KafkaError

PLAIN, COPIED, GROUP = "plain", "copied", "copier"
_AWAY_S = 120
"""The clients wait so long for brokers that are not there."""
_ABORTED_EVERY = 10


class CopiedRecords:
    """A context manager: the load runs within it, and ends when all records are acknowledged and copied."""

    def __init__(self, bootstrap: str, partitions: int, per_second: int) -> None:
        self._bootstrap = bootstrap
        self._partitions = partitions
        self._interval_s = 1 / per_second
        self._stop = threading.Event()
        self._written = threading.Event()
        self._going_on = threading.Event()
        self._going_on.set()
        self._failures: list[BaseException] = []
        self.acknowledged: list[list[str]] = [[] for _ in range(partitions)]
        """The values of each partition in the order of their acknowledgements."""
        self._committed = [0] * partitions
        self.transactions, self.failed, self._sent = 0, 0, 0
        self._threads = [
            threading.Thread(target=self._guard, args=(work,), daemon=True)
            for work in (self._produce, lambda: asyncio.run(self._copy()))
        ]

    @property
    def copied(self) -> int:
        """How many records are copied by committed transactions."""
        return sum(self._committed)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After an error the clients may wait for brokers that are gone: they end with the process."""
        self._stop.set()
        if error is not None:
            self._failures.append(error)
            return
        for thread in self._threads:
            thread.join()

    @property
    def is_done(self) -> bool:
        """Whether all records that were written are acknowledged and copied."""
        return self.copied == sum(map(len, self.acknowledged)) == self._sent

    def pause(self) -> None:
        """Write nothing until `resume`."""
        self._going_on.clear()

    def resume(self) -> None:
        self._going_on.set()

    def _guard(self, work: object) -> None:
        try:
            assert callable(work)
            work()
        except BaseException as error:
            self._failures.append(error)
        finally:
            self._written.set()

    def check(self) -> None:
        """Raises what has ended a client."""
        for failure in self._failures:
            raise failure

    # ---- the clients

    def _produce(self) -> None:
        settings = {"enable.idempotence": True, "delivery.timeout.ms": _AWAY_S * 1000, "linger.ms": 5}
        producer = Producer({"bootstrap.servers": self._bootstrap, "log_level": 0, **settings})

        def acknowledge(error: object, message: Message) -> None:
            assert error is None, error
            value, partition = message.value(), message.partition()
            assert isinstance(value, bytes)
            assert partition is not None
            self.acknowledged[partition].append(value.decode())

        while not self._stop.is_set():
            if self._going_on.is_set():
                partition = self._sent % self._partitions
                producer.produce(PLAIN, str(self._sent), partition=partition, on_delivery=acknowledge)
                self._sent += 1
            producer.poll(self._interval_s)
        assert producer.flush(_AWAY_S) == 0

    async def _copy(self) -> None:
        member = client.Consumer(
            bootstrap_servers=self._bootstrap,
            group_id=GROUP,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6_000,
            isolation_level="read_committed",
        )
        producer = client.Producer(
            bootstrap_servers=self._bootstrap, transactional_id=GROUP, max_block_ms=_AWAY_S * 1000
        )
        async with member, producer:
            member.subscribe([PLAIN])
            while not self._failures:
                try:
                    batches = await member.poll(timeout_s=0.2)
                except ClientError:  # brokers that are away; the next poll continues
                    continue
                if batches:
                    await self._copy_batches(member, producer, batches)
                elif self._written.is_set() and self.is_done:
                    return

    async def _copy_batches(
        self, member: client.Consumer, producer: client.Producer, batches: Records
    ) -> None:
        ends = {partition: records[-1].offset + 1 for partition, records in batches.items()}
        self.transactions += 1
        try:
            async with producer.transaction():
                for (_, partition), records in batches.items():
                    for record in records:
                        producer.send_nowait(COPIED, record.value, partition=partition)
                await producer.send_offsets_to_transaction(ends, member.group_metadata())
                if self.transactions % _ABORTED_EVERY == 0:
                    raise _Abort
        except (_Abort, ClientError, KafkaError) as error:
            self.failed += not isinstance(error, _Abort)
            await self._rewind(member)
        else:
            for (_, partition), end in ends.items():
                self._committed[partition] = end

    async def _rewind(self, member: client.Consumer) -> None:
        """Back to the committed offsets, of the partitions that this member has."""
        while True:
            try:
                committed = await member.committed(member.assignment())
                break
            except (ClientError, KafkaError):
                await asyncio.sleep(0.1)
        for partition, offset in committed.items():
            member.seek(partition, offset.offset if offset else 0)
            self._committed[partition[1]] = offset.offset if offset else 0

    # ---- the judgement

    def verify(self) -> None:
        """Both topics have each acknowledged record once, in order."""
        for topic in (PLAIN, COPIED):
            for partition, values in enumerate(self.acknowledged):
                found = list(self._read(topic, partition))
                lost = sorted(set(values) - set(found))
                doubled = [value for value, count in Counter(found).items() if count > 1]
                assert (lost, doubled) == ([], []), f"lost and doubled in {topic}-{partition}"
                assert found == values, f"the order of {topic}-{partition}"

    def _read(self, topic: str, partition: int) -> Iterator[str]:
        settings = {"group.id": "verify", "enable.auto.commit": False, "enable.partition.eof": True}
        servers = {"bootstrap.servers": self._bootstrap, "isolation.level": "read_committed"}
        with Consumer({**servers, **settings}) as consumer:
            consumer.assign([TopicPartition(topic, partition, 0)])
            while True:
                message = consumer.poll(_AWAY_S)
                assert message is not None, f"{topic}-{partition} has no end"
                if message.error():
                    return
                value = message.value()
                assert isinstance(value, bytes)
                yield value.decode()


class _Abort(Exception):
    """This transaction is to be aborted."""
