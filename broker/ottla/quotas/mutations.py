"""controller_mutation_rate: how many partitions a client may create and delete (KIP-599).

A token bucket for each client, user or pair: it fills with `limit` tokens a second up to what the windows
hold, each partition takes one, and nothing is let through while it is below zero. So one request may
overdraw it by any amount, and pays for that with the wait of the next. All as in Kafka 3.9.1 (a test asks
its classes).

A `MutationQuota` is one request's view: strict where the version of the API has an error for it
(THROTTLING_QUOTA_EXCEEDED), otherwise permissive, which counts and lets everything pass.
"""

from __future__ import annotations

import math

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.quotas.levels import Levels
from ottla.quotas.rates import Windows


class TokenBucket:
    """Starts full. `limit` is in tokens per second and may change at any time."""

    __slots__ = ("_refilled_ms", "_tokens", "_window_s", "limit", "used_ms")

    def __init__(self, windows: Windows, limit: float) -> None:
        self.limit = limit
        self.used_ms = 0
        self._window_s = windows.samples * windows.window_ms / 1000
        self._tokens = 0.0
        self._refilled_ms = 0

    def tokens(self, now_ms: int) -> float:
        """What is in it; below zero when it is overdrawn."""
        self._refill(now_ms)
        return self._tokens

    def take(self, tokens: float, now_ms: int) -> None:
        self._refill(now_ms)
        self._tokens = min(self._burst, self._tokens - tokens)

    def throttle_ms(self, now_ms: int) -> int:
        """How long until it is at zero again; 0 if it is not below."""
        tokens = self.tokens(now_ms)
        if tokens >= 0:
            return 0
        if self.limit == 0:
            return 2**63 - 1
        return min(math.floor(-tokens / self.limit * 1000 + 0.5), 2**63 - 1)

    @property
    def _burst(self) -> float:
        return self._window_s * self.limit

    def _refill(self, now_ms: int) -> None:
        elapsed_s = (now_ms - self._refilled_ms) / 1000
        self._tokens = min(self._burst, self._tokens + self.limit * elapsed_s)
        self._refilled_ms = now_ms


class MutationQuota:
    """What one request may change. Made by `MutationQuotas.of`."""

    def __init__(self, bucket: TokenBucket | None, *, strict: bool) -> None:
        self._bucket = bucket
        self._strict = strict
        self._throttle_ms = 0
        self._at_ms = 0

    def record(self, partitions: int, now_ms: int) -> None:
        """Count partitions that are about to be created or deleted. Raises KafkaError
        (THROTTLING_QUOTA_EXCEEDED), with nothing counted, when a strict quota is used up."""
        bucket = self._bucket
        if bucket is None:
            return
        if self._strict:
            wait_ms = bucket.throttle_ms(now_ms)
            if wait_ms:
                self._note(wait_ms, now_ms)
                raise KafkaError(
                    ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.THROTTLING_QUOTA_EXCEEDED.message
                )
            bucket.take(partitions, now_ms)
        else:
            bucket.take(partitions, now_ms)
            wait_ms = bucket.throttle_ms(now_ms)
            if wait_ms:
                self._note(wait_ms, now_ms)

    def _note(self, wait_ms: int, now_ms: int) -> None:
        self._throttle_ms, self._at_ms = wait_ms, now_ms

    def throttle_ms(self, now_ms: int) -> int:
        """How long the client is to wait from now on; the answer may come long after the counting."""
        low = max(0, self._throttle_ms - (now_ms - self._at_ms)) & 0xFFFFFFFF
        return low if low < 2**31 else 0  # Kafka keeps 32 bits: a limit of 0 makes nobody wait


UNBOUNDED = MutationQuota(None, strict=False)


class MutationQuotas(Levels[TokenBucket]):
    """The buckets of all clients."""

    def __init__(self, windows: Windows) -> None:
        super().__init__()
        self._windows = windows

    def make_sensor(self, limit: float) -> TokenBucket:
        return TokenBucket(self._windows, limit)

    def of(self, user: str, client_id: str | None, now_ms: int, *, strict: bool) -> MutationQuota:
        """The quota of one request."""
        if not self.enabled:
            return UNBOUNDED
        return MutationQuota(self.sensor(user, client_id, now_ms), strict=strict)
