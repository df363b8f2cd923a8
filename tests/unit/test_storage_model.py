"""A log against a list: whatever is appended, truncated, rolled, reopened, both tell the same."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ottla.protocol.compression import Codec
from ottla.protocol.records import decode_records
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from tests.worlds.storage_logs import NOW_MS, batch, contents, open_log

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=64)


class LogMachine(RuleBasedStateMachine):
    """The model is a list of batches, each (first offset, values)."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="ottla-model-"))
        self.log: Log = open_log(self.directory, CONFIG)
        self.model: list[tuple[int, list[str]]] = []
        self.end = 0
        self.start = 0
        self.counter = 0

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    @rule(
        count=st.integers(1, 5), codec=st.sampled_from([Codec.NONE, Codec.LZ4]), epoch_step=st.integers(0, 1)
    )
    def append(self, count: int, codec: Codec, epoch_step: int) -> None:
        values = [f"value {self.counter + at}" for at in range(count)]
        self.counter += count
        epoch = (self.log.latest_epoch or 0) + epoch_step
        info = self.log.append_as_leader(
            batch(*values, codec=codec, timestamp=NOW_MS + self.counter), leader_epoch=epoch, now_ms=NOW_MS
        )
        assert (info.first_offset, info.last_offset) == (self.end, self.end + count - 1)
        assert self.log.latest_epoch == epoch
        self.model.append((self.end, values))
        self.end += count

    @rule(back=st.integers(0, 30))
    def truncate(self, back: int) -> None:
        offset = max(self.end - back, 0)
        is_kept = offset >= self.log.segments[0].base_offset
        self.log.truncate_to(offset)
        if offset < self.end:
            cut = [first for first, values in self.model if first < offset < first + len(values)]
            self.model = [(first, values) for first, values in self.model if first + len(values) <= offset]
            self.end = max(cut[0], min(self.start, offset)) if cut and is_kept else offset
            self.start = min(self.start, offset)

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW_MS)

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        offset = self.start + int((self.end - self.start) * share)
        self.log.maybe_increment_log_start_offset(offset)
        self.start = max(self.start, offset)
        self.log.delete_old_segments(now_ms=NOW_MS, high_watermark=self.end)

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        if clean:
            self.log.close(NOW_MS)
        end_before = self.log.log_end_offset
        self.log = open_log(self.directory, CONFIG, clean=clean, log_start_offset=self.start)
        # The log may end after the last batch: where an emptied log has begun again.
        assert self.log.log_end_offset <= end_before
        self.end = self.log.log_end_offset
        self.start = self.log.log_start_offset

    @rule(bound=st.floats(0, 1), at=st.floats(0, 1), size=st.integers(0, 900))
    def read(self, bound: float, at: float, size: int) -> None:
        up_to = self.start + int((self.end - self.start) * bound)
        offset = self.start + int((up_to - self.start) * at)
        read = self.log.read(offset, size, up_to=up_to)
        found = [record.offset for record in decode_records(read.to_bytes())]
        expected = [
            first
            for first, values in self.model
            if first + len(values) > offset and first + len(values) <= up_to
        ]
        if expected:
            assert found
            assert found[0] == expected[0]
        assert all(each < up_to for each in found)

    @invariant()
    def contents_are_the_same(self) -> None:
        expected = [
            (first + at, value)
            for first, values in self.model
            for at, value in enumerate(values)
            if first + at >= self.start
        ]
        assert contents(self.log) == expected
        assert self.log.log_end_offset == self.end
        assert self.log.log_start_offset == self.start


TestLogAgainstAList = LogMachine.TestCase
TestLogAgainstAList.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
