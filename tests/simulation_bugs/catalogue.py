"""The planted bugs. Each is an exact change of the source: a text that occurs once in its file, and another
one instead of it.

A bug's `source` names where a broker really had it: an issue or a KIP of Apache Kafka, or this project.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CUTS: Final = ("cut off", "cut one way", "cut pair", "cut from ZooKeeper", "pause", "session", "leader moves")
KILLS: Final = ("kill", "kill in a write", "kill all", "roll")
POWER: Final = ("power", "kill all")
LOSSES: Final = ("power", "disk")
STORE: Final = ("outage", "lost answers", "session")


@dataclass(frozen=True)
class Edit:
    """A change of one place in one file."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Bug:
    """A planted bug, and how to search for it."""

    name: str
    source: str
    mistake: str
    invariant: str
    """The invariant that is expected to find it."""
    edits: tuple[Edit, ...]
    workloads: tuple[str, ...] = ("append",)
    """The workloads of the runs; empty: those that the seed chooses."""
    seconds: float = 30.0
    """Virtual seconds with faults."""
    faults: tuple[str, ...] = CUTS
    """The kinds of faults that provoke it."""

    def __str__(self) -> str:
        return self.name


_PARTITION: Final = "broker/ottla/replication/partition.py"
_ISR: Final = "broker/ottla/replication/isr.py"
_ALTER_PARTITION: Final = "broker/ottla/replication/alter_partition.py"
_FOLLOWER: Final = "broker/ottla/replication/follower.py"
_READS: Final = "broker/ottla/replication/reads.py"
_MANAGER: Final = "broker/ottla/replication/manager.py"
_LOG: Final = "broker/ottla/storage/log.py"
_EPOCHS: Final = "broker/ottla/storage/leader_epochs.py"
_LOADER: Final = "broker/ottla/storage/log_loader.py"
_PRODUCERS: Final = "broker/ottla/storage/producer_state.py"
_SNAPSHOTS: Final = "broker/ottla/storage/producer_state_manager.py"
_LEADERSHIP: Final = "broker/ottla/controller/leadership.py"
_MEMBERSHIP: Final = "broker/ottla/coordinators/membership.py"
_GROUP: Final = "broker/ottla/coordinators/group.py"
_TRANSITIONS: Final = "broker/ottla/coordinators/transactions/transitions.py"
_BATCH_FILTER: Final = "broker/ottla/storage/cleaner/batch_filter.py"
_TRANSACTIONAL_COMMITS: Final = "broker/ottla/coordinators/transactional_commits.py"
_CONTROLLER_ISR: Final = "broker/ottla/controller/isr.py"
_ACTIVE_CONTROLLER: Final = "broker/ottla/controller/active_controller.py"
_DOWN_CONVERSION: Final = "client/ottla/protocol/down_conversion.py"
_INTER_BROKER: Final = "broker/ottla/server/handlers/cluster/inter_broker_requests.py"

_ALL: Final = (
    Bug(
        "truncation-to-high-watermark",
        "KAFKA-1211, KIP-101",
        "a follower truncates to its high watermark, and not by leader epochs",
        "nothing acknowledged is lost",
        (
            Edit(
                _PARTITION,
                "        self.in_sync.clear()\n        self._clamp_high_watermark()\n        return new_epoch\n",
                "        self.in_sync.clear()\n        self._clamp_high_watermark()\n"
                "        self.log.truncate_to(self.high_watermark)\n        return new_epoch\n",
            ),
            Edit(_FOLLOWER, "latest = log.latest_epoch if detects_divergence else None", "latest = None"),
        ),
        faults=KILLS,
    ),
    Bug(
        "no-divergence-check",
        "KAFKA-6361, KIP-279",
        "a follower takes the end of the leader's epoch without a look at its own epochs",
        "same records",
        (
            Edit(
                _FOLLOWER,
                "        own_epoch, own_end = log.end_offset_for_epoch(epoch)\n        if own_epoch < 0:\n",
                "        own_epoch, own_end = log.end_offset_for_epoch(epoch)\n        if True:\n",
            ),
        ),
    ),
    Bug(
        "no-truncation",
        "Kafka before replication was made safe (KIP-101)",
        "a follower of a new leader appends without any truncation",
        "same records",
        (Edit(_FOLLOWER, "latest = log.latest_epoch if detects_divergence else None", "latest = None"),),
        faults=KILLS,
    ),
    Bug(
        "epoch-unknown-to-leader-is-accepted",
        "KAFKA-6361, KIP-279",
        "the leader accepts a fetch with an epoch that it does not have",
        "same records",
        (
            Edit(
                _READS,
                "if epoch < last_fetched_epoch or epoch_end < fetch_offset:",
                "if epoch == last_fetched_epoch and epoch_end < fetch_offset:",
            ),
        ),
    ),
    Bug(
        "isr-change-without-epochs",
        "KAFKA-8836, KIP-497",
        "the controller makes an ISR change of a leader with an old leader epoch or partition epoch",
        "leader completeness",
        (
            Edit(
                _CONTROLLER_ISR,
                "    if requested.leader_epoch < current.leader_epoch:\n",
                "    if False:\n",
            ),
            Edit(
                _CONTROLLER_ISR,
                "    if requested.partition_epoch != current.partition_epoch:\n",
                "    if False:\n",
            ),
        ),
        faults=("lost answers", "session", "cut pair"),
    ),
    Bug(
        "expansion-counts-when-confirmed",
        "KAFKA-8836, KIP-497",
        "a follower that is proposed for the ISR does not hold back the high watermark yet",
        "ISR",
        (
            Edit(
                _ISR,
                "        self.maximal = self.change.maximal\n",
                "        self.maximal = self.committed\n",
            ),
        ),
        faults=("cut pair", "resets", "lost answers"),
    ),
    Bug(
        "shrink-counts-at-once",
        "KAFKA-8836, KIP-497",
        "a follower that is proposed to leave the ISR does not hold back the high watermark any more",
        "ISR",
        (Edit(_ISR, "        return self.committed | self.proposed\n", "        return self.proposed\n"),),
    ),
    Bug(
        "isr-shrinks-without-proposal",
        "KAFKA-8836, KIP-497",
        "a leader removes slow followers from its ISR without the controller",
        "ISR",
        (
            Edit(
                _PARTITION,
                "            self._propose(kept)\n",
                "            self.in_sync.set_isr(kept)\n"
                "            self._advance_and_notify(now_ms, isr_changed=True)\n",
            ),
        ),
        faults=("cut pair",),
    ),
    Bug(
        "failed-change-is-dropped",
        "KIP-497 (pending ISR state)",
        "without a response of AlterPartition the leader forgets the change, though the controller may have made it",
        "ISR",
        (
            Edit(
                _ALTER_PARTITION,
                'could not be sent to the controller, retrying: %s", error)\n            return proposals\n',
                'could not be sent to the controller, retrying: %s", error)\n'
                "            for partition, change in proposals.values():\n"
                "                if partition.isr_change is change:\n"
                "                    partition.in_sync.drop_change()\n"
                "            return {}\n",
            ),
        ),
        faults=("cut pair", "resets", "lost answers", "at a request", "controller moves"),
    ),
    Bug(
        "high-watermark-before-fetch",
        "KIP-101 (a follower confirms with its next fetch)",
        "records count as replicated as soon as the leader has sent them",
        "min.insync.replicas",
        (
            Edit(
                _PARTITION,
                "moved = follower.fetched(offset, log_start_offset, leader_end, now_ms)",
                "moved = follower.fetched(leader_end, log_start_offset, leader_end, now_ms)",
            ),
        ),
    ),
    Bug(
        "diverging-fetch-counts",
        "KAFKA-13141",
        "the leader counts the fetch offset of a follower whose log diverges",
        "StrongIsr",
        (
            Edit(
                _READS,
                "    data: LogRead | None = None\n    if diverging is None:\n",
                "    data: LogRead | None = None\n    if diverging is not None and follower is not None:\n"
                "        replica.follower_fetched(follower, fetch_offset, follower_log_start_offset, end, now_ms)\n"
                "    if diverging is None:\n",
            ),
        ),
    ),
    Bug(
        "joins-isr-at-high-watermark",
        "KAFKA-7128",
        "a follower joins the ISR at the high watermark, below the start of the leader epoch",
        "StrongIsr",
        (
            Edit(
                _PARTITION,
                "        if end < self.high_watermark or end < self.leader_epoch_start:\n",
                "        if end < self.high_watermark:\n",
            ),
        ),
        faults=("kill", "resets", "cut pair"),
    ),
    Bug(
        "follower-state-survives-epochs",
        "KAFKA-9654 (follower state at a new leader epoch)",
        "a new leader keeps the ends of its followers from the time when it led before",
        "StrongIsr",
        (
            Edit(
                _ISR,
                "        if not has_led:\n            self.log_end",
                "        if False:\n            self.log_end",
            ),
            Edit(
                _ISR,
                "        self.followers = _NO_FOLLOWERS\n        self.set_isr(_EMPTY)\n",
                "        self.set_isr(_EMPTY)\n",
            ),
        ),
    ),
    Bug(
        "unclean-election-although-disabled",
        "KAFKA-1028",
        "the controller elects a leader from outside the ISR",
        "nothing acknowledged is lost",
        (Edit(_LEADERSHIP, "unclean=tp.topic in context.unclean_topics)", "unclean=True)"),),
        faults=LOSSES,
    ),
    Bug(
        "preferred-election-outside-isr",
        "KAFKA-8206 (elections outside the ISR)",
        "the preferred replica is elected though it is not in sync",
        "nothing acknowledged is lost",
        (
            Edit(
                _LEADERSHIP,
                "    if preferred not in current.isr or not context.is_online(preferred, tp):\n",
                "    if not context.is_online(preferred, tp):\n",
            ),
            Edit(
                _LEADERSHIP,
                "        change(context, effects, tp, preferred, current.isr)\n",
                "        change(context, effects, tp, preferred, tuple(dict.fromkeys((preferred, *current.isr))))\n",
            ),
            Edit(_LEADERSHIP, "        and preferred in context.leaders[tp].isr\n", ""),
        ),
        faults=KILLS,
    ),
    Bug(
        "stale-leader-and-isr",
        "KAFKA-7235, KIP-380",
        "a broker accepts late LeaderAndIsr: of an old controller, or for its former registration",
        "one leader per epoch",
        (
            Edit(
                _MANAGER, "        if state.leader_epoch < partition.leader_epoch:\n", "        if False:\n"
            ),
            Edit(
                _MANAGER,
                "        if self.is_stale_controller(epoch):\n            return False\n",
                "",
            ),
            Edit(
                _INTER_BROKER,
                "        if self._replicas.is_stale_controller(message.controller_epoch):\n",
                "        if False:\n",
            ),
            Edit(
                _INTER_BROKER,
                "        if message.broker_epoch != UNKNOWN_EPOCH and message.broker_epoch < self._broker_epoch():\n",
                "        if False:\n",
            ),
            Edit(
                _PARTITION,
                "        assert state.leader == self.broker_id\n"
                '        assert state.leader_epoch >= self.leader_epoch, "a leader epoch never goes back"\n'
                "        if state.partition_epoch < self.partition_epoch:\n",
                "        if False:\n",
            ),
            Edit(
                _PARTITION,
                "        assert state.leader != self.broker_id\n"
                '        assert state.leader_epoch >= self.leader_epoch, "a leader epoch never goes back"\n'
                "        if state.partition_epoch < self.partition_epoch:\n",
                "        if False:\n",
            ),
        ),
        faults=("controller moves", "at a request", "leader moves"),
    ),
    Bug(
        "restarted-follower-joins-isr",
        "KAFKA-14139, KIP-903",
        "the controller accepts into the ISR a broker that has restarted since its fetch",
        "nothing acknowledged is lost",
        (
            Edit(
                _CONTROLLER_ISR,
                "        stale = known is not None and epochs.get(replica, -1) not in (-1, known.epoch)\n",
                "        stale = known is None\n",
            ),
        ),
        faults=("at a request", "power"),
    ),
    Bug(
        "fetch-epoch-ignored",
        "KAFKA-6880, KIP-320",
        "a broker serves fetches with another leader epoch than its own",
        "leader completeness",
        (
            Edit(
                _READS,
                "    if current_leader_epoch >= 0 and current_leader_epoch != replica.leader_epoch:\n",
                "    if False:\n",
            ),
        ),
    ),
    Bug(
        "follower-forgets-epochs",
        "KAFKA-6361, KIP-279",
        "a follower does not record the leader epochs of the batches that it appends",
        "same records",
        (
            Edit(
                _LOG,
                "                if header.partition_leader_epoch != self.latest_epoch:\n",
                "                if self.latest_epoch is None:\n",
            ),
        ),
        faults=KILLS,
    ),
    Bug(
        "epoch-recorded-with-first-batch",
        "KIP-101 (the epoch starts before the first append)",
        "a new leader records its epoch with its first batch only",
        "same records",
        (
            Edit(
                _PARTITION,
                "            self.log.assign_epoch_start(state.leader_epoch, start)\n",
                "            pass\n",
            ),
        ),
        faults=KILLS,
    ),
    Bug(
        "end-of-unknown-epoch-is-log-end",
        "KAFKA-6361, KIP-279",
        "the end of an epoch without an entry is the log end",
        "same records",
        (
            Edit(
                _EPOCHS,
                "        return (self._epochs[above - 1] if above else epoch), self._starts[above]\n",
                "        return (self._epochs[above - 1] if above else epoch), log_end_offset\n",
            ),
        ),
        faults=KILLS,
    ),
    Bug(
        "epochs-not-truncated",
        "KIP-101",
        "a truncation leaves the leader epochs after its end",
        "same records",
        (
            Edit(
                _LOG,
                "            self._leader_epochs.truncate_from_end(offset)\n            self._on_epochs_changed()\n"
                "            if is_rolled_back:\n",
                "            if is_rolled_back:\n",
            ),
            Edit(
                _LOG,
                "                self._leader_epochs.truncate_from_end(self.log_end_offset)\n"
                "                self._on_epochs_changed()\n                return False\n",
                "                return False\n",
            ),
        ),
        faults=KILLS,
    ),
    Bug(
        "missed-epochs-ignored",
        "Ottla before 2026-11-27; Kafka 3.9",
        "a leader that is elected again after epochs which it has missed keeps the ends of its followers",
        "StrongIsr",
        (
            Edit(
                _PARTITION,
                "            has_led = not new_leader and state.leader_epoch == self.leader_epoch + 1\n",
                "            has_led = not new_leader\n",
            ),
        ),
        faults=("cut pair", "cut off", "leader moves", "at a request"),
    ),
    Bug(
        "new-leader-commits-its-log",
        "KIP-101 (the high watermark of a new leader)",
        "a new leader takes all of its log for committed",
        "StrongIsr",
        (
            Edit(
                _PARTITION,
                "        self._clamp_high_watermark()\n        self._advance_and_notify(now_ms)\n        return new_leader\n",
                "        self.high_watermark = self.log.log_end_offset\n        self._advance_and_notify(now_ms)\n"
                "        return new_leader\n",
            ),
        ),
    ),
    Bug(
        "follower-high-watermark-after-its-log",
        "KIP-101 (the high watermark of a follower)",
        "a follower takes the leader's high watermark, which may be after its own log end",
        "offsets",
        (
            Edit(
                _PARTITION,
                "        committed = min(leader_high_watermark, log.log_end_offset)\n",
                "        committed = leader_high_watermark\n",
            ),
        ),
        faults=KILLS,
    ),
    Bug(
        "slow-follower-stays-in-isr",
        "KIP-16 (replica.lag.time.max.ms)",
        "a follower that stays behind its leader is not removed from the ISR",
        "ISR",
        (
            Edit(
                _ISR,
                "now_ms - self.last_caught_up_ms <= lag_ms_max\n",
                "now_ms - self.last_caught_up_ms <= lag_ms_max * 1000\n",
            ),
        ),
        faults=("cut pair", "cut off"),
    ),
    Bug(
        "session-forgets-changes",
        "KIP-227 (fetch sessions)",
        "a leader forgets that a partition of a session has changed while no fetch of the session waited",
        "waiting fetches",
        (
            Edit(
                "broker/ottla/server/dispatch/fetch_sessions.py",
                "            if wanted not in session.dirty:\n                session.dirty.add(wanted)\n",
                "            if wanted not in session.dirty and session.waiting is not None:\n"
                "                session.dirty.add(wanted)\n",
            ),
        ),
        faults=("resets", "kill", "cut pair"),
    ),
    Bug(
        "reassignment-completes-early",
        "KIP-455",
        "a reassignment is complete before the added replicas are in sync",
        "reassignment",
        (
            Edit(
                "broker/ottla/controller/reassignment.py",
                "    if not set(target) <= set(current.isr):\n",
                "    if not set(target) & set(current.isr):\n",
            ),
        ),
        ("changes", "append"),
    ),
    Bug(
        "election-keeps-leader-epoch",
        "KIP-101 (each leader has an epoch of its own)",
        "an election does not increment the leader epoch if the partition had no leader",
        "one leader per epoch",
        (
            Edit(
                _LEADERSHIP,
                "        before.leader_epoch + 1,\n",
                "        before.leader_epoch + (before.leader != NO_LEADER),\n",
            ),
        ),
        faults=("kill all", "kill", "session"),
    ),
    Bug(
        "new-controller-sends-nothing",
        "Kafka's onControllerFailover (requests that were not sent)",
        "a new controller does not repeat the decisions that its predecessor may not have sent",
        "metadata agree",
        (
            Edit(
                "broker/ottla/controller/broker_changes.py",
                "    send_full_state(context, effects, context.brokers)\n    effects.brokers_changed = True\n",
                "    effects.brokers_changed = True\n",
            ),
        ),
        faults=("controller moves", "at a request", "kill"),
    ),
    Bug(
        "bounced-broker-not-noticed",
        "KIP-380 (bounced brokers)",
        "the controller does not notice that a broker has restarted between two looks",
        "liveness",
        (
            Edit(
                "broker/ottla/controller/broker_changes.py",
                "    failed_brokers = {b for b in before if b not in alive or alive[b].epoch != before[b].epoch}\n"
                "    new_brokers = {b for b in alive if b not in before or alive[b].epoch != before[b].epoch}\n",
                "    failed_brokers = {b for b in before if b not in alive}\n"
                "    new_brokers = {b for b in alive if b not in before}\n",
            ),
        ),
        faults=("kill", "roll", "cut from ZooKeeper", "pause", "session"),
    ),
    Bug(
        "isr-answered-before-written",
        "KIP-497",
        "the controller answers AlterPartition before the new ISR is in ZooKeeper",
        "ISR",
        (
            Edit(
                "broker/ottla/controller/partition_requests.py",
                "        if not effects.empty:\n            await active.apply(effects)\n        return response\n\n"
                "    return await run_or_error(controller, work, lambda error: m.AlterPartitionResponse(",
                "        if not effects.empty:\n            import asyncio\n\n"
                "            asyncio.ensure_future(active.apply(effects)).add_done_callback(lambda f: f.exception())\n"
                "        return response\n\n"
                "    return await run_or_error(controller, work, lambda error: m.AlterPartitionResponse(",
            ),
        ),
        faults=STORE,
    ),
    Bug(
        "late-fetch-response-is-appended",
        "Kafka's fetcher (a response after a truncation)",
        "a follower appends the records of a response though its log end has changed since the request",
        "same records",
        (
            Edit(
                _FOLLOWER,
                "        if not self.is_current or log.log_end_offset != self.fetch_offset:\n",
                "        if False:\n",
            ),
            Edit(
                "broker/ottla/storage/log_validator.py",
                "        if header.base_offset < expected or header.last_offset_delta < 0:\n",
                "        if header.last_offset_delta < 0:\n",
            ),
        ),
    ),
    Bug(
        "snapshot-not-loaded",
        "KAFKA-5793 (idempotence across restarts)",
        "the producers of a snapshot are not restored after a restart",
        "producer state",
        (
            Edit(
                _SNAPSHOTS,
                "                self.producers.load(producers)\n",
                "                pass\n",
            ),
        ),
        faults=KILLS,
    ),
    Bug(
        "follower-keeps-no-producer-state",
        "KIP-98 (producer state on followers)",
        "a follower does not keep the state of the producers",
        "producer state",
        (
            Edit(
                _LOG,
                "                if header.producer_id >= 0:\n                    self._producer_state.update(header, view[",
                "                if header.is_control:\n                    self._producer_state.update(header, view[",
            ),
        ),
        faults=KILLS,
    ),
    Bug(
        "duplicates-of-last-batch-only",
        "KAFKA-5494",
        "only a retry of a producer's last batch is recognised",
        "sequences",
        (
            Edit(
                _PRODUCERS,
                "        for batch in entry.batches:\n",
                "        for batch in list(entry.batches)[-1:]:\n",
            ),
        ),
        ("raw-client",),
        faults=KILLS,
    ),
    Bug(
        "sequence-not-checked",
        "KAFKA-5494, KIP-98",
        "a leader accepts a gap in the sequence of a producer",
        "order",
        (Edit(_PRODUCERS, "            if not in_order:\n", "            if False:\n"),),
        faults=KILLS,
    ),
    Bug(
        "producer-state-not-truncated",
        "KAFKA-5793 (idempotence across truncation)",
        "a truncation leaves the producer state of the removed batches",
        "producer state",
        (
            Edit(
                _LOG,
                "is_rolled_back = self._producer_state.roll_back(segments[len(kept) - 1 :], offset)",
                "is_rolled_back = True",
            ),
        ),
        faults=KILLS,
    ),
    Bug(
        "acknowledged-by-former-leader",
        "KAFKA-3112 (acks=all at a leader change)",
        "a broker that is no longer the leader acknowledges the requests that wait",
        "nothing acknowledged is lost",
        (
            Edit(
                _PARTITION,
                "            return True, self._not_leader_error\n        if self.high",
                "            return True, _NONE\n        if self.high",
            ),
        ),
        faults=("session", "cut pair", "slow links"),
    ),
    Bug(
        "min-isr-not-checked",
        "KAFKA-15583 (min.insync.replicas)",
        "a leader alone in its ISR acknowledges acks=all below min.insync.replicas",
        "nothing acknowledged is lost",
        (
            Edit(
                _PARTITION,
                "        if required_acks == ACKS_ALL and len(self.in_sync.committed) < self.min_in_sync:\n",
                "        if False:\n",
            ),
            Edit(
                _PARTITION,
                "        if len(self.maximal_isr) < self.min_in_sync:\n            return True, ErrorCode.NOT",
                "        if False:\n            return True, ErrorCode.NOT",
            ),
            Edit(
                _PARTITION,
                "        if len(self.in_sync.committed) < self.min_in_sync:\n            return False\n",
                "",
            ),
        ),
        faults=POWER,
    ),
    Bug(
        "recovery-keeps-torn-batches",
        "KAFKA-10778 (recovery after a failed write)",
        "the recovery of a log does not verify the checksums of its batches",
        "same records",
        (
            Edit(
                _LOADER,
                "        if len(batch) < size or crc32c(batch[CRC_START:]) != header.crc:\n",
                "        if len(batch) < size:\n",
            ),
        ),
        faults=POWER,
    ),
    Bug(
        "recovery-point-before-fsync",
        "KAFKA-15391 (recovery point without its data)",
        "the recovery point advances without an fsync of the segments",
        "durable",
        (
            Edit(
                "broker/ottla/storage/local_log.py",
                "                for segment in pending.segments:\n                    segment.sync()\n",
                "",
            ),
        ),
        faults=POWER,
    ),
    Bug(
        "lost-log-not-detected",
        "Ottla: a broker with an empty disk led with it; Kafka: KIP-858",
        "a broker that lost its log starts in the ISR with an empty one, and without waiting for the failover",
        "nothing acknowledged is lost",
        (
            Edit(
                "broker/ottla/metadata/unclean_restart.py",
                "        if not alive or (controller >= 0 and not can_fail_over(states, broker_id, alive)):\n",
                "        if True:\n",
            ),
            Edit(
                _INTER_BROKER,
                "            lost = await self._lost_logs.find(missing)\n",
                "            lost = set()\n",
            ),
        ),
        faults=LOSSES,
    ),
    Bug(
        "restart-without-failover",
        "Ottla 7cb57d8; Kafka: KIP-966",
        "a broker that lost its power registers before it has left the ISRs",
        "nothing acknowledged is lost",
        (
            Edit(
                "broker/ottla/metadata/unclean_restart.py",
                "        if not alive or (controller >= 0 and not can_fail_over(states, broker_id, alive)):\n",
                "        if True:\n",
            ),
        ),
        faults=LOSSES,
    ),
    Bug(
        "controller-write-without-fence",
        "KAFKA-6082",
        "the writes of a controller do not check that it is still the controller",
        "epochs advance",
        (
            Edit(
                _ACTIVE_CONTROLLER,
                "        results = await self.store.multi([self.epoch_check, *operations])\n        return results[1:]\n",
                "        return await self.store.multi(list(operations))\n",
            ),
        ),
        faults=("session", "pause", "cut from ZooKeeper"),
    ),
    Bug(
        "isr-never-expands",
        "KAFKA-2729",
        "a leader whose ISR change failed does not expand the ISR again",
        "liveness",
        (
            Edit(
                _PARTITION,
                "        if self.in_sync.is_eligible(follower.broker_id):\n",
                "        if self.partition_epoch < 3 and self.in_sync.is_eligible(follower.broker_id):\n",
            ),
        ),
        faults=("session", "resets", "kill"),
    ),
    Bug(
        "alter-partition-not-retried",
        "KAFKA-2729",
        "an ISR change whose request failed is neither dropped nor sent again",
        "liveness",
        (
            Edit(
                "broker/ottla/replication/alter_partition.py",
                'retrying: %s", error)\n            return proposals\n',
                'retrying: %s", error)\n            return {}\n',
            ),
        ),
        faults=("cut pair", "resets", "kill"),
    ),
    Bug(
        "checkpoint-without-directory-sync",
        "KAFKA-13070 (checkpoints after a power loss)",
        "a checkpoint file is renamed into place before its content and the directory are synced",
        "durable",
        (
            Edit(
                "broker/ottla/ports/files.py",
                "    write_file(files, temporary, text.encode(), sync=sync)\n    files.rename(temporary, path)\n"
                "    if sync:\n",
                "    write_file(files, temporary, text.encode(), sync=False)\n    files.rename(temporary, path)\n"
                "    if False:\n",
            ),
        ),
        faults=POWER,
    ),
    Bug(
        "segment-without-directory-sync",
        "KAFKA-5829 (files of a log after a power loss)",
        "a flush does not sync the directory, so that a power loss removes new segments",
        "durable",
        (
            Edit(
                "broker/ottla/storage/local_log.py", "                sync_path(files, self.directory)\n", ""
            ),
        ),
        faults=POWER,
    ),
    Bug(
        "marker-lost-at-failover",
        "KAFKA-6119 (transactions at a failover of the coordinator)",
        "a new coordinator does not complete the transactions that are prepared in its log",
        "liveness",
        (Edit(_TRANSITIONS, "    Loaded: dict.fromkeys(_PREPARED, _send_markers),\n", "    Loaded: {},\n"),),
        ("transactions",),
        faults=KILLS,
    ),
    Bug(
        "commit-before-all-partitions-are-known",
        "KAFKA-5477, KIP-98 (partitions of a transaction)",
        "the coordinator forgets the partitions that were added before the last AddPartitionsToTxn",
        "atomicity",
        (
            Edit(
                _TRANSITIONS,
                "    partitions = entry.partitions | event.partitions\n",
                "    partitions = event.partitions\n",
            ),
        ),
        ("transactions",),
    ),
    Bug(
        "markers-of-one-partition-only",
        "KAFKA-5477 (markers of all partitions)",
        "a transaction is complete when the first partitions have their markers",
        "liveness",
        (Edit(_TRANSITIONS, "[] if rest else [Write(complete)]\n", "[Write(complete)]\n"),),
        ("transactions",),
    ),
    Bug(
        "prepared-outcome-changes",
        "KAFKA-5251 (a commit after an abort)",
        "a new producer aborts a transaction whose commit is prepared",
        "atomicity",
        (
            Edit(
                _TRANSITIONS,
                "    commit = entry.state is State.PREPARE_COMMIT\n",
                "    commit = entry.state is State.PREPARE_COMMIT and not transaction.fencing and event is not _RELOADED\n",
            ),
            Edit(
                _TRANSITIONS,
                "    Loaded: dict.fromkeys(_PREPARED, _send_markers),\n",
                "    Loaded: dict.fromkeys(_PREPARED, lambda t, e, now: _send_markers(t, _RELOADED, now)),\n",
            ),
            Edit(_TRANSITIONS, "_Rule: TypeAlias = ", "_RELOADED = Loaded()\n_Rule: TypeAlias = "),
        ),
        ("transactions",),
    ),
    Bug(
        "last-stable-offset-without-open-transactions",
        "KIP-98 (the last stable offset)",
        "open transactions do not hold back the last stable offset",
        "no uncommitted data",
        (
            Edit(
                _PRODUCERS,
                "            return next(iter(self._ongoing.values()), None) if self._ongoing else None\n",
                "            return None\n",
            ),
        ),
        ("transactions",),
    ),
    Bug(
        "aborted-transactions-not-listed",
        "KIP-98 (aborted transactions in Fetch)",
        "a fetch of a read_committed consumer does not list the aborted transactions",
        "no aborted data (G1a)",
        (
            Edit(
                _LOG,
                "        return [(each.producer_id, each.first_offset) for each in aborted]\n",
                "        return []\n",
            ),
        ),
        ("transactions",),
    ),
    Bug(
        "abort-not-in-index-of-follower",
        "KAFKA-6119 (aborted transactions after a failover)",
        "a follower does not write aborted transactions to its transaction index",
        "indexes",
        (
            Edit(
                _LOG,
                "view[pos : pos + header.size], segment)\n",
                "view[pos : pos + header.size], None)\n",
            ),
        ),
        ("transactions",),
        faults=KILLS,
    ),
    Bug(
        "producer-epoch-not-checked",
        "KAFKA-9144, KIP-360 (zombie producers)",
        "a partition accepts batches of a fenced transactional producer",
        "atomicity",
        (
            Edit(_PRODUCERS, "        if epoch < entry.epoch:\n", "        if False:\n"),
            Edit(
                _TRANSITIONS,
                "    if producer_epoch != transaction.entry.producer_epoch:\n",
                "    if False:\n",
            ),
        ),
        ("transactions",),
    ),
    Bug(
        "verification-skipped",
        "KAFKA-14402, KIP-890",
        "a late batch begins a transaction after its end, which nothing completes",
        "transactions are verified",
        (
            Edit(
                _PRODUCERS,
                "        if entry is not None and entry.transaction_start is not None:\n            return None\n"
                "        verification =",
                "        if True:\n            return None\n        verification =",
            ),
            Edit(
                _PRODUCERS,
                "        if guard is None or self._verifying.get(producer_id) is not guard:\n",
                "        if False:\n",
            ),
        ),
        ("raw-client",),
    ),
    Bug(
        "offsets-of-aborted-transactions",
        "KAFKA-5211 (offsets of transactions)",
        "the offsets of an aborted transaction are committed",
        "atomicity",
        (
            Edit(
                _TRANSACTIONAL_COMMITS,
                "                group.offsets.end_transaction(producer_id, committed)\n",
                "                group.offsets.end_transaction(producer_id, True)\n",
            ),
        ),
        ("transactions",),
    ),
    Bug(
        "transactional-offsets-lost-at-failover",
        "KAFKA-5211, KAFKA-10284",
        "a new coordinator does not restore the offsets of open transactions",
        "coordinator state",
        (
            Edit(
                "broker/ottla/coordinators/replay.py",
                "                self._restore(producer_id, key, stored)\n",
                "                pass\n",
            ),
        ),
        ("transactions",),
        faults=KILLS,
    ),
    Bug(
        "commit-of-old-generation",
        "KAFKA-7165 (fencing of group members by generation)",
        "a group accepts the offsets of a member of an earlier generation",
        "committed offsets never go back",
        (
            Edit(
                "broker/ottla/coordinators/offset_requests.py",
                "        return error\n\n    async def _store(",
                "        return ErrorCode.NONE\n\n    async def _store(",
            ),
            Edit(
                "broker/ottla/coordinators/offset_requests.py",
                "        if group.state is not GroupState.EMPTY:\n            self._apply_effects(self._membership.restart",
                "        if request.member_id in group.members:\n            self._apply_effects(self._membership.restart",
            ),
            Edit(
                "broker/ottla/coordinators/offset_requests.py",
                "            if generation >= 0:\n                return None, ErrorCode.ILLEGAL_GENERATION\n",
                "",
            ),
        ),
        ("groups",),
    ),
    Bug(
        "generation-not-persisted",
        "KAFKA-4845 (generation after a failover)",
        "a group that is loaded after a failover starts with generation 0",
        "coordinator state",
        (
            Edit(
                "broker/ottla/coordinators/replay.py",
                "                    self.groups[group_id] = records.parse_group_value(group_id, value)\n",
                "                    self.groups[group_id] = Group(group_id)\n",
            ),
        ),
        ("groups",),
        faults=KILLS,
    ),
    Bug(
        "static-member-not-fenced",
        "KAFKA-8678, KIP-345",
        "a former process of a static member stays in the group beside the new one",
        "members own disjoint partitions",
        (
            Edit(
                _GROUP,
                "            return ErrorCode.NONE if current == member_id else ErrorCode.FENCED_INSTANCE_ID\n",
                "            return ErrorCode.NONE\n",
            ),
        ),
        ("groups",),
    ),
    Bug(
        "heartbeat-hides-rebalance",
        "KAFKA-4845 (heartbeats in a rebalance)",
        "a heartbeat does not tell a member that the group rebalances",
        "liveness",
        (
            Edit(
                _MEMBERSHIP,
                "        return (ErrorCode.REBALANCE_IN_PROGRESS if rebalancing else ErrorCode.NONE), step.effects\n",
                "        return ErrorCode.NONE, step.effects\n",
            ),
        ),
        ("groups",),
    ),
    Bug(
        "offsets-served-before-loaded",
        "KAFKA-5600, KAFKA-1413 (offsets while loading)",
        "a coordinator answers OffsetFetch while it loads the offsets",
        "committed offsets never go back",
        (
            Edit(
                "broker/ottla/coordinators/ownership.py",
                "        return ErrorCode.NONE if ownership.loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS\n",
                "        return ErrorCode.NONE\n",
            ),
        ),
        ("groups",),
        faults=(*KILLS, "slow disk"),
    ),
    Bug(
        "commit-acknowledged-before-replication",
        "KAFKA-2118 (offsets.commit.required.acks)",
        "offset commits are acknowledged before they are replicated",
        "committed offsets never go back",
        (
            Edit(
                "broker/ottla/coordinators/log_appender.py",
                "acks=acks, timeout_ms=timeout_ms, guard=guard)\n",
                "acks=1, timeout_ms=timeout_ms, guard=guard)\n",
            ),
        ),
        ("groups",),
    ),
    Bug(
        "compaction-beyond-last-stable-offset",
        "KAFKA-5413, KIP-98",
        "the cleaner compacts records beyond the last stable offset",
        "nothing past the last stable offset is compacted",
        (
            Edit(
                "broker/ottla/storage/cleaner/planning.py",
                "    first_uncleanable = min(last_stable_offset, active)\n",
                "    first_uncleanable = active\n",
            ),
        ),
        ("compaction",),
    ),
    Bug(
        "tombstone-removed-too-early",
        "KAFKA-8522, KIP-534",
        "the cleaner removes a tombstone at once",
        "compaction keeps the last value",
        (
            Edit(
                _BATCH_FILTER,
                "        has_expired = horizon is not None and horizon <= self._now_ms\n",
                "        has_expired = True\n",
            ),
        ),
        ("compaction",),
    ),
    Bug(
        "compaction-keeps-first-value",
        "KAFKA-1641 (the cleaner's offset map)",
        "the cleaner keeps an older value of a key",
        "compaction keeps the last value",
        (
            Edit(
                _BATCH_FILTER,
                "base_offset + offset >= find(key)\n",
                "base_offset + offset <= find(key)\n",
            ),
        ),
        ("compaction",),
        faults=KILLS,
    ),
    Bug(
        "aborted-records-compacted-as-committed",
        "KAFKA-5490 (cleaner and transactions)",
        "the cleaner takes the records of aborted transactions for committed ones",
        "indexes",
        (
            Edit(
                _BATCH_FILTER,
                "        if header.producer_id in self._ongoing_aborted:\n",
                "        if False:\n",
            ),
        ),
        ("compaction",),
    ),
    Bug(
        "marker-removed-before-its-records",
        "KAFKA-5490 (cleaner and transactions)",
        "the cleaner removes the marker of a transaction that still has records",
        "transactions end",
        (
            Edit(
                _BATCH_FILTER,
                "                if producer_id not in self._ongoing_committed:\n                    return True\n",
                "                if True:\n                    return True\n",
            ),
            Edit(
                _BATCH_FILTER,
                "                if aborted is None or producer_id not in self._seen:\n                    return True\n",
                "                if True:\n                    return True\n",
            ),
        ),
        ("compaction",),
    ),
    Bug(
        "requests-of-former-topic",
        "KAFKA-10545, KIP-516 (a re-created topic)",
        "a broker accepts the state of a deleted topic for the new topic of that name",
        "no records of a deleted topic",
        (
            Edit(
                _MANAGER,
                "        return log is None or _ids_differ(log.topic_id, state.topic_id)\n",
                "        return log is None\n",
            ),
        ),
        ("changes", "append"),
    ),
    Bug(
        "session-expired-without-registration",
        "KAFKA-5473",
        "a broker whose session has expired does not register again",
        "liveness",
        (
            Edit(
                "broker/ottla/server/assembly/broker.py",
                "        self._session_lost = True\n        if self._rejoining is None or self._rejoining.done():\n",
                "        if False:\n",
            ),
        ),
        faults=STORE,
    ),
    Bug(
        "maybe-written-batch-sent-again",
        "Ottla 4423af4; KAFKA-9113",
        "a producer sends a batch that may have been written again, under a new epoch",
        "no duplicates",
        (
            Edit(
                "client/ottla/client/core/sender.py",
                "            self._fail_maybe_written(queue)\n            sequence.begin(",
                "            sequence.begin(",
            ),
        ),
        faults=KILLS,
    ),
    Bug(
        "delayed-fetch-never-completed",
        "KAFKA-7149 (requests that stay in the purgatory)",
        "records that become committed do not complete the fetches of consumers, nor does their deadline",
        "liveness",
        (
            Edit(
                "broker/ottla/server/dispatch/purgatory.py",
                "        delayed.bucket = bucket\n",
                "        delayed.bucket = bucket\n        if not isinstance(delayed, ReplicationWait):\n            return\n",
            ),
            Edit(
                "broker/ottla/server/dispatch/purgatory.py",
                "            self._notify_sessions(p, wake_followers=False)\n",
                "            self._notify_sessions(p, consumers=False, wake_followers=False)\n",
            ),
        ),
        faults=KILLS,
    ),
    Bug(
        "snapshot-has-last-batch-only",
        "Ottla 8bf2c62; Kafka's snapshots have one batch of each producer",
        "after a clean restart a leader recognises a retry of a producer's last batch only",
        "producer state",
        (
            Edit(
                _SNAPSHOTS,
                "                _restore_earlier_batches(producers, segments if sync else segments[-1:], at)\n",
                "",
            ),
            Edit(
                "client/ottla/client/core/sender.py",
                "            self._fail_maybe_written(queue)\n            sequence.begin(",
                "            sequence.begin(",
            ),
        ),
        faults=("roll",),
    ),
    Bug(
        "down-conversion-drops-key",
        "KIP-283 (down-conversion)",
        "records for old clients have no key if their batch is compressed",
        "no invention",
        (
            Edit(
                _DOWN_CONVERSION,
                "    by_broker = header.timestamp_type",
                "    if codec is not Codec.NONE:\n"
                "        records = [record._replace(key=None) for record in records]\n"
                "    by_broker = header.timestamp_type",
            ),
        ),
        ("old-formats",),
    ),
    Bug(
        "down-conversion-skips-a-record",
        "KIP-31, KIP-283 (the offset of a fetch within a converted batch)",
        "a fetch that begins within a batch does not get its first record in the old format",
        "same records",
        (
            Edit(
                _DOWN_CONVERSION,
                "if record.offset >= first_offset]",
                "if record.offset > first_offset]",
            ),
        ),
        ("old-formats",),
        faults=("resets", *CUTS),
    ),
    Bug(
        "quotas-not-loaded-at-start",
        "KIP-55 (quotas of users and clients after a restart)",
        "a broker that is started does not enforce the stored quotas until they change",
        "quotas hold",
        (
            Edit(
                "broker/ottla/metadata/dynamic_configs.py",
                "            for entity_type in QUOTA_TYPES:\n                for entity in await self.entities",
                "            for entity_type in (IPS,):\n                for entity in await self.entities",
            ),
        ),
        ("quotas",),
        faults=KILLS,
    ),
    Bug(
        "removed-quota-still-throttles",
        "KIP-55 (quotas that are removed at run time)",
        "a client that was limited before the removal of its quota stays limited",
        "quotas hold",
        (
            Edit(
                "broker/ottla/quotas/levels.py",
                "            sensor.limit = UNLIMITED if found is None else found\n",
                "            sensor.limit = sensor.limit if found is None else found\n",
            ),
        ),
        ("quotas",),
    ),
    Bug(
        "throttled-connection-not-muted",
        "KIP-219",
        "a broker tells a producer its throttle time and serves its next request at once",
        "quotas hold",
        (
            Edit(
                "broker/ottla/server/dispatch/throttling.py",
                "        connection.mute(wait_ms)\n",
                "",
            ),
        ),
        ("quotas",),
    ),
    Bug(
        "damaged-records-are-converted",
        "Ottla before 2026-11-27; KIP-283",
        "the conversion for old clients gives damaged records a valid checksum",
        "no invention",
        (
            Edit(
                _DOWN_CONVERSION,
                "    if crc32c(data[position + CRC_START : position + header.size]) != header.crc:\n",
                "    if False:\n",
            ),
        ),
        ("old-formats",),
        faults=("bit flip",),
    ),
    Bug(
        "producer-ids-handed-out-twice",
        "KIP-730 (blocks of producer ids after a failover of the controller)",
        "a controller hands out the last block of producer ids again",
        "unique producer ids",
        (
            Edit(
                "broker/ottla/metadata/producer_ids.py",
                "znodes.decode_producer_id_block(data)[2] + 1 if data else 0",
                "znodes.decode_producer_id_block(data)[1] if data else 0",
            ),
        ),
        faults=KILLS,
    ),
    Bug(
        "transaction-timeout-lost-at-failover",
        "KIP-98 (the state of a transactional id)",
        "a new coordinator does not restore the time-outs of transactions",
        "coordinator state",
        (
            Edit(
                "broker/ottla/coordinators/transactions/records.py",
                "        stored.transaction_timeout_ms,\n        state,\n",
                "        60_000,\n        state,\n",
            ),
        ),
        ("transactions",),
        faults=KILLS,
    ),
    Bug(
        "assignment-lost-at-failover",
        "KAFKA-4845 (groups at a failover of the coordinator)",
        "a new coordinator does not restore the assignments of members",
        "members own disjoint partitions",
        (
            Edit(
                "broker/ottla/coordinators/records.py",
                "            assignment=bytes(item.assignment),\n",
                "",
            ),
        ),
        ("groups",),
        faults=KILLS,
    ),
    Bug(
        "offset-index-not-truncated",
        "KIP-101 (indexes after a truncation)",
        "a truncation leaves the entries of the offset index after its end",
        "indexes",
        (
            Edit(
                "broker/ottla/storage/log_segment.py",
                "        self.offset_index.truncate_to(offset)\n",
                "",
            ),
        ),
        faults=KILLS,
    ),
    Bug(
        "time-index-not-truncated",
        "KIP-33 (time indexes after a truncation)",
        "a truncation leaves the entries of the time index after its end",
        "indexes",
        (
            Edit(
                "broker/ottla/storage/log_segment.py",
                "        self.time_index.truncate_to(offset)\n",
                "",
            ),
        ),
        faults=KILLS,
    ),
    Bug(
        "recovery-drops-the-last-batch",
        "KAFKA-10778 (recovery after a crash)",
        "the recovery of a log takes its last whole batch for a torn one",
        "recovery keeps records",
        (
            Edit(
                _LOADER,
                "magic != MAGIC_V2 or position + size > end:",
                "magic != MAGIC_V2 or position + size >= end:",
            ),
        ),
        faults=KILLS,
    ),
    Bug(
        "offset-tombstone-ignored",
        "KAFKA-4039 (tombstones when a coordinator loads)",
        "a new coordinator restores offsets that were removed",
        "coordinator state",
        (
            Edit(
                "broker/ottla/coordinators/replay.py",
                "                stored.pop(key, None)\n",
                "                pass\n",
            ),
        ),
        ("groups",),
        faults=KILLS,
    ),
    Bug(
        "interrupted-swap-is-dropped",
        "KAFKA-6264 (segments whose replacement was interrupted)",
        "a log that is opened drops cleaned segments whose swap had begun",
        "recovery keeps records",
        (
            Edit(
                _LOADER,
                "[name for name in swaps if cleaned and offsets[name] >= min(cleaned)]",
                "list(swaps)",
            ),
        ),
        ("compaction",),
        faults=("kill in a write",),
    ),
    Bug(
        "follower-keeps-its-log-start",
        "KIP-107 (the log start offset of followers)",
        "a follower does not take the leader's log start offset",
        "retention",
        (
            Edit(
                _PARTITION,
                "        if leader_log_start > log.log_start_offset:\n",
                "        if False:\n",
            ),
        ),
        ("retention",),
        faults=KILLS,
    ),
    Bug(
        "sequence-continues-after-epoch-bump",
        "KIP-360 (a new epoch of an idempotent producer)",
        "a producer with a new epoch does not begin with sequence 0",
        "liveness",
        (
            Edit(
                "client/ottla/client/core/sequences.py",
                "        self.next, self.last_acked = 0, NO_SEQUENCE\n        self.restarts",
                "        self.last_acked = NO_SEQUENCE\n        self.restarts",
            ),
        ),
        faults=CUTS,
    ),
    Bug(
        "retries-lose-their-order",
        "KAFKA-5494 (the order of batches that are sent again)",
        "a producer puts a batch that it sends again behind the next ones",
        "order",
        (
            Edit(
                "client/ottla/client/core/accumulator.py",
                "            queue.batches.insert(at, batch)\n",
                "            queue.batches.append(batch)\n",
            ),
        ),
        faults=("resets", "leader moves"),
    ),
    Bug(
        "position-moves-with-the-fetch",
        "KAFKA-1646 (positions of records that were not returned yet)",
        "a consumer commits the end of a fetched batch before it has returned the batch's records",
        "committed offsets",
        (
            Edit(
                "client/ottla/client/core/fetch_buffer.py",
                "            state.position = records[-1].offset + 1\n        else:\n",
                "            state.position = chunk.data.next_offset\n        else:\n",
            ),
        ),
        ("groups",),
        faults=("kill", "session"),
    ),
    Bug(
        "fetched-offsets-are-committed",
        "KAFKA-1646 (positions of records that were not returned yet)",
        "a consumer commits the offset up to which it has fetched",
        "nothing skipped",
        (
            Edit(
                "client/ottla/client/core/assigned.py",
                '            state.tp: OffsetAndMetadata(state.position, "", state.epoch)\n',
                '            state.tp: OffsetAndMetadata(state.fetch_offset, "", state.epoch)\n',
            ),
        ),
        ("groups",),
        faults=("kill", "session"),
    ),
    Bug(
        "unstable-offsets-are-served",
        "KIP-447 (offsets of transactions that are not complete)",
        "OffsetFetch returns the offset before a transaction that is committed and whose marker is not written",
        "stable offsets",
        (
            Edit(
                "broker/ottla/coordinators/offset_requests.py",
                "            elif require_stable and group.offsets.is_unstable(key):\n",
                "            elif False:\n",
            ),
        ),
        ("transactions",),
    ),
    Bug(
        "revoked-partitions-are-kept",
        "KIP-429 (partitions that a member revokes)",
        "a consumer goes on reading the partitions that it has revoked",
        "disjoint assignments",
        (
            Edit(
                "client/ottla/client/core/rebalancing.py",
                "        if change.revoked or change.lost:\n            self._assigned.assign(change.kept)\n",
                "        if change.lost:\n            self._assigned.assign(change.kept)\n",
            ),
        ),
        ("groups",),
        faults=("kill", "session"),
    ),
    Bug(
        "retention-beyond-the-high-watermark",
        "KAFKA-5634 (retention and replication)",
        "retention deletes segments whose records are not replicated yet",
        "offsets",
        (
            Edit(
                "broker/ottla/storage/retention.py",
                "        if high_watermark < upper or (at == len(segments) - 1 and segment.size == 0):\n",
                "        if at == len(segments) - 1 and segment.size == 0:\n",
            ),
        ),
        ("retention",),
    ),
)

BUGS: Final = {bug.name: bug for bug in _ALL}
"""By name, in the order of the table."""
