"""What a pass over a log knows of the transactions that it meets (KIP-98): which records were aborted, and
when a marker may go.

Used by `rewrite`, once for the offset map and once for the segments. Nothing beyond the last stable offset is
cleaned, so every transaction is decided, and the transaction indexes name the aborted ones ahead of time.

Invariant: a marker goes only when no batch of its transaction was met before it, in this pass over the whole
log: a reader that still finds records of a transaction finds its end, too.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from ottla.protocol.records import (
    TRANSACTIONAL_FLAG,
    BatchHeader,
    ControlType,
    decode_batch,
    parse_control_record,
)
from ottla.storage.transaction_index import AbortedTransaction


class CleanedTransactions:
    """See the module. `on_abort_kept` is told of every aborted transaction whose marker stays."""

    def __init__(
        self,
        aborted: Iterable[AbortedTransaction],
        on_abort_kept: Callable[[AbortedTransaction], None] | None = None,
    ) -> None:
        self._ahead = [(each.first_offset, each.producer_id, each) for each in aborted]
        heapq.heapify(self._ahead)
        self._on_abort_kept = on_abort_kept
        self._ongoing_aborted: dict[int, AbortedTransaction] = {}
        self._seen: set[int] = set()
        """Producers of ongoing aborted transactions of which a batch was met."""
        self._ongoing_committed: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether this batch of data belongs to a transaction that was aborted."""
        self._begin_up_to(header.last_offset)
        if not header.attributes & TRANSACTIONAL_FLAG:
            return False
        if header.producer_id in self._ongoing_aborted:
            self._seen.add(header.producer_id)
            return True
        self._ongoing_committed.add(header.producer_id)
        return False

    def may_go(self, header: BatchHeader, batch: memoryview) -> bool:
        """Whether this marker ends nothing that is still there."""
        self._begin_up_to(header.last_offset)
        if not header.record_count:
            return True  # cleaned before, and kept for its producer's sake
        producer_id = header.producer_id
        match parse_control_record(decode_batch(batch)[0]).type:
            case ControlType.ABORT:
                aborted = self._ongoing_aborted.pop(producer_id, None)
                if aborted is None or producer_id not in self._seen:
                    return True
                self._seen.discard(producer_id)
                if self._on_abort_kept is not None:
                    self._on_abort_kept(aborted)
                return False
            case ControlType.COMMIT:
                if producer_id not in self._ongoing_committed:
                    return True
                self._ongoing_committed.discard(producer_id)
                return False
        return False

    def _begin_up_to(self, offset: int) -> None:
        while self._ahead and self._ahead[0][0] <= offset:
            _, producer_id, aborted = heapq.heappop(self._ahead)
            self._ongoing_aborted.setdefault(producer_id, aborted)
