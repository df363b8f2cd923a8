"""Telling whoever awaits something what came of it. Called all over the client."""

from __future__ import annotations

import asyncio
from typing import Any


def resolve(future: asyncio.Future[Any], outcome: Any = None) -> None:
    """End a future with a result, or with the exception that `outcome` is; nothing if it has ended already,
    as one that nobody awaits any more has."""
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
