"""Counts requests against client quotas, and throttles clients (KIP-124, KIP-219, KIP-599).

Called when a response is ready: by the produce and fetch handlers (bytes), by those of topics (mutations),
and for all others by the dispatcher (the event loop's time). The response is sent at once with the throttle
time, and the connection is muted for that time, for clients that do not wait. Of several throttle times the
longest counts. Requests between brokers are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.metadata.config import BrokerConfig
from ottla.protocol.api import ApiKey
from ottla.quotas.broker import BrokerQuotas
from ottla.quotas.clients import PERCENT_PER_NANOSECOND, ClientQuotas
from ottla.quotas.mutations import ControllerMutationQuota
from ottla.quotas.rates import Windows
from ottla.server.dispatch.dispatcher import Meter, Request
from ottla.server.network.channel import Connection

NO_LIMIT: Final = 2**31 - 1

EXEMPT: Final = frozenset(
    (
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.ALTER_PARTITION,
    )
)
"""Requests of brokers, whose time is not counted. A follower's Fetch is exempt, too."""


def broker_quotas(config: BrokerConfig) -> BrokerQuotas:
    """A broker's quotas, without limits."""

    def windows(prefix: str) -> Windows:
        seconds = config.get_int(f"{prefix}quota.window.size.seconds")
        return Windows(config.get_int(f"{prefix}quota.window.num"), seconds * 1000)

    log_dirs = windows("alter.log.dirs.replication.")
    return BrokerQuotas(
        config.broker_id, windows(""), windows("replication."), log_dirs, windows("controller.")
    )


class ClientThrottle:
    """The quotas of clients, by user and client-id."""

    def __init__(self, quotas: BrokerQuotas, clock: Callable[[], int]) -> None:
        self._produce = quotas.produce
        self._fetch = quotas.fetch
        self._mutations = quotas.mutations
        self._clock = clock

    def produced(self, request: Request, acks: int = -1) -> int:
        """Count a Produce before its response; returns the throttle time in ms. With acks=0 its time is not
        counted."""
        wait_ms = 0
        if request.meter is not None and acks != 0:
            wait_ms = request.meter.answered(request)
        return max(wait_ms, self.produced_by(request.connection, request.client_id, request.size))

    def produced_by(self, connection: Connection, client_id: str | None, size: int) -> int:
        """As `produced`, where the request has no meter: the throttle time of one of `size` bytes."""
        if not self._produce.enabled:
            return 0
        wait_ms = self._produce.record(connection.principal.name, client_id, size, self._clock())
        connection.mute(wait_ms)
        return wait_ms

    @property
    def limits_produces(self) -> bool:
        return self._produce.enabled

    @property
    def limits_fetches(self) -> bool:
        return self._fetch.enabled

    def max_bytes(self, request: Request) -> int:
        """The most bytes that a Fetch may return: a larger response could never pass the quota."""
        quota = self._fetch
        if not quota.enabled:
            return NO_LIMIT
        most = quota.max_burst(request.principal.name, request.client_id)
        return NO_LIMIT if most is None else most

    def throttle_ms(self, request: Request, size: int) -> int:
        """Count a consumer's Fetch whose response has `size` bytes; returns the throttle time in ms. If it is
        positive, the response has to be empty, and no bytes are counted."""
        wait_ms = 0 if request.meter is None else request.meter.answered(request)
        quota = self._fetch
        if not quota.enabled:
            return wait_ms
        now_ms, user = self._clock(), request.principal.name
        wait_ms = max(wait_ms, quota.record(user, request.client_id, size, now_ms))
        if wait_ms > 0:
            quota.unrecord(user, request.client_id, size, now_ms)
            request.connection.mute(wait_ms)
        return wait_ms

    def mutations(self, request: Request, strict_from: int | None) -> Mutations:
        """The mutation quota of a request. From version `strict_from` of its API on, an exceeded quota is an
        error; None: never."""
        strict = strict_from is not None and request.version >= strict_from
        quota = self._mutations.of(request.principal.name, request.client_id, self._clock(), strict=strict)
        return Mutations(quota, self._clock)


class Mutations:
    """A request's mutation quota, with a clock."""

    def __init__(self, quota: ControllerMutationQuota, clock: Callable[[], int]) -> None:
        self._quota = quota
        self._clock = clock

    def record(self, partitions: int) -> None:
        """Count partitions to be created or deleted. Raises KafkaError if the quota is exceeded."""
        self._quota.record(partitions, self._clock())

    def answered(self, request: Request) -> int:
        """Called before the response is sent; mutes the connection for the throttle time in ms, and returns
        it."""
        wait_ms = self._quota.throttle_ms(self._clock())
        request.connection.mute(wait_ms)
        return wait_ms


class RequestTimeMeters:
    """Makes a meter for each request, while any client has the quota request_percentage."""

    def __init__(
        self, quotas: ClientQuotas, clock: Callable[[], int], monotonic_s: Callable[[], float]
    ) -> None:
        """`clock`: wall time in ms, for the windows of the quota."""
        self.quotas = quotas
        self._clock = clock
        self._monotonic_s = monotonic_s

    def begin(self, request: Request) -> Meter | None:
        if request.route.api_key in EXEMPT:
            return None
        return _Stopwatch(self.quotas, self._clock, self._monotonic_s)


class _Stopwatch:
    """The meter of one request. The loop's time after the response is counted, but does not throttle."""

    __slots__ = ("_answered", "_clock", "_monotonic_s", "_quotas", "_since_s", "_spent_s", "_wait_ms")

    def __init__(
        self, quotas: ClientQuotas, clock: Callable[[], int], monotonic_s: Callable[[], float]
    ) -> None:
        self._quotas = quotas
        self._clock = clock
        self._monotonic_s = monotonic_s
        self._spent_s = 0.0
        self._since_s: float | None = monotonic_s()  # None while the loop does something else
        self._answered = False
        self._wait_ms = 0

    def resume(self) -> None:
        self._since_s = self._monotonic_s()

    def pause(self, request: Request) -> None:
        assert self._since_s is not None
        self._spent_s += self._monotonic_s() - self._since_s
        self._since_s = None
        if self._answered:
            self._record(request)

    def answered(self, request: Request) -> int:
        if not self._answered:
            self._answered = True
            if self._since_s is not None:
                now_s = self._monotonic_s()
                self._spent_s += now_s - self._since_s
                self._since_s = now_s
            self._wait_ms = self._record(request)
            request.connection.mute(self._wait_ms)
        return self._wait_ms

    def _record(self, request: Request) -> int:
        percent, self._spent_s = self._spent_s * 1e9 * PERCENT_PER_NANOSECOND, 0.0
        return self._quotas.record(request.principal.name, request.client_id, percent, self._clock())
