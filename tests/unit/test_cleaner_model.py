"""Whatever is appended, rolled, cleaned and recovered: who reads the log finds the state that was written."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.protocol.compression import Codec
from ottla.protocol.records import ControlType, decode_batch, iter_batches, parse_control_record
from ottla.storage.cleaner.planning import log_to_clean
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from tests.worlds.cleaner_logs import NOW_MS, batches, clean, end_transaction, in_memory_path, open_log, put

RETENTION_MS = 1000
PRODUCERS = (3, 4)

keys = st.sampled_from([f"key-{number}" for number in range(3)])
contents = st.one_of(st.none(), st.text("abc", max_size=12))
pairs = st.lists(st.tuples(keys, contents), min_size=1, max_size=3)


def committed(log: Log) -> list[tuple[int, str, str | None]]:
    """What a read_committed consumer reads: it is told of the aborted transactions, and sees the markers."""
    aborted = sorted(
        log.collect_aborted_transactions(log.log_start_offset, log.log_end_offset),
        key=lambda each: each.first_offset,
    )
    stable = log.last_stable_offset(log.log_end_offset)
    skipped: set[int] = set()
    found = []
    for batch in batches(log):
        _, header = next(iter_batches(batch))
        if header.base_offset >= stable:
            break
        while aborted and aborted[0].first_offset <= header.last_offset:
            skipped.add(aborted.pop(0).producer_id)
        if header.is_control:
            if header.record_count:
                marker = parse_control_record(decode_batch(batch)[0])
                if marker.type == ControlType.ABORT:
                    skipped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in skipped):
            found += [
                (r.offset, (r.key or b"").decode(), None if r.value is None else r.value.decode())
                for r in decode_batch(batch)
            ]
    return found


class Compaction(RuleBasedStateMachine):
    """`written` is all that was committed, `open` what is not decided yet."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="ottla-compaction-", dir=in_memory_path()))
        self.now_ms = NOW_MS
        self.written: dict[int, tuple[str, str | None]] = {}
        self.open: dict[int, dict[int, tuple[str, str | None]]] = {}

    @initialize(segment_bytes=st.sampled_from([200, 500, 2000]))
    def begin(self, segment_bytes: int) -> None:
        self.config = LogConfig(
            cleanup_policy="compact",
            segment_bytes=segment_bytes,
            index_interval_bytes=100,
            delete_retention_ms=RETENTION_MS,
        )
        self.log = open_log(self.root, self.config)

    @rule(pairs=pairs, codec=st.sampled_from(list(Codec)))
    def append(self, pairs: list[tuple[str, str | None]], codec: Codec) -> None:
        first = put(self.log, *pairs, codec=codec)
        self.written.update({first + at: pair for at, pair in enumerate(pairs)})

    @rule(pairs=pairs, producer=st.sampled_from(PRODUCERS), codec=st.sampled_from(list(Codec)))
    def append_in_a_transaction(
        self, pairs: list[tuple[str, str | None]], producer: int, codec: Codec
    ) -> None:
        first = put(self.log, *pairs, producer=(producer, 0), transactional=True, codec=codec)
        self.open.setdefault(producer, {}).update({first + at: pair for at, pair in enumerate(pairs)})

    @precondition(lambda self: bool(self.open))
    @rule(commit=st.booleans(), data=st.data())
    def end(self, commit: bool, data: st.DataObject) -> None:
        producer = data.draw(st.sampled_from(sorted(self.open)))
        end_transaction(self.log, (producer, 0), commit=commit)
        pending = self.open.pop(producer)
        if commit:
            self.written.update(pending)

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now_ms)

    @rule()
    def roll_and_clean(self) -> None:
        self.log.roll(self.now_ms)
        self.clean(100)

    @rule(ms=st.sampled_from([1, RETENTION_MS // 2, RETENTION_MS]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(map_entries=st.sampled_from([3, 5]))
    def clean_with_little_memory(self, map_entries: int) -> None:
        self.clean(map_entries)

    def clean(self, map_entries: int) -> None:
        log = self.log
        dirt = log_to_clean(log, log.last_stable_offset(log.log_end_offset), self.now_ms)
        if not dirt.cleanable_bytes:
            return
        end_offset = log.log_end_offset
        clean(log, now_ms=self.now_ms, map_entries=map_entries, upper_bound=dirt.first_uncleanable)
        assert log.first_dirty_offset is not None
        assert dirt.first_dirty < log.first_dirty_offset <= dirt.first_uncleanable
        assert log.log_end_offset == end_offset
        if dirt.first_dirty <= log.log_start_offset:
            kept = [key for offset, key, _ in committed(log) if offset < log.first_dirty_offset]
            assert len(kept) == len(set(kept)), "all was dirty: each key is left once"

    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        before = self._producers()
        dirty = self.log.first_dirty_offset
        if not crash:
            self.log.close(self.now_ms)
        else:
            for index in self.log.directory.glob("*index"):
                index.unlink()
            for snapshot in self.log.directory.glob("*.snapshot"):
                snapshot.unlink()
        self.log = open_log(self.root, self.config, clean=not crash)
        self.log.first_dirty_offset = dirty
        assert self._producers() == before

    def _producers(self) -> dict[int, tuple[int, int, bool]]:
        """Those that are left to be known; one is lost with its last trace, which is a marker's."""
        return {
            producer_id: (entry.epoch, entry.last_sequence, entry.transaction_start is not None)
            for producer_id, entry in self.log.producers.all().items()
        }

    @invariant()
    def a_reader_comes_to_the_same_state(self) -> None:
        if not hasattr(self, "log"):
            return
        stable = self.log.last_stable_offset(self.log.log_end_offset)
        found = committed(self.log)
        for offset, key, value in found:
            assert self.written[offset] == (key, value)
        offsets = [offset for offset, _, _ in found]
        assert offsets == sorted(set(offsets))
        state = {key: (offset, value) for offset, key, value in found}
        expected = {
            key: (offset, value) for offset, (key, value) in sorted(self.written.items()) if offset < stable
        }
        for key, (offset, value) in expected.items():
            if value is not None or key in state:
                assert state[key] == (offset, value)
        assert state.keys() <= expected.keys()

    def teardown(self) -> None:
        shutil.rmtree(self.root)


TestCompaction = pytest.mark.budget(3)(Compaction.TestCase)  # 100 runs of 40 steps
TestCompaction.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
