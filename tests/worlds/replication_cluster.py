"""A partition with replicas on several brokers, without brokers: real logs, and answers carried by hand.

Used by the replication tests. `Cluster` plays the controller (whose word on leader and ISR is law), the
network (`fetch` carries one fetch from a follower to the leader and back) and the clock.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import FetchRequest, FetchResponse
from ottla.protocol.records import Record, build_batch, decode_records
from ottla.replication.follower import FollowerFetch, RequestOffsets, Retry, Step
from ottla.replication.isr import IsrChange
from ottla.replication.offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, offset_for_time
from ottla.replication.partition import Partition
from ottla.replication.reads import PartitionRead
from ottla.replication.reads import read as read_replica
from ottla.replication.requests import PartitionState
from ottla.storage.log import Log, LogAppendInfo
from ottla.storage.log_config import LogConfig

TOPIC = "flights"
TOPIC_ID = UUID(int=7)
LAG_MS_MAX = 10_000


def batch(*values: str) -> bytes:
    return build_batch([Record(0, 1000, None, value.encode(), []) for value in values])


def as_answer(read: PartitionRead) -> FetchResponse.PartitionData:
    """What the server makes of a partition's read."""
    answer = FetchResponse.PartitionData(
        partition_index=0,
        error_code=read.error,
        high_watermark=read.high_watermark,
        last_stable_offset=read.last_stable_offset,
        log_start_offset=read.log_start_offset,
        records=read.read.to_bytes() if read.read else None,
    )
    if read.diverging is not None:
        epoch, end_offset = read.diverging
        answer.diverging_epoch = FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return answer


class RecordingListener:
    """A listener that writes down what it hears."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def high_watermark_advanced(self, p: Partition) -> None:
        self.events.append(("high watermark", p.high_watermark))

    def log_appended(self, p: Partition, *, committed: bool) -> None:
        self.events.append(("appended", p.log.log_end_offset))
        if committed:
            self.high_watermark_advanced(p)

    def changed(self, p: Partition) -> None:
        self.events.append(("changed", p.log.log_start_offset))

    def became_leader(self, p: Partition) -> None:
        self.events.append(("leader", p.leader_epoch))

    def became_follower(self, p: Partition) -> None:
        self.events.append(("follower", p.leader_epoch))

    def stopped(self, p: Partition, deleted: bool) -> None:
        self.events.append(("deleted" if deleted else "stopped", p.leader_epoch))


class Cluster:
    """Partition flights-0 on brokers 1, 2, ... with the first as leader."""

    def __init__(self, path: Path, replicas: int = 3, *, min_insync_replicas: int = 1) -> None:
        self.path = path
        self.config = LogConfig(min_insync_replicas=min_insync_replicas)
        self.now_ms = 1_000_000
        self.replicas = list(range(1, replicas + 1))
        self.alive: set[int] = set(self.replicas)
        self.listeners: dict[int, RecordingListener] = {}
        self.proposals: list[tuple[Partition, IsrChange]] = []
        self.nodes: dict[int, Partition] = {}
        self.fetches: dict[int, FollowerFetch] = {}
        self.broker_epochs: dict[int, int] = dict.fromkeys(self.replicas, -1)
        """By which brokers fetch; -1 as before Fetch 15."""
        self.leader_id = -1
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.isr = list(self.replicas)
        for broker in self.replicas:
            self.start(broker)
        self.elect(1)

    # --- brokers ------------------------------------------------------------------------------------

    def start(self, broker: int, *, high_watermark: int = 0) -> Partition:
        """Open a broker's log (whatever the last run left) with a checkpointed high watermark."""
        self.alive.add(broker)
        self.listeners[broker] = RecordingListener()
        log = Log.open(self.path / f"{broker}" / f"{TOPIC}-0", self.config, now_ms=self.now_ms)
        partition = self.nodes[broker] = Partition(
            TOPIC,
            0,
            broker,
            log,
            listener=self.listeners[broker],
            propose_isr=lambda p, change: self.proposals.append((p, change)),
            is_eligible=lambda other: other in self.alive,
            lag_ms_max=LAG_MS_MAX,
            high_watermark=high_watermark,
        )
        return partition

    def kill(self, broker: int) -> None:
        """The process is gone; what it wrote is in the page cache, and so in its files."""
        self.alive.discard(broker)
        self.nodes.pop(broker).log.close(self.now_ms)
        self.fetches.pop(broker, None)
        self.proposals = [(p, change) for p, change in self.proposals if p.broker_id != broker]

    @property
    def leader(self) -> Partition:
        return self.nodes[self.leader_id]

    # --- the controller -----------------------------------------------------------------------------

    def state(self) -> PartitionState:
        return PartitionState(
            TOPIC,
            0,
            self.leader_id,
            self.leader_epoch,
            tuple(self.isr),
            self.partition_epoch,
            tuple(self.replicas),
            topic_id=TOPIC_ID,
        )

    def elect(self, leader: int, isr: list[int] | None = None, informed: set[int] | None = None) -> None:
        """Bump the epoch with `leader` (and the ISR); inform all live brokers, or only `informed`."""
        self.leader_id = leader
        self.isr = list(self.isr if isr is None else isr)
        self.leader_epoch += 1
        self.partition_epoch += 1
        for broker in sorted(self.alive if informed is None else informed):
            self.leader_and_isr(broker)

    def leader_and_isr(self, broker: int) -> None:
        """LeaderAndIsr to one broker."""
        node = self.nodes[broker]
        if self.leader_epoch <= node.leader_epoch:
            return
        self.fetches.pop(broker, None)
        if broker == self.leader_id:
            node.become_leader(self.state(), self.now_ms)
        else:
            node.become_follower(self.state())
            self.fetches[broker] = FollowerFetch(node)

    def decide_proposals(self, *, answer: bool = True) -> None:
        """The controller's side of AlterPartition; without `answer` the responses get lost."""
        proposals, self.proposals = self.proposals, []
        for partition, change in proposals:
            if change.leader_epoch != self.leader_epoch:
                if answer:
                    partition.isr_change_failed(change, ErrorCode.FENCED_LEADER_EPOCH, self.now_ms)
                continue
            if change.partition_epoch != self.partition_epoch:
                if answer:
                    partition.isr_change_failed(change, ErrorCode.INVALID_UPDATE_VERSION, self.now_ms)
                continue
            if not change.proposed <= self.alive:
                if answer:
                    partition.isr_change_failed(change, ErrorCode.INELIGIBLE_REPLICA, self.now_ms)
                continue
            self.isr = sorted(change.proposed)
            self.partition_epoch += 1
            if answer:
                partition.isr_change_committed(
                    change,
                    leader_epoch=self.leader_epoch,
                    isr=change.proposed,
                    partition_epoch=self.partition_epoch,
                    now_ms=self.now_ms,
                )

    # --- producers, followers, consumers ------------------------------------------------------------

    def produce(self, *values: str, acks: int = -1, to: int | None = None) -> LogAppendInfo:
        node = self.leader if to is None else self.nodes[to]
        return node.append_as_leader(batch(*values), required_acks=acks, now_ms=self.now_ms)

    def ask(self, follower: int) -> tuple[FollowerFetch, FetchRequest.FetchPartition]:
        fetch = self.fetches[follower]
        return fetch, fetch.request(1 << 20)

    def answer(self, follower: int, request: FetchRequest.FetchPartition) -> PartitionRead:
        """The read that the follower's leader makes of its request."""
        leader = self.nodes[self.nodes[follower].leader_id]
        return read_replica(
            leader,
            request.fetch_offset,
            request.partition_max_bytes,
            replica_id=follower,
            broker_epoch=self.broker_epochs[follower],
            current_leader_epoch=request.current_leader_epoch,
            last_fetched_epoch=request.last_fetched_epoch,
            now_ms=self.now_ms,
            follower_log_start_offset=request.log_start_offset,
        )

    def fetch(self, follower: int) -> Step:
        """One fetch of a follower, there and back, and what it did about the answer."""
        fetch, request = self.ask(follower)
        step = fetch.decide(as_answer(self.answer(follower, request)))
        if isinstance(step, RequestOffsets):
            step = self._place(fetch)
        fetch.apply(step, now_ms=self.now_ms, monotonic_ms=self.now_ms, backoff_ms=0)
        return step

    def _place(self, fetch: FollowerFetch) -> Step:
        leader = self.nodes[fetch.partition.leader_id]
        end = offset_for_time(leader, LATEST_TIMESTAMP, None, fetch.leader_epoch)
        start = offset_for_time(leader, EARLIEST_TIMESTAMP, None, fetch.leader_epoch)
        assert end is not None
        assert start is not None
        return fetch.decide_on_end(end.offset) or fetch.decide_on_start(start.offset)

    def replicate(self, *followers: int, rounds: int = 8) -> None:
        """Let followers fetch until they have all, and know how much of it is committed."""
        for _ in range(rounds):
            for follower in followers or sorted(self.fetches):
                step = self.fetch(follower)
                assert not isinstance(step, Retry), step

    def consume(self, broker: int | None = None) -> list[str]:
        """What a consumer can read from the leader (or from what `broker` holds committed)."""
        node = self.nodes[self.leader_id if broker is None else broker]
        return values_of(node, node.high_watermark)


def values_of(node: Partition, up_to: int | None = None) -> list[str]:
    """The values in a replica's log, below `up_to`."""
    log = node.log
    end = log.log_end_offset if up_to is None else up_to
    values: list[str] = []
    offset = log.log_start_offset
    while offset < end:
        records = decode_records(log.read(offset, 1 << 20, up_to=log.log_end_offset).to_bytes())
        values += [(r.value or b"").decode() for r in records if offset <= r.offset < end]
        offset = records[-1].offset + 1
    return values


def epochs_of(node: Partition) -> list[tuple[int, int]]:
    """(offset, leader epoch) of each record's epoch, as a replica's checkpoint has it."""
    log = node.log
    return [(o, log.epoch_at(o) or 0) for o in range(log.log_start_offset, log.log_end_offset)]
