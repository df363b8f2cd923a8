"""Transactions: the half of `Producer` that is about them (KIP-98, KIP-447)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Self

from ottla.client.core.transaction_state import Done, State
from ottla.client.core.transactions import Transactions
from ottla.client.core.types import GroupMetadata, OffsetToCommit, TopicPartition
from ottla.client.errors import IllegalStateError, RequestTimedOutError
from ottla.client.producer_runtime import ProducerParts
from ottla.wire.futures import resolve


class ProducerTransactions(ProducerParts):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """All that is sent within counts at once, or not at all: committed at the end, aborted when an
        exception leaves the block. Raises what `commit_transaction` does."""
        self.begin_transaction()
        try:
            yield self
        except BaseException:
            await self.abort_if_possible()
            raise
        try:
            await self.commit_transaction()
        except BaseException:
            await self.abort_if_possible()
            raise

    def begin_transaction(self) -> None:
        """Raises IllegalStateError, or ProducerFencedError when another producer has the transactional id."""
        self._transactions().begin()

    async def commit_transaction(self) -> None:
        """Deliver all that was sent and commit. Raises what made it impossible: then the transaction has to
        be aborted. RequestTimedOutError says that the outcome is not known yet: call it again."""
        await self._call(self._transactions().commit, "the commit", "txn-commit")

    async def abort_transaction(self) -> None:
        """Records that were not sent yet fail with TransactionAbortedError."""
        await self._call(self._transactions().abort, "the abort", "txn-abort")

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetToCommit | int],
        group: GroupMetadata | str,
    ) -> None:
        """Commit a group's offsets (the next to be read) with the transaction (KIP-447). `group`: what
        `Consumer.group_metadata()` gives, by which a member that was fenced is found out; or a group's id."""
        transactions = self._transactions()
        who = GroupMetadata(group) if isinstance(group, str) else group
        given = {
            TopicPartition(*tp): OffsetToCommit(to) if isinstance(to, int) else to
            for tp, to in offsets.items()
        }
        await self._call(
            lambda done: transactions.send_offsets(given, who, done),
            "the group's coordinator",
            "txn-send-offsets",
        )

    def _transactions(self) -> Transactions:
        transactions = self._running().transactions
        if transactions is None or not self._transactional:
            raise IllegalStateError("transactional.id is not set")
        return transactions

    async def abort_if_possible(self) -> None:
        """End a transaction that is open or has failed; without effect when there is none."""
        transactions = self._transactions()
        if transactions.state is State.FATAL_ERROR:
            return
        if transactions.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR, State.ABORTING):
            await self.abort_transaction()

    async def _call(self, begin: Callable[[Done], None], what: str, counted: str) -> None:
        """Begin something and await its end, for max.block.ms."""
        runtime = self._running()
        ended: asyncio.Future[None] = runtime.loop.create_future()
        begin(partial(resolve, ended))
        runtime.network_loop.wake()
        try:
            with runtime.waiting(counted):
                async with asyncio.timeout(self._max_block_s):
                    await ended
        except TimeoutError:
            told = f"waited {self._max_block_s:g} s (max.block.ms) for {what}"
            raise RequestTimedOutError(told) from None
