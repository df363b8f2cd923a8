"""controller_mutation_rate: the rate at which a client may create and delete partitions (KIP-599).

Each client, user or pair has a token bucket: it fills with `limit` tokens per second up to the capacity of
the windows, each partition takes one, and requests are rejected while it is below zero. So one request may
overdraw it by any amount; the next ones wait. All behaviour is that of Kafka 3.9.1; a test compares it with
Kafka's classes.

A `ControllerMutationQuota` is one request's view: strict where the version of the API has an error for it
(THROTTLING_QUOTA_EXCEEDED), otherwise permissive: it records everything and rejects nothing.
"""

from __future__ import annotations

import math

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.quotas.levels import QuotaSensors
from ottla.quotas.rates import Windows


class TokenBucket:
    """A token bucket, full at first. `limit` is in tokens per second and may change at any time."""

    __slots__ = ("_refilled_ms", "_tokens", "_window_s", "limit", "used_ms")

    def __init__(self, windows: Windows, limit: float) -> None:
        self.limit = limit
        self.used_ms = 0
        self._window_s = windows.samples * windows.window_ms / 1000
        self._tokens = 0.0
        self._refilled_ms = 0

    def tokens(self, now_ms: int) -> float:
        """The number of tokens; below zero when overdrawn."""
        self._refill(now_ms)
        return self._tokens

    def take(self, tokens: float, now_ms: int) -> None:
        self._refill(now_ms)
        self._tokens = min(self._burst, self._tokens - tokens)

    def throttle_ms(self, now_ms: int) -> int:
        """The time until the number of tokens is zero again; 0 if it is not below."""
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


class ControllerMutationQuota:
    """What one request may change. Made by `ControllerMutationQuotas.of`."""

    def __init__(self, bucket: TokenBucket | None, *, strict: bool) -> None:
        self._bucket = bucket
        self._strict = strict
        self._throttle_ms = 0
        self._at_ms = 0

    def record(self, partitions: int, now_ms: int) -> None:
        """Record partitions that are about to be created or deleted. Raises KafkaError
        (THROTTLING_QUOTA_EXCEEDED), with nothing recorded, if a strict quota is exceeded."""
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
        """The remaining throttle time; the response may be sent long after `record`."""
        low = max(0, self._throttle_ms - (now_ms - self._at_ms)) & 0xFFFFFFFF
        return low if low < 2**31 else 0  # Kafka keeps 32 bits: a limit of 0 does not throttle


UNBOUNDED = ControllerMutationQuota(None, strict=False)


class ControllerMutationQuotas(QuotaSensors[TokenBucket]):
    """The buckets of all clients."""

    def __init__(self, windows: Windows) -> None:
        super().__init__()
        self._windows = windows

    def make_sensor(self, limit: float) -> TokenBucket:
        return TokenBucket(self._windows, limit)

    def of(self, user: str, client_id: str | None, now_ms: int, *, strict: bool) -> ControllerMutationQuota:
        """The quota of one request."""
        if not self.enabled:
            return UNBOUNDED
        return ControllerMutationQuota(self.sensor(user, client_id, now_ms), strict=strict)
