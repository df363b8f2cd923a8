"""Completes futures. Called by the client and the connections."""

from __future__ import annotations

import asyncio
from typing import Any


def resolve(future: asyncio.Future[Any], outcome: Any = None) -> None:
    """Complete a future with a result, or with the exception if `outcome` is one; does nothing if the future
    is done, e.g. cancelled."""
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
