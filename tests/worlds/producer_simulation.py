"""A producer's core among brokers that forget, refuse, lose answers and hand partitions over.

Used by the tests of the producer's core. The brokers' part of idempotence is modelled after what Kafka's do:
the last five batches of a producer are remembered for each partition, sequences have no gaps, an epoch begins
at 0. Nothing here takes time but `tick`.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from typing import Any

from ottla.client.core.accumulator import Accumulator, BatchResult
from ottla.client.core.cluster import Cluster
from ottla.client.core.config import ProducerConfig
from ottla.client.core.sender import Sender
from ottla.client.core.transactions import Transactions
from ottla.client.core.types import ANY_NODE, TopicPartition, UnsentRequest
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records import decode_batch, parse_batch_header
from ottla.wire.connection import ConnectionLost

TOPIC = "orders"
NODES = (1, 2)


class BrokerLog:
    """One partition as its leader has it, whoever that is: replicas do not lag here."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.producers: dict[int, tuple[int, int, deque[tuple[int, int, int]]]] = {}

    def append(self, data: bytes) -> tuple[ErrorCode, int]:
        header = parse_batch_header(data)
        epoch, last, recent = self.producers.get(header.producer_id, (-1, -1, deque(maxlen=5)))
        if header.producer_id >= 0:
            for base, count, offset in recent:
                if (base, count, epoch) == (
                    header.base_sequence,
                    header.record_count,
                    header.producer_epoch,
                ):
                    return ErrorCode.NONE, offset
            if header.producer_epoch < epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if header.producer_epoch > epoch:
                last, recent = -1, deque(maxlen=5)
            if header.base_sequence != last + 1:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        offset = len(self.values)
        self.values += [record.value or b"" for record in decode_batch(data)]
        recent.append((header.base_sequence, header.record_count, offset))
        state = header.producer_epoch, header.last_sequence, recent
        self.producers[header.producer_id] = state
        return ErrorCode.NONE, offset

    def forget(self) -> None:
        """As after an unclean election to a replica that has nothing of the producer."""
        self.producers.clear()


class ProducerSimulation:
    def __init__(self, *, partitions: int = 2, seed: int = 0, **settings: object) -> None:
        given = {"bootstrap_servers": "here:9092", **settings}
        self.config = ProducerConfig.of(None, **given)
        uniform = random.Random(seed).uniform
        self.now = 1000.0
        self.cluster = Cluster(uniform=uniform)
        self.outcomes: dict[Any, list[BatchResult]] = defaultdict(list)
        self.accumulator = Accumulator(self.config, self.cluster, uniform, self._record)
        self.transactions: Transactions | None = None
        if self.config.enable_idempotence:
            self.transactions = Transactions(
                self.config, self.cluster, uniform=uniform, incomplete=lambda: not self.accumulator.empty
            )
            self.accumulator.on_partition_added = self.transactions.add
        self.down: set[int] = set()
        self.sender = Sender(
            self.config,
            self.cluster,
            self.accumulator,
            self.transactions,
            uniform=uniform,
            ready=lambda node: node not in self.down,
            ready_at=lambda node, now: now + 0.05,
        )
        self.logs = [BrokerLog() for _ in range(partitions)]
        self.leaders = [NODES[i % 2] for i in range(partitions)]
        self.epochs = [0] * partitions
        self.wire: dict[int, deque[UnsentRequest]] = {node: deque() for node in NODES}
        self.asked: list[Any] = []
        """Requests about the producer itself, in order."""
        self.scripted_responses: deque[Any] = deque()
        """What to say to the next of these, in place of yes."""
        self.topic_error = ErrorCode.NONE
        self.max_records: int | None = None
        """A batch of more is too large."""
        self._producer_ids = 0

    def _record(self, outcome: BatchResult) -> None:
        for sink in outcome.batch.deliveries:
            self.outcomes[sink].append(outcome)

    # --- the client's side ---

    def learn(self) -> None:
        """Hear of the topic before anything is sent to it."""
        self.cluster.add(TOPIC, self.now)
        self.poll()
        self.poll()

    def send(self, value: bytes, partition: int | None = None, key: bytes | None = None) -> int:
        stamp = int(self.now * 1000)
        return self.accumulator.append(TOPIC, key, value, (), partition, stamp, value, lambda: self.now)

    def poll(self) -> list[UnsentRequest]:
        """What went onto the wire."""
        request = self.cluster.request(self.now)
        if request is not None:
            self.cluster.take(self.metadata(), self.now)
        sent = self.sender.poll(self.now)
        for unsent in sent:
            if isinstance(unsent.message, m.ProduceRequest):
                self.wire[unsent.node_id].append(unsent)
            else:
                self.asked.append(unsent.message)
                answer = self.scripted_responses.popleft() if self.scripted_responses else self._yes(unsent)
                self.sender.on_response(unsent.tag, answer, self.now)
        return sent

    def tick(self, seconds: float) -> None:
        self.now += seconds

    # --- the brokers' side ---

    def metadata(self) -> m.MetadataResponse:
        partition = m.MetadataResponse.MetadataResponsePartition
        entries = [
            partition(partition_index=i, leader_id=leader, leader_epoch=self.epochs[i])
            for i, leader in enumerate(self.leaders)
        ]
        topic = m.MetadataResponse.MetadataResponseTopic(
            name=TOPIC, error_code=self.topic_error, partitions=[] if self.topic_error else entries
        )
        broker = m.MetadataResponse.MetadataResponseBroker
        return m.MetadataResponse(
            brokers=[broker(node_id=n, host="here", port=9000 + n) for n in NODES], topics=[topic]
        )

    def _yes(self, unsent: UnsentRequest) -> Any:
        request: Any = unsent.message
        if isinstance(request, m.InitProducerIdRequest):
            assert unsent.node_id == (ANY_NODE if request.transactional_id is None else 1)
            if request.producer_id >= 0:
                return m.InitProducerIdResponse(
                    producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1
                )
            self._producer_ids += 1
            return m.InitProducerIdResponse(producer_id=self._producer_ids, producer_epoch=0)
        if isinstance(request, m.FindCoordinatorRequest):
            return m.FindCoordinatorResponse(node_id=1, host="here", port=9001)
        if isinstance(request, m.AddPartitionsToTxnRequest):
            return partitions_added(request)
        if isinstance(request, m.TxnOffsetCommitRequest):
            return offsets_committed(request)
        if isinstance(request, m.AddOffsetsToTxnRequest):
            return m.AddOffsetsToTxnResponse()
        assert isinstance(request, m.EndTxnRequest)
        return m.EndTxnResponse()

    def serve(
        self,
        node: int,
        *,
        error: ErrorCode | None = None,
        error_after: ErrorCode | None = None,
        answered: bool = True,
    ) -> None:
        """The node takes its oldest request; without an answer, the connection is lost after it.
        `error_after`: the answer although the node has written the batches."""
        if not self.wire[node]:
            return
        unsent = self.wire[node].popleft()
        response = self._produced(node, unsent.message, error)
        if error_after is not None:
            for row in response.responses[0].partition_responses:
                row.error_code = error_after
        if answered:
            self.sender.on_response(unsent.tag, response, self.now)
        else:
            self.sender.on_response(unsent.tag, ConnectionLost("the answer was lost"), self.now)
            self.disconnect(node)

    def disconnect(self, node: int) -> None:
        """What the node has not taken is lost."""
        lost, self.wire[node] = self.wire[node], deque()
        for unsent in lost:
            self.sender.on_response(unsent.tag, ConnectionLost("lost"), self.now)

    def _produced(self, node: int, request: Any, error: ErrorCode | None) -> m.ProduceResponse:
        answer = m.ProduceResponse.PartitionProduceResponse
        answers = []
        for entry in request.topic_data[0].partition_data:
            code, offset = ErrorCode.NONE, -1
            records = parse_batch_header(entry.records).record_count
            if self.leaders[entry.index] != node:
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif error is not None:
                code = error
            elif self.max_records is not None and records > self.max_records:
                code = ErrorCode.MESSAGE_TOO_LARGE
            else:
                code, offset = self.logs[entry.index].append(bytes(entry.records))
            answers.append(answer(index=entry.index, error_code=code, base_offset=offset))
        topic = m.ProduceResponse.TopicProduceResponse(name=TOPIC, partition_responses=answers)
        return m.ProduceResponse(responses=[topic])

    def move(self, partition: int) -> None:
        """The other node leads from now on."""
        self.leaders[partition] = 3 - self.leaders[partition]
        self.epochs[partition] += 1

    def run_until_idle(self, seconds_max: float = 60.0) -> None:
        """Let all be well until everything has its outcome."""
        self.down.clear()
        until = self.now + seconds_max
        while not self.accumulator.empty:
            assert self.now < until, f"still there: {list(self.accumulator.incomplete)}"
            self.poll()
            for node in NODES:
                while self.wire[node]:
                    self.serve(node)
                    self.poll()
            self.tick(0.1)

    def written(self, value: bytes) -> TopicPartition:
        """Where a record was acknowledged; it has that one outcome."""
        (outcome,) = self.outcomes[value]
        assert outcome.error is None, outcome.error
        return outcome.batch.tp


def partitions_added(
    request: m.AddPartitionsToTxnRequest, error: ErrorCode = ErrorCode.NONE
) -> m.AddPartitionsToTxnResponse:
    result = m.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
    topics = [
        m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                result(partition_index=p, partition_error_code=error) for p in topic.partitions
            ],
        )
        for topic in request.v3_and_below_topics
    ]
    return m.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)


def offsets_committed(
    request: m.TxnOffsetCommitRequest, error: ErrorCode = ErrorCode.NONE
) -> m.TxnOffsetCommitResponse:
    part = m.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition
    topics = [
        m.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
            name=topic.name,
            partitions=[part(partition_index=p.partition_index, error_code=error) for p in topic.partitions],
        )
        for topic in request.topics
    ]
    return m.TxnOffsetCommitResponse(topics=topics)
