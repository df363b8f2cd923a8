"""Tracks the transactions of a log while it is cleaned: which records were aborted, and which markers can be
removed (KIP-98; Kafka's CleanedTransactionMetadata).

Used by `cleaner`, once for the offset map and once for the segments. Nothing after the last stable offset is
cleaned, so that every transaction is decided, and the transaction indexes list the aborted ones in advance.

Invariant: a marker is removed only if no batch of its transaction precedes it in the log: consumers that read
records of a transaction also read its end.
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


class CleanedTransactionMetadata:
    """See the module. `on_abort_kept` is called with every aborted transaction whose marker stays."""

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
        """The producers of ongoing aborted transactions with a batch before."""
        self._ongoing_committed: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether this data batch belongs to an aborted transaction."""
        self._begin_up_to(header.last_offset)
        if not header.attributes & TRANSACTIONAL_FLAG:
            return False
        if header.producer_id in self._ongoing_aborted:
            self._seen.add(header.producer_id)
            return True
        self._ongoing_committed.add(header.producer_id)
        return False

    def can_discard_marker(self, header: BatchHeader, batch: memoryview) -> bool:
        """Whether this marker's transaction has no batch in the log."""
        self._begin_up_to(header.last_offset)
        if not header.record_count:
            return True  # emptied by an earlier cleaning; kept for its producer
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
