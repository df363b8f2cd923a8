"""Blocks of producer ids from /latest_producer_id_block, shared by all brokers of the cluster.

Called by whoever serves InitProducerId. Invariant: no two blocks overlap, whoever allocates them, because
each is taken by a conditional write over the one before.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import NamedTuple

from ottla.metadata import znodes
from ottla.metadata.store import BadVersion, MetadataStore, NodeExists

BLOCK_SIZE = 1000
_LAST_ID_MAX = 2**63 - 1


class ProducerIdBlock(NamedTuple):
    first: int
    size: int


class ProducerIdsExhausted(Exception):
    """All 2^63 producer ids have been given out."""


async def allocate_block(store: MetadataStore, broker_id: int) -> ProducerIdBlock:
    """Take the next block of ids. Raises ProducerIdsExhausted, StoreUnavailable (ids may be lost then)."""
    while True:
        found = await store.get(znodes.PRODUCER_ID_BLOCK)
        if found is None:
            with contextlib.suppress(NodeExists):
                await store.create(znodes.PRODUCER_ID_BLOCK, make_parents=True)
            continue
        data, stat = found
        first = znodes.decode_producer_id_block(data)[2] + 1 if data else 0
        last = first + BLOCK_SIZE - 1
        if last > _LAST_ID_MAX:
            raise ProducerIdsExhausted
        block = znodes.encode_producer_id_block(broker_id, first, last)
        try:
            await store.set(znodes.PRODUCER_ID_BLOCK, block, stat.version)
        except BadVersion:
            continue  # another broker was faster
        return ProducerIdBlock(first, BLOCK_SIZE)


class ProducerIds:
    """Hands out single ids of this broker's block, and takes a new block when it is used up."""

    def __init__(self, store: MetadataStore, broker_id: int) -> None:
        self._store = store
        self._broker_id = broker_id
        self._next = 0
        self._end = 0
        self._refilling = asyncio.Lock()

    async def next(self) -> int:
        """Raises ProducerIdsExhausted, StoreUnavailable."""
        if self._next >= self._end:
            async with self._refilling:
                if self._next >= self._end:  # another caller may have brought a block meanwhile
                    first, size = await allocate_block(self._store, self._broker_id)
                    self._next, self._end = first, first + size
                self._next += 1
                return self._next - 1
        self._next += 1
        return self._next - 1
