"""Producer ids (ProducerIdManager): allocation of blocks by the controller, and generation by each broker.

`allocate_block` is called by the controller (KIP-730), `ProducerIds` by the handlers of InitProducerId.
Invariant: blocks never overlap, also with brokers before 3.0, which write the node themselves, because each
allocation is a conditional write of the node.
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
"""The used part of a block at which the next block is requested."""
_LAST_ID_MAX: Final = 2**63 - 1


class ProducerIdBlock(NamedTuple):
    first: int
    size: int


class ProducerIdsExhausted(Exception):
    """All 2^63 producer ids are allocated."""


class NoBlock(Exception):
    """The controller returned no block; a retry may succeed."""


async def allocate_block(
    store: MetadataStore, broker_id: int, *, checks: Sequence[Operation] = ()
) -> ProducerIdBlock:
    """Allocate the next block of ids, in one multi with `checks`.

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
                continue  # another broker allocated this block
            raise
        return ProducerIdBlock(first, BLOCK_SIZE)


class ProducerIds:
    """Generates ids of this broker's block, and requests the next block before it is needed.

    `request` requests a block from the controller, or raises.
    """

    def __init__(self, request: Callable[[], Awaitable[ProducerIdBlock]]) -> None:
        self._request_from_controller = request
        self._block = ProducerIdBlock(0, 0)
        self._next = 0
        self._next_block: ProducerIdBlock | None = None
        self._request: asyncio.Task[bool] | None = None

    async def stop(self) -> None:
        if self._request is not None:
            self._request.cancel()
            await asyncio.gather(self._request, return_exceptions=True)

    async def next(self, timeout_s: float) -> int:
        """The next id. Raises NoBlock if the block is used up and no new one arrives within the timeout."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while self._next >= self._block.first + self._block.size:
            if self._next_block is not None:
                self._block, self._next_block = self._next_block, None
                self._next = self._block.first
                break
            await self._wait_for_block(deadline_s)
        given = self._next
        self._next += 1
        if given >= self._block.first + int(self._block.size * PREFETCH_AT) and self._next_block is None:
            self._request_block()
        return given

    def _request_block(self) -> asyncio.Task[bool]:
        if self._request is None or self._request.done():
            self._request = asyncio.ensure_future(self._fetch_block())
        return self._request

    async def _fetch_block(self) -> bool:
        """Request the next block; False if there is none."""
        try:
            block = await self._request_from_controller()
        except Exception as error:
            log.warning(
                "Had an error while allocating a producer id block: %s", error or type(error).__name__
            )
            return False
        if block.size <= 0 or block.first < self._block.first + self._block.size:
            log.error("The controller's producer id block precedes the previous one: %s", block)
            return False
        self._next_block = block
        return True

    async def _wait_for_block(self, deadline_s: float) -> None:
        request = self._request_block()
        remaining_s = deadline_s - asyncio.get_running_loop().time()
        # Several requests wait for the same block: a timeout of one must not cancel the task.
        await asyncio.wait([request], timeout=max(0.0, remaining_s))
        if not request.done() or request.cancelled() or not request.result():
            raise NoBlock
