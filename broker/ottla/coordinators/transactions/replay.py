"""From a partition of `__transaction_state` back to the transactions it holds.

Called when this broker becomes the partition's leader. Later records win; a tombstone removes.
"""

from __future__ import annotations

import logging

from ottla.coordinators.transactions import records
from ottla.coordinators.transactions.transaction import Transaction
from ottla.protocol.errors import ProtocolError
from ottla.protocol.records import BatchHeader, Record, decode_batch

logger = logging.getLogger(__name__)


class Replay:
    def __init__(self) -> None:
        self.transactions: dict[str, Transaction] = {}
        self.record_count = 0

    def apply_batch(self, buffer: bytes | memoryview, position: int, header: BatchHeader) -> None:
        if header.is_control:
            return
        batch = decode_batch(buffer, position)
        self.record_count += len(batch)
        for record in batch:
            try:
                self._apply(record)
            except ProtocolError as problem:
                logger.error("offset %d of __transaction_state is skipped: %s", record.offset, problem)

    def _apply(self, record: Record) -> None:
        transactional_id = None if record.key is None else records.parse_key(record.key)
        if transactional_id is None:
            logger.warning("offset %d of __transaction_state: an unknown kind of record", record.offset)
        elif record.value is None:
            self.transactions.pop(transactional_id, None)
        else:
            entry = records.parse_value(record.value)
            self.transactions[transactional_id] = Transaction(transactional_id, entry)
