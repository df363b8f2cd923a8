"""A connection to a broker as a state machine: bytes and time in, bytes and answers out; no I/O.

Called by `ottla.wire.connection`, which has the socket, the clock and a thread for slow work.

    OPENING ── versions, and with SASL a login ──► READY ── the session is about to end ──► RENEWING ──► READY
    any ── nonsense from the broker, a refused login, the end of the stream ──► LOST

Invariants: every request has one answer: its response, or ConnectionLost, TimeoutError or what else hindered
it; answers are matched to requests in the order in which these were sent, as brokers answer in order, and
anything else ends the connection; while a login goes on nothing else is sent, and requests are held in their
order (a broker takes nothing between SaslHandshake and the last token, KIP-368). Requests made while it is
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
from ottla.wire.handshake import Login, SaslStep, Steps, Versions, log_in, negotiate

RENEW_AFTER: Final = 0.85
"""Of a session's time: what Kafka's clients leave at least."""
LOGIN_S: Final = 30.0
_CORRELATION: Final = struct.Struct(">i")
_ERROR: Final = struct.Struct(">h")


class UnsupportedApi(Exception):
    """The broker serves no version of this API that we speak."""


class State(Enum):
    OPENING = "being opened"
    READY = "ready"
    RENEWING = "logging in anew"
    LOST = "lost"


class Answer:
    """A request that was sent, and what came of it."""

    __slots__ = ("api_key", "deadline", "expired", "keeps", "number", "response", "tag", "version")

    def __init__(
        self, number: int, api_key: int, version: int, deadline: float, tag: Any, *, keeps: bool
    ) -> None:
        self.number = number
        self.api_key = api_key
        self.version = version
        self.deadline = deadline
        self.tag = tag
        """Whatever its sender gave with it."""
        self.keeps = keeps
        self.expired = False
        """Answered by a TimeoutError; what comes yet is of no interest."""
        self.response: Any = None

    def take(self, frame: memoryview) -> None:
        try:
            self.response = self._decoded(frame)
        except Exception as problem:
            self.response = problem

    def _decoded(self, frame: memoryview) -> Message:
        api_key, version = self.api_key, self.version
        offset = frames.response_body_offset(api_key, version, frame)
        if api_key == ApiVersionsRequest.api_key and version > 0:
            # A broker that does not know our version answers in version 0, with an error (KIP-511).
            (error,) = _ERROR.unpack_from(frame, offset)
            if error == ErrorCode.UNSUPPORTED_VERSION:
                version = 0
        return codec.decode(frames.RESPONSES[api_key], version, frame, offset)


class Send(NamedTuple):
    """These bytes are to be sent."""

    data: bytes


class Ready(NamedTuple):
    """It is open."""


class Lost(NamedTuple):
    """It is of no use any more: the stream has to be ended, and `ended` called."""

    problem: Exception


Event: TypeAlias = Answer | Send | SaslStep | Ready | Lost
_OWN: Final = object()
"""The tag of a handshake's requests."""


class _Held(NamedTuple):
    message: Message
    version: int
    deadline: float
    tag: Any
    keeps: bool


class Connection:
    """Times are seconds, of any clock."""

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
        self.state = State.OPENING
        self.lost: Exception | None = None
        """Why it is LOST."""
        self.next_time = math.inf
        """When `expire` has to be called at the latest."""
        self._client_id = client_id
        self._limits = limits or {}
        self._login = login
        self._versions: Versions = {}
        self._chosen: dict[int, int] = {}
        self._next_number = 0
        self._in_flight: deque[Answer] = deque()
        self._held: list[_Held] = []
        self._frames = FrameBuffer(self._next_is_kept)
        self.buffer: Callable[[], memoryview] = self._frames.buffer
        """Where the next bytes are to be put; then call `received`."""
        self._holds_from = -math.inf
        """Requests are held from this time on; when it is READY, the first of them has the login renewed."""
        self._steps: Steps[float] = self._enter()
        self._began = 0.0
        self._in_by = math.inf
        """When the handshake has to be over."""

    # --- requests ---

    def version_of(self, api_key: int) -> int:
        """The highest version of an API that both sides speak, and may; raises UnsupportedApi."""
        version = self._chosen.get(api_key)
        if version is None:
            version = self._chosen[api_key] = self._choose(api_key)
        return version

    def check_version(self, api_key: int, version: int) -> None:
        """Raises UnsupportedApi for a version of an API that is not spoken on both sides."""
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
            f"we speak {ours.min_version} to {ours.max_version}"
        )

    def request(
        self, message: Message, version: int, now: float, timeout_s: float, tag: Any, *, keeps: bool
    ) -> bytes:
        """What is to be sent at once, if anything; an Answer with this tag follows. What it has of views is
        valid until the event after it is taken, without `keeps`. Raises ConnectionLost, and what is wrong
        with the request."""
        deadline = now + timeout_s
        if now >= self._holds_from:
            return self._hold(_Held(message, version, deadline, tag, keeps), now)
        data = self._sent(message, version, deadline, tag, keeps)
        if deadline < self.next_time:
            self.next_time = deadline
        return data

    def _sent(self, message: Message, version: int, deadline: float, tag: Any, keeps: bool) -> bytes:
        number = self._next_number
        data = frames.encode_request(message, version, number, self._client_id)
        self._next_number = (number + 1) & 0x7FFFFFFF
        self._in_flight.append(Answer(number, message.api_key, version, deadline, tag, keeps=keeps))
        return data

    def unanswered(self, message: Message, version: int) -> bytes:
        """As `request`, for one that no response follows: Produce with acks=0. While a login is renewed, it
        is not held, and the broker ends the connection: acks=0 means that."""
        self._check()
        number = self._next_number
        self._next_number = (number + 1) & 0x7FFFFFFF
        return frames.encode_request(message, version, number, self._client_id)

    def _check(self) -> None:
        if self.lost is not None:
            raise ConnectionLost(str(self.lost))

    def _hold(self, held: _Held, now: float) -> bytes:
        self._check()
        self._held.append(held)
        self.next_time = min(self.next_time, held.deadline)
        if self.state is not State.READY:
            return b""
        self.state = State.RENEWING
        self._holds_from = -math.inf
        self._steps = self._log_in()
        (first,) = self.begin(now, LOGIN_S)
        assert isinstance(first, Send), "a login begins with a request"
        return first.data

    # --- bytes that came ---

    def received(self, nbytes: int) -> Iterator[Event]:
        """What follows from bytes that were put into `buffer`; to be taken whole before the next bytes."""
        in_flight, buffer = self._in_flight, self._frames
        try:
            for frame in buffer.received(nbytes):
                (number,) = _CORRELATION.unpack_from(frame)
                if not in_flight or in_flight[0].number != number:
                    raise self._out_of_order(number)
                answer = in_flight.popleft()
                if answer.expired:
                    continue
                answer.take(memoryview(bytes(frame)) if answer.keeps and buffer.borrowed else frame)
                if answer.tag is _OWN:
                    yield from self._advance(answer.response)
                else:
                    yield answer
        except ConnectionLost as problem:
            yield from self._lose(problem)

    def _next_is_kept(self) -> bool:
        return not self._in_flight or self._in_flight[0].keeps

    def _out_of_order(self, number: int) -> ConnectionLost:
        expected = f"request {self._in_flight[0].number} was next" if self._in_flight else "none was asked"
        return ConnectionLost(f"{self.where} answered request {number}, where {expected}")

    def ended(self, problem: Exception | None) -> list[Event]:
        """The stream has ended: all that waits gets ConnectionLost."""
        self._lose(problem or ConnectionLost("the broker closed the connection"))
        self.next_time = math.inf
        waiting = [answer for answer in self._in_flight if not answer.expired and answer.tag is not _OWN]
        waiting += map(_unsent, self._held)
        self._in_flight.clear()
        self._held.clear()
        for answer in waiting:
            answer.response = ConnectionLost(str(self.lost))
        return list(waiting)

    def close(self) -> None:
        """Nothing more is to be sent; what is in flight waits for `ended`."""
        self._lose(ConnectionLost("closed by us"))

    def _lose(self, problem: Exception) -> list[Event]:
        if self.lost is not None:
            return []
        self.lost = problem
        self.state = State.LOST
        self._holds_from = -math.inf
        return [Lost(problem)]

    # --- time ---

    def expire(self, now: float) -> list[Event]:
        """The time is `next_time`, or later: who has waited too long gets a TimeoutError."""
        late = [each for each in self._in_flight if each.deadline <= now and not each.expired]
        if any(answer.tag is _OWN for answer in late):
            return self._lose(TimeoutError(f"{self.where} did not let us in within the time"))
        for answer in late:
            answer.expired = True
        late += [_unsent(held) for held in self._held if held.deadline <= now]
        self._held = [held for held in self._held if held.deadline > now]
        for answer in late:
            answer.response = TimeoutError()
        waiting = [answer.deadline for answer in self._in_flight if not answer.expired]
        waiting += [held.deadline for held in self._held]
        self.next_time = min(waiting, default=math.inf)
        return list(late)

    # --- getting in ---

    def begin(self, now: float, timeout_s: float) -> list[Event]:
        """There is a stream; Ready or Lost follows."""
        self._began = now
        self._in_by = now + timeout_s
        self.next_time = min(self.next_time, self._in_by)
        return self._advance(None)

    def proved(self, outcome: bytes | Exception | None) -> list[Event]:
        """What came of a SaslStep."""
        return [] if self.lost is not None else self._advance(outcome)

    def _enter(self) -> Steps[float]:
        self._versions = yield from negotiate(self.where)
        return math.inf if self._login is None else (yield from self._log_in())

    def _log_in(self) -> Steps[float]:
        """Until when this login does."""
        assert self._login is not None
        version = self.version_of(SaslAuthenticateRequest.api_key)
        lifetime_ms = yield from log_in(self._login, version)
        return self._began + RENEW_AFTER * lifetime_ms / 1000 if lifetime_ms > 0 else math.inf

    def _advance(self, outcome: object) -> list[Event]:
        """The next step of the handshake, after what came of the one before it."""
        steps = self._steps
        try:
            step = steps.throw(outcome) if isinstance(outcome, Exception) else steps.send(outcome)
            if isinstance(step, SaslStep):
                return [step]
            return [Send(self._sent(step.message, step.version, self._in_by, _OWN, True))]
        except StopIteration as end:
            return self._entered(end.value)
        except Exception as problem:
            return self._lose(problem)

    def _entered(self, until: float) -> list[Event]:
        events: list[Event] = [Ready()] if self.state is State.OPENING else []
        self.state = State.READY
        self._holds_from = until
        held, self._held = self._held, []
        for each in held:
            try:
                events.append(Send(self._sent(*each)))
            except Exception as problem:
                answer = _unsent(each)
                answer.response = problem
                events.append(answer)
        return events


def _unsent(held: _Held) -> Answer:
    return Answer(-1, held.message.api_key, held.version, held.deadline, held.tag, keeps=held.keeps)
