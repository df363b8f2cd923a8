"""Restores transactions from a partition of `__transaction_state`.

Called when this broker becomes the partition's leader. Later records win; a tombstone removes.
"""

from __future__ import annotations

import logging

from ottla.coordinators.transactions import records
from ottla.coordinators.transactions.transaction import Transaction
from ottla.protocol.errors import ProtocolError
from ottla.protocol.records import BatchHeader, Record, decode_batch

logger = logging.getLogger(__name__)


class TransactionReplay:
    """Call `apply_batch` with every batch in order, then read `transactions`."""

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
                logger.error("Skipping offset %d of __transaction_state: %s", record.offset, problem)

    def _apply(self, record: Record) -> None:
        transactional_id = None if record.key is None else records.parse_key(record.key)
        if transactional_id is None:
            logger.warning("Unknown record type at offset %d of __transaction_state", record.offset)
        elif record.value is None:
            self.transactions.pop(transactional_id, None)
        else:
            entry = records.parse_value(record.value)
            self.transactions[transactional_id] = Transaction(transactional_id, entry)
