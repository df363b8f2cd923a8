"""How long to wait before something is tried again (KIP-580, KIP-144)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

BASE: Final = 2
JITTER: Final = 0.2

Uniform = Callable[[float, float], float]
"""`uniform` of a `random.Random`, or what a test has in its place."""


def backoff_s(attempt: int, initial_ms: float, max_ms: float, uniform: Uniform) -> float:
    """Seconds to wait after failure number `attempt`, counted from 0: doubling, with a fifth of jitter."""
    initial_ms = min(initial_ms, max_ms)
    if initial_ms <= 0:
        return 0.0
    grown_ms = max_ms if attempt > 60 else min(initial_ms * BASE**attempt, max_ms)
    jittered_ms = grown_ms * uniform(1 - JITTER, 1 + JITTER)
    return min(jittered_ms, max_ms) / 1000
