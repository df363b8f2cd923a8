"""A client's requests in flight against a model: requests are handled in order, none waits for ever, and
responses have the same order."""

from __future__ import annotations

import asyncio
import os
from typing import Literal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.server.network.channel import PENDING_RESPONSES_MAX, Connection, PendingResponse
from tests.worlds.clocks import StoppedClock
from tests.worlds.connection_harness import Harness, framed

EXAMPLES = 100 if "OTTLA_EXPLORE" not in os.environ else 3000
PRODUCE, FETCH = 0, 1
BYTES_MAX = 300_000
"""Of an answer; two fill the buffers of a socket."""
SIZES = st.sampled_from((0, 0, 5000, BYTES_MAX))
Fate = Literal["answered", "pending", "unanswered", "left"]
RUNS = st.lists(
    st.tuples(
        st.sampled_from((PRODUCE, PRODUCE, FETCH)),
        st.sampled_from((1, 2, PENDING_RESPONSES_MAX + 1)),
        st.sampled_from(("answered", "pending", "unanswered", "left")),
    ),
    min_size=1,
    max_size=4,
)
"""Of requests of one kind, and what becomes of them at once."""


class Server(Harness):
    """Handles some requests at once, as the scenario says; the others later."""

    def __init__(self, queued_max_bytes: int) -> None:
        super().__init__(queued_max_bytes=queued_max_bytes)
        self.fates: list[Fate] = []
        """What becomes at once of each request that is sent."""
        self.answers: list[bytes | None] = []
        """Of each request that was handed out; b"" is yet to come, None never does."""
        self.current: int | None = None
        self.responses: dict[int, PendingResponse] = {}

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        assert self.current is None, "one at a time"
        self.current = len(self.requests)
        self.requests.append(bytes(frame))
        self.answers.append(b"")
        may_defer = self.is_produce(self.current)
        assert may_defer or not self.responses, "nothing but a Produce passes one that waits"
        assert self.held <= PENDING_RESPONSES_MAX  # with this one
        match self.fates[self.current]:
            case "answered":
                self.answer(10)
            case "pending" if may_defer:
                self.defer_response()
            case "unanswered":
                self.answer_nothing()

    @property
    def held(self) -> int:
        """Deferred requests, and completed requests behind them."""
        first = min(self.responses, default=len(self.answers))
        return sum(answer is not None for answer in self.answers[first:])

    def is_produce(self, number: int) -> bool:
        return self.requests[number][1] == PRODUCE

    def answer(self, size: int) -> None:
        number, self.current = self.current, None
        assert number is not None
        self.connection.respond((self._answer(number, size),))

    def answer_nothing(self) -> None:
        assert self.current is not None
        self.answers[self.current], self.current = None, None
        self.connection.skip_response()

    def defer_response(self) -> None:
        number, self.current = self.current, None
        assert number is not None
        response = self.connection.defer_response()
        assert response is not None
        self.responses[number] = response

    def answer_pending(self, number: int, size: int) -> None:
        self.connection.complete(self.responses.pop(number), (self._answer(number, size),))

    def _answer(self, number: int, size: int) -> bytes:
        self.answers[number] = answer = framed(number.to_bytes(4, "big") + bytes(size))
        return answer


class Pipelining(RuleBasedStateMachine):
    @initialize(queued_max_bytes=st.sampled_from((-1, 5000)))
    def connect(self, queued_max_bytes: int) -> None:
        self.runner = asyncio.Runner(loop_factory=StoppedClock)

        async def made() -> Server:
            return Server(queued_max_bytes)

        self.server = self.runner.run(made())
        self.sent: list[bytes] = []
        self.unsent = bytearray()
        """What the client has yet to put into its socket, which may begin amid a frame."""
        self.received = bytearray()
        self.muted_until = 0.0
        self.reads = True

    def teardown(self) -> None:
        if not hasattr(self, "runner"):
            return
        server = self.server
        try:
            while len(server.requests) < len(self.sent) or server.responses or server.current is not None:
                before = len(server.requests), len(server.responses), server.current
                self.send(10**9)
                self.time_passes(10**6)
                if server.current is not None:
                    server.answer(10)
                for number in list(server.responses):
                    server.answer_pending(number, 10)
                self.read(0)
                assert before != (len(server.requests), len(server.responses), server.current), "none goes on"
            self.read(0)
            assert server.requests == self.sent
            assert bytes(self.received) == b"".join(answer for answer in server.answers if answer)
        finally:
            server.connection.close()
            server.client.close()
            self.runner.close()

    def run_until_blocked(self) -> None:
        """Runs all work that is possible now."""
        self.runner.run(self.server.turns(12))
        while self.reads and self.receive(1 << 20):
            self.runner.run(self.server.turns(12))

    def receive(self, most: int) -> bool:
        """Whether any bytes were received."""
        try:
            data = self.server.client.recv(most)
        except BlockingIOError:
            return False
        assert data, "the broker closed the connection"
        self.received += data
        return True

    # -- the client ----------------------------------------------------------------------------------

    @rule(runs=RUNS, size=st.sampled_from((0, 50, 3000)), part=st.sampled_from((10**9, 10**9, 7, 1000)))
    def ask(self, runs: list[tuple[int, int, Fate]], size: int, part: int) -> None:
        for kind, count, fate in runs:
            for _ in range(count):
                request = kind.to_bytes(2, "big") + len(self.sent).to_bytes(4, "big") + bytes(size)
                self.sent.append(request)
                self.server.fates.append(fate)
                self.unsent += framed(request)
        self.send(part)

    @rule(most=st.sampled_from((1, 100, 10**9)))
    def send(self, most: int) -> None:
        if self.unsent:
            try:
                count = self.server.client.send(self.unsent[:most])
            except BlockingIOError:
                return
            del self.unsent[:count]
            self.run_until_blocked()

    @rule(most=st.sampled_from((0, 0, 0, 3, 100_000)))
    def read(self, most: int) -> None:
        """Reads everything from now on (0), or so many bytes and then nothing."""
        self.reads = not most
        if most:
            self.receive(most)
        self.run_until_blocked()

    # -- the broker ----------------------------------------------------------------------------------

    @precondition(lambda self: self.server.current is not None)
    @rule(how=st.sampled_from(("answer", "answer", "defer", "defer", "nothing")), size=SIZES)
    def go_on(self, how: str, size: int) -> None:
        """Continues with the request that was deferred."""
        server = self.server
        assert server.current is not None
        if how == "defer" and server.is_produce(server.current):
            server.defer_response()
        elif how == "nothing":
            server.answer_nothing()
        else:
            server.answer(size)
        self.run_until_blocked()

    @precondition(lambda self: self.server.responses)
    @rule(
        chosen=st.lists(st.integers(0, PENDING_RESPONSES_MAX), min_size=1, max_size=PENDING_RESPONSES_MAX),
        size=SIZES,
        together=st.booleans(),
    )
    def replicate(self, chosen: list[int], size: int, together: bool) -> None:
        """Replicas have fetched the records of some deferred produce requests."""
        for choice in chosen:
            if self.server.responses:
                waiting = list(self.server.responses)
                self.server.answer_pending(waiting[choice % len(waiting)], size)
                if not together:
                    self.run_until_blocked()
        self.run_until_blocked()

    @rule(duration_ms=st.sampled_from((0, 1, 100)))
    def mute(self, duration_ms: int) -> None:
        now = self.server.loop.time()
        if duration_ms:
            self.muted_until = max(self.muted_until, now + duration_ms / 1000)
        self.server.connection.mute(duration_ms)

    @rule(duration_ms=st.sampled_from((1, 1000, 1000)))
    def time_passes(self, duration_ms: int) -> None:
        loop = self.server.loop
        assert isinstance(loop, StoppedClock)
        loop.now += duration_ms / 1000
        self.run_until_blocked()

    # -- what has to be ------------------------------------------------------------------------------

    @invariant()
    def requests_and_answers_keep_their_order(self) -> None:
        server = self.server
        assert server.requests == self.sent[: len(server.requests)]
        expected = bytearray()
        for answer in server.answers:
            if answer == b"":
                break
            expected += answer or b""
        assert expected.startswith(self.received)
        if self.reads:
            assert len(self.received) == len(expected), "an answer that is due does not come"

    @invariant()
    def nothing_is_held_back_without_a_reason(self) -> None:
        server = self.server
        arrived = sum(len(request) + 4 for request in self.sent) - len(self.unsent)
        handed_out = len(server.requests)
        if handed_out == len(self.sent) or arrived < sum(len(r) + 4 for r in self.sent[: handed_out + 1]):
            return
        passes = not server.responses or self.sent[handed_out][1] == PRODUCE
        due = server.current is None and server.held < PENDING_RESPONSES_MAX and passes
        if due and self.reads and server.loop.time() >= self.muted_until:
            raise AssertionError(f"request {handed_out} is never handed out")


Pipelining.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=40)
TestPipelining = pytest.mark.budget(5)(Pipelining.TestCase)  # runs of 40 steps
