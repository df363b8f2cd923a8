"""A connection to a broker as a state machine: bytes and time in, bytes and responses out; no I/O.

Called by `ottla.wire.connection`, which has the socket, the clock and a thread for slow work.

    OPENING ── ApiVersions, and with SASL a login ──► READY ── the session expires soon ──► RENEWING ──► READY
    any ── invalid bytes from the broker, a rejected login, the end of the stream ──► LOST

Invariants: every request has one outcome: its response, or ConnectionLost, TimeoutError or the error of its
encoding. Responses are matched to requests in the order of sending, in which brokers respond; a response to
any other request ends the connection. During a login no other request is sent: requests are held in their
order (a broker accepts nothing between SaslHandshake and the last token, KIP-368). Requests made during
OPENING are held, too.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from ottla.protocol import codec, frames
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import ApiVersionsRequest, SaslAuthenticateRequest
from ottla.protocol.types import Message
from ottla.wire.framing import ConnectionLost, FrameBuffer
from ottla.wire.handshake import Login, Prepare, SaslStep, Steps, Versions, log_in, negotiate

RENEW_AFTER: Final = 0.85
"""The part of a session's lifetime after which the login is renewed: the least of Kafka's clients."""
LOGIN_S: Final = 30.0
_CORRELATION: Final = struct.Struct(">i")
_ERROR: Final = struct.Struct(">h")


class UnsupportedApi(Exception):
    """The broker and this client have no version of this API in common."""


class Phase(Enum):
    OPENING = "being opened"
    READY = "ready"
    RENEWING = "logging in anew"
    LOST = "lost"


class InFlightRequest:
    """A request that was sent, and later its outcome."""

    __slots__ = ("api_key", "deadline", "expired", "keeps", "number", "response", "tag", "version")

    def __init__(
        self, number: int, api_key: int, version: int, deadline: float, tag: Any, *, keeps: bool
    ) -> None:
        self.number = number
        self.api_key = api_key
        self.version = version
        self.deadline = deadline
        self.tag = tag
        """The caller's: identifies the request."""
        self.keeps = keeps
        self.expired = False
        """Its outcome is a TimeoutError; a late response is dropped."""
        self.response: Any = None

    def complete(self, frame: memoryview) -> None:
        try:
            self.response = self._decoded(frame)
        except Exception as problem:
            self.response = problem

    def _decoded(self, frame: memoryview) -> Message:
        api_key, version = self.api_key, self.version
        offset = frames.response_body_offset(api_key, version, frame)
        if api_key == ApiVersionsRequest.api_key and version > 0:
            # A broker that does not support the version responds in version 0, with an error (KIP-511).
            (error,) = _ERROR.unpack_from(frame, offset)
            if error == ErrorCode.UNSUPPORTED_VERSION:
                version = 0
        return codec.decode(frames.RESPONSES[api_key], version, frame, offset)


class Send(NamedTuple):
    """These bytes are to be sent."""

    data: bytes


class Ready(NamedTuple):
    """The connection is open."""


class Lost(NamedTuple):
    """The connection has failed: the stream has to be closed, and `ended` called."""

    problem: Exception


Event: TypeAlias = InFlightRequest | Send | SaslStep | Prepare | Ready | Lost
_HANDSHAKE: Final = object()
"""The tag of the requests of the handshake."""


class _HeldRequest(NamedTuple):
    message: Message
    version: int
    deadline: float
    tag: Any
    keeps: bool


class ConnectionState:
    """See the module. Times are seconds of any monotonic clock."""

    def __init__(
        self,
        where: str,
        client_id: str,
        *,
        limits: Mapping[int, int] | None = None,
        login: Login | None = None,
    ) -> None:
        """`where`: HOST:PORT, for messages; `limits`: the highest versions that may be used, by API key."""
        self.where = where
        self.phase = Phase.OPENING
        self.lost: Exception | None = None
        """The reason of LOST."""
        self.next_time = math.inf
        """The time of the next deadline, at which `expire` has to be called."""
        self._client_id = client_id
        self._limits = limits or {}
        self._login = login
        self._versions: Versions = {}
        self._chosen: dict[int, int] = {}
        self._next_number = 0
        self._in_flight: deque[InFlightRequest] = deque()
        self._held: list[_HeldRequest] = []
        self._frames = FrameBuffer(self._next_is_kept)
        self.buffer: Callable[[], memoryview] = self._frames.buffer
        """Returns the memory for the next bytes; then call `received`."""
        self._holds_from = -math.inf
        """Requests are held from this time on; in READY, the first of them starts the renewal of the
        login."""
        self._steps: Steps[float] = self._open()
        self._began = 0.0
        self._in_by = math.inf
        """The deadline of the handshake."""

    # --- requests ---

    def version_of(self, api_key: int) -> int:
        """The highest version of an API that both sides support, up to its limit; raises UnsupportedApi."""
        version = self._chosen.get(api_key)
        if version is None:
            version = self._chosen[api_key] = self._choose(api_key)
        return version

    def check_version(self, api_key: int, version: int) -> None:
        """Raises UnsupportedApi for a version of an API that either side does not support."""
        highest = self.version_of(api_key)
        lowest = max(frames.REQUESTS[api_key].min_version, self._versions[api_key][0])
        if not lowest <= version <= highest:
            raise UnsupportedApi(
                f"{self.where} and this client have {frames.REQUESTS[api_key].__name__} in versions "
                f"{lowest} to {highest} in common, not {version}"
            )

    def _choose(self, api_key: int) -> int:
        ours = frames.REQUESTS[api_key]
        theirs = self._versions.get(api_key)
        if theirs is not None:
            version = min(ours.max_version, theirs[1], self._limits.get(api_key, ours.max_version))
            if version >= max(ours.min_version, theirs[0]):
                return version
        raise UnsupportedApi(
            f"{self.where} serves {ours.__name__} in versions {theirs}, "
            f"this client {ours.min_version} to {ours.max_version}"
        )

    def request(
        self, message: Message, version: int, now: float, timeout_s: float, tag: Any, *, keeps: bool
    ) -> bytes:
        """Returns the bytes to send now, if there are any; an InFlightRequest with this tag follows as an
        event. Without `keeps`, views in its response are valid until the next event is taken. Raises
        ConnectionLost, and the error of the encoding."""
        deadline = now + timeout_s
        if now >= self._holds_from:
            return self._hold(_HeldRequest(message, version, deadline, tag, keeps), now)
        data = self._sent(message, version, deadline, tag, keeps)
        if deadline < self.next_time:
            self.next_time = deadline
        return data

    def _sent(self, message: Message, version: int, deadline: float, tag: Any, keeps: bool) -> bytes:
        number = self._next_number
        data = frames.encode_request(message, version, number, self._client_id)
        self._next_number = (number + 1) & 0x7FFFFFFF
        self._in_flight.append(InFlightRequest(number, message.api_key, version, deadline, tag, keeps=keeps))
        return data

    def request_without_response(self, message: Message, version: int) -> bytes:
        """As `request`, for one without a response: Produce with acks=0. It is not held during a renewal of
        the login, and the broker closes the connection: acks=0 allows the loss."""
        self._check_open()
        number = self._next_number
        self._next_number = (number + 1) & 0x7FFFFFFF
        return frames.encode_request(message, version, number, self._client_id)

    def _check_open(self) -> None:
        if self.lost is not None:
            raise ConnectionLost(str(self.lost))

    def _hold(self, held: _HeldRequest, now: float) -> bytes:
        self._check_open()
        self._held.append(held)
        self.next_time = min(self.next_time, held.deadline)
        if self.phase is not Phase.READY:
            return b""
        self.phase = Phase.RENEWING
        self._holds_from = -math.inf
        self._steps = self._log_in()
        (first,) = self.begin(now, LOGIN_S)
        assert isinstance(first, Send), "a login begins with a request"
        return first.data

    # --- received bytes ---

    def received(self, nbytes: int) -> Iterator[Event]:
        """The events of bytes that were put into `buffer`; take all of them before the next bytes."""
        in_flight, buffer = self._in_flight, self._frames
        try:
            for frame in buffer.received(nbytes):
                (number,) = _CORRELATION.unpack_from(frame)
                if not in_flight or in_flight[0].number != number:
                    raise self._out_of_order(number)
                request = in_flight.popleft()
                if request.expired:
                    continue
                request.complete(memoryview(bytes(frame)) if request.keeps and buffer.borrowed else frame)
                if request.tag is _HANDSHAKE:
                    yield from self._advance(request.response)
                else:
                    yield request
        except ConnectionLost as problem:
            yield from self._lose(problem)

    def _next_is_kept(self) -> bool:
        return not self._in_flight or self._in_flight[0].keeps

    def _out_of_order(self, number: int) -> ConnectionLost:
        expected = (
            f"request {self._in_flight[0].number} was next" if self._in_flight else "no request is in flight"
        )
        return ConnectionLost(f"{self.where} answered request {number}, where {expected}")

    def ended(self, problem: Exception | None) -> list[Event]:
        """The stream has ended: the outcome of all requests is ConnectionLost."""
        self._lose(problem or ConnectionLost("the broker closed the connection"))
        self.next_time = math.inf
        waiting = [
            request for request in self._in_flight if not request.expired and request.tag is not _HANDSHAKE
        ]
        waiting += map(_unsent, self._held)
        self._in_flight.clear()
        self._held.clear()
        for request in waiting:
            request.response = ConnectionLost(str(self.lost))
        return list(waiting)

    def close(self) -> None:
        """Send nothing more; requests in flight wait for `ended`."""
        self._lose(ConnectionLost("closed by us"))

    def _lose(self, problem: Exception) -> list[Event]:
        if self.lost is not None:
            return []
        self.lost = problem
        self.phase = Phase.LOST
        self._holds_from = -math.inf
        return [Lost(problem)]

    # --- time ---

    def expire(self, now: float) -> list[Event]:
        """The time is `next_time` or later: the outcome of late requests is a TimeoutError."""
        late = [each for each in self._in_flight if each.deadline <= now and not each.expired]
        if any(request.tag is _HANDSHAKE for request in late):
            return self._lose(TimeoutError(f"{self.where} did not complete the handshake in time"))
        for request in late:
            request.expired = True
        late += [_unsent(held) for held in self._held if held.deadline <= now]
        self._held = [held for held in self._held if held.deadline > now]
        for request in late:
            request.response = TimeoutError()
        waiting = [request.deadline for request in self._in_flight if not request.expired]
        waiting += [held.deadline for held in self._held]
        self.next_time = min(waiting, default=math.inf)
        return list(late)

    # --- handshake ---

    def begin(self, now: float, timeout_s: float) -> list[Event]:
        """The stream is open: begin the handshake. Ready or Lost follows."""
        self._began = now
        self._in_by = now + timeout_s
        self.next_time = min(self.next_time, self._in_by)
        return self._advance(None)

    def sasl_step_done(self, outcome: bytes | Exception | None) -> list[Event]:
        """The outcome of a SaslStep or Prepare: the next token, None if there is none, or an exception."""
        return [] if self.lost is not None else self._advance(outcome)

    def _open(self) -> Steps[float]:
        self._versions = yield from negotiate(self.where)
        return math.inf if self._login is None else (yield from self._log_in())

    def _log_in(self) -> Steps[float]:
        """Log in; returns when the login has to be renewed."""
        assert self._login is not None
        version = self.version_of(SaslAuthenticateRequest.api_key)
        lifetime_ms = yield from log_in(self._login, version)
        return self._began + RENEW_AFTER * lifetime_ms / 1000 if lifetime_ms > 0 else math.inf

    def _advance(self, outcome: object) -> list[Event]:
        """The next step of the handshake, after the outcome of the one before."""
        steps = self._steps
        try:
            step = steps.throw(outcome) if isinstance(outcome, Exception) else steps.send(outcome)
            if isinstance(step, SaslStep | Prepare):
                return [step]
            return [Send(self._sent(step.message, step.version, self._in_by, _HANDSHAKE, True))]
        except StopIteration as end:
            return self._opened(end.value)
        except Exception as problem:
            return self._lose(problem)

    def _opened(self, until: float) -> list[Event]:
        events: list[Event] = [Ready()] if self.phase is Phase.OPENING else []
        self.phase = Phase.READY
        self._holds_from = until
        held, self._held = self._held, []
        for each in held:
            try:
                events.append(Send(self._sent(*each)))
            except Exception as problem:
                request = _unsent(each)
                request.response = problem
                events.append(request)
        return events


def _unsent(held: _HeldRequest) -> InFlightRequest:
    return InFlightRequest(-1, held.message.api_key, held.version, held.deadline, held.tag, keeps=held.keeps)
