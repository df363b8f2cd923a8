"""How much memory something takes. Called by the tests of what a hostile client cannot make us take."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any


def peak_of(action: Callable[[], Any]) -> int:
    """Bytes of memory that `action` takes at most: the least of three times, since what other threads of this
    process (a client that an earlier test left to itself) take meanwhile is counted, too."""
    peaks = []
    for _ in range(3):
        tracemalloc.start()
        try:
            action()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return min(peaks)
