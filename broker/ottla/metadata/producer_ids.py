"""Producer ids: the controller's blocks, and what a broker gives out of its own.

`allocate_block` is called by the controller (KIP-730), `ProducerIds` by whoever serves InitProducerId.
Invariant: no two blocks overlap, whoever allocates them (brokers of before 3.0 write the node themselves),
because each is taken by a conditional write over the one before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from ottla.metadata import znodes
from ottla.metadata.store import BadVersion, MetadataStore, NodeExists, Operation, SetData, StoreConflict

log = logging.getLogger(__name__)

BLOCK_SIZE: Final = 1000
PREFETCH_AT: Final = 0.9
"""Which part of a block is used up when the next is asked for."""
_LAST_ID_MAX: Final = 2**63 - 1


class ProducerIdBlock(NamedTuple):
    first: int
    size: int


class ProducerIdsExhausted(Exception):
    """All 2^63 producer ids have been given out."""


class NoBlock(Exception):
    """The controller has given no block; asking again may help."""


async def allocate_block(
    store: MetadataStore, broker_id: int, *, checks: Sequence[Operation] = ()
) -> ProducerIdBlock:
    """Take the next block of ids, in one multi with `checks`.

    Raises ProducerIdsExhausted, StoreConflict when a check fails, StoreUnavailable (ids may be lost then).
    """
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
        taken = SetData(znodes.PRODUCER_ID_BLOCK, block, stat.version)
        try:
            await store.multi([*checks, taken])
        except StoreConflict as conflict:
            if conflict.failed is taken and isinstance(conflict.cause, BadVersion):
                continue  # another broker was faster
            raise
        return ProducerIdBlock(first, BLOCK_SIZE)


class ProducerIds:
    """Hands out single ids of this broker's block. The next one is asked for before it is needed.

    `ask` brings a block from the controller, or raises.
    """

    def __init__(self, ask: Callable[[], Awaitable[ProducerIdBlock]]) -> None:
        self._ask = ask
        self._block = ProducerIdBlock(0, 0)
        self._next = 0
        self._following: ProducerIdBlock | None = None
        self._asking: asyncio.Task[bool] | None = None

    async def next(self, timeout_s: float) -> int:
        """Raises NoBlock when this broker is out of ids, and the controller brings none in time."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while self._next >= self._block.first + self._block.size:
            if self._following is not None:
                self._block, self._following = self._following, None
                self._next = self._block.first
                break
            await self._wait_for_block(deadline_s)
        given = self._next
        self._next += 1
        if given >= self._block.first + int(self._block.size * PREFETCH_AT) and self._following is None:
            self._start_asking()
        return given

    def _start_asking(self) -> asyncio.Task[bool]:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._bring())
        return self._asking

    async def _bring(self) -> bool:
        """Get the next block. Whether there is one."""
        try:
            block = await self._ask()
        except Exception as error:
            log.warning("the controller gives no producer ids: %s", error or type(error).__name__)
            return False
        if block.size <= 0 or block.first < self._block.first + self._block.size:
            log.error("the controller's block of producer ids comes before the last: %s", block)
            return False
        self._following = block
        return True

    async def _wait_for_block(self, deadline_s: float) -> None:
        asking = self._start_asking()
        remaining_s = deadline_s - asyncio.get_running_loop().time()
        # Others wait for the same block: whoever gives up leaves it asked for.
        await asyncio.wait([asking], timeout=max(0.0, remaining_s))
        if not asking.done() or not asking.result():
            raise NoBlock
