"""Operations of the metadata store that are issued without waiting for one another."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from ottla.metadata.store import StoreUnavailable, pipelined


def test_failures_of_operations_whose_caller_was_cancelled_are_not_reported() -> None:
    reported: list[dict[str, Any]] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        operations: list[asyncio.Future[None]] = []

        def issue(_: int) -> asyncio.Future[None]:
            operations.append(loop.create_future())
            return operations[-1]

        caller = asyncio.ensure_future(pipelined(issue, range(2)))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait([caller])
        for operation in operations:
            operation.set_exception(StoreUnavailable("connection lost"))
        await asyncio.sleep(0)
        operations.clear()
        del operation
        gc.collect()

    asyncio.run(scenario())
    assert not reported
