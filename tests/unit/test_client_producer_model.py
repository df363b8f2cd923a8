"""An idempotent producer's records are written once and in order under any faults of brokers (hypothesis)."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ottla.client.core.accumulator import TOPIC_FULL
from ottla.protocol.errors import ErrorCode
from tests.worlds.producer_simulation import NODES, ProducerSimulation

nodes = st.sampled_from(NODES)
partitions = st.integers(0, 1)
retriable = st.sampled_from(
    [
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
    ]
)


class IdempotentProducer(RuleBasedStateMachine):
    """The delivery time-out is never reached here, so every record arrives."""

    in_flight = 5
    idempotent = True

    def __init__(self) -> None:
        super().__init__()
        self.simulation = ProducerSimulation(
            batch_size=200,
            buffer_memory=4000,
            linger_ms=10,
            delivery_timeout_ms=100_000_000,
            enable_idempotence=self.idempotent,
            max_in_flight_requests_per_connection=self.in_flight,
        )
        self.sent: dict[int | None, list[bytes]] = defaultdict(list)
        self.count = 0

    @rule(partition=st.none() | partitions, size=st.integers(0, 120), times=st.integers(1, 6))
    def send(self, partition: int | None, size: int, times: int) -> None:
        for _ in range(times):
            value = b"%d:" % self.count + b"x" * size
            self.count += 1
            if self.simulation.send(value, partition) == TOPIC_FULL:
                used = self.simulation.accumulator.used_bytes
                assert used + len(value) + 21 > 4000 / 2, "the other half is for other topics"
                return
            self.sent[partition].append(value)

    @rule()
    def poll(self) -> None:
        self.simulation.poll()

    @rule(seconds=st.sampled_from([0.005, 0.02, 0.3, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.simulation.tick(seconds)

    @rule(node=nodes)
    def serve(self, node: int) -> None:
        self.simulation.serve(node)

    @rule(node=nodes, error=retriable)
    def refuse(self, node: int, error: ErrorCode) -> None:
        self.simulation.serve(node, error=error)

    @rule(node=nodes)
    def lose_an_answer(self, node: int) -> None:
        self.simulation.serve(node, answered=False)

    @rule(node=nodes)
    def disconnect(self, node: int) -> None:
        self.simulation.disconnect(node)

    @rule(partition=partitions)
    def move_a_leader(self, partition: int) -> None:
        self.simulation.move(partition)

    @rule(node=nodes, up=st.booleans())
    def connect(self, node: int, up: bool) -> None:
        (self.simulation.down.discard if up else self.simulation.down.add)(node)

    @rule(records=st.sampled_from([None, 1, 2, 3]))
    def limit_batches(self, records: int | None) -> None:
        self.simulation.max_records = records

    @invariant()
    def memory_is_accounted_for(self) -> None:
        accumulator = self.simulation.accumulator
        batches = sum(batch.size - 61 for batch in accumulator.incomplete)
        assert batches <= accumulator.used_bytes <= accumulator.memory
        assert accumulator.used_bytes == sum(topic.used_bytes for topic in accumulator._topics.values())

    @invariant()
    def no_more_is_on_its_way_than_allowed(self) -> None:
        assert all(len(wire) <= self.in_flight for wire in self.simulation.wire.values())

    def teardown(self) -> None:
        simulation = self.simulation
        simulation.run_until_idle()
        assert simulation.accumulator.used_bytes == 0
        for values in self.sent.values():
            for value in values:
                simulation.written(value)
        for partition, log in enumerate(simulation.logs):
            self.check_log(partition, log.values)
        written = [value for log in simulation.logs for value in log.values]
        assert set(written) == {value for values in self.sent.values() for value in values}
        if self.idempotent:
            assert len(written) == len(set(written)), "nothing is written twice"

    def check_log(self, partition: int, values: list[bytes]) -> None:
        """Every record in the order of its send, also those without a partition."""
        numbers = [int(value.partition(b":")[0]) for value in values]
        assert numbers == sorted(numbers)


class OneInFlight(IdempotentProducer):
    """Without idempotence records may be duplicated, but with one request in flight they stay in order."""

    in_flight = 1
    idempotent = False

    def check_log(self, partition: int, values: list[bytes]) -> None:
        first_seen = list(dict.fromkeys(int(value.partition(b":")[0]) for value in values))
        assert first_seen == sorted(first_seen)


TestIdempotentProducer = IdempotentProducer.TestCase
TestIdempotentProducer.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestOneInFlight = OneInFlight.TestCase
TestOneInFlight.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
