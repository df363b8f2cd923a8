"""Requests that would block the event loop for long: decoded, handled, encoded and freed in slices.

Called by the dispatcher with requests of more than `Route.large_bytes` (of Produce, whose bytes are records:
with more than `ProduceRequest.elements_max` partitions), and with long responses to short requests. A request
is split into parts (ottla.server.dispatch.splits). Authorization and handler serve the parts as requests, one
after the other, and their responses are joined. A part has as many items as take PART_S, by the time of the
part before.

When its connection is closed, the work on a request ends.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Generator, Iterator, Sequence
from typing import Final, cast

from ottla.ports import Clock
from ottla.protocol import codec, frames
from ottla.protocol.types import Message
from ottla.server.dispatch.dispatcher import AsyncHandler, Metered, Request, SyncHandler
from ottla.server.dispatch.sliced_work import Abandoned, SlicedTask, SlicedWork
from ottla.server.dispatch.splits import (
    BETWEEN_BROKERS,
    WHOLE_ITEMS_MAX,
    Limit,
    Split,
    has_items,
    join,
    limit_of,
    parts,
    release,
    split_of,
)
from ottla.server.network.channel import Part

PART_S: Final = 0.004
FIRST_PART_ITEMS: Final = 20
PART_ITEMS_MIN: Final = 5
PART_ITEMS_MAX: Final = 1000
ABANDONED_CHECK_S: Final = 1.0


class PartRequest(Request):
    """Some of the items of a request; its response is kept, not sent."""

    __slots__ = ("answer",)
    is_part = True

    def __init__(self, whole: Request, message: Message, answer: asyncio.Future[Message | None]) -> None:
        self.connection = whole.connection
        self.route = whole.route
        self.timer = None
        self.version = whole.version
        self.correlation_id = whole.correlation_id
        self.client_id = whole.client_id
        self.amend = None
        self.answered = False
        self.meter = None
        self.size = whole.size
        self.answer = answer
        self._frame = None
        self._message = message
        self._pending = None

    def defer_response(self) -> None:
        """The connection hands out no further request before the response to the whole request."""

    def detach(self) -> None:
        """Does nothing: the frame belongs to the whole request."""

    def respond(self, message: Message) -> None:
        if self.amend is not None:
            self.amend(message)
        self._done(message)

    def respond_raw(self, parts: Sequence[Part]) -> None:
        data = memoryview(b"".join(cast("Sequence[bytes]", parts)))[4:]
        cls = frames.RESPONSES[self.route.api_key]
        offset = frames.response_body_offset(self.route.api_key, self.version, data)
        self._done(codec.decode(cls, self.version, data, offset))

    def respond_nothing(self) -> None:
        self._done(None)

    def _done(self, message: Message | None) -> None:
        assert not self.answered, f"{self.route.api_key!r} has two responses"
        self.answered = True
        if not self.answer.done():
            self.answer.set_result(message)


class LargeRequests:
    """See the module."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._work = SlicedWork(loop, clock.monotonic_s)

    async def serve(self, request: Request) -> None:
        """Serve a request that is not decoded yet. Raises exceptions for `Request.fail`."""
        client = (request.principal, request.connection.peer_host)
        around = None
        if request.meter is not None:
            meter = request.meter
            around = (meter.resume, lambda: meter.pause(request))
        urgent = request.route.api_key in BETWEEN_BROKERS
        try:
            async with self._work.task(
                request.size, client, lambda: request.abandoned, around, urgent=urgent
            ) as task:
                await self._serve(request, task)
        except Abandoned:
            pass

    async def _serve(self, request: Request, task: SlicedTask) -> None:
        route = request.route
        message = await task.run(request.decode_steps())
        if not route.keeps_frame:
            request.detach()
        if route.large is not None:
            await route.large(request, task)
            return
        split = split_of(message, request.version)
        answer: Message | None
        if (limit := limit_of(message, request.version)) and has_items(message, WHOLE_ITEMS_MAX):
            answer = await task.run(_refused(request, message, limit))
        elif split is None:
            answer = await self._handle(request, message, task, is_part=False)
        else:
            answer = await self._in_parts(request, message, split, task)
        if answer is None:
            request.respond_nothing()
            return
        await self._send(request, answer, task)

    async def respond(self, request: Request, answers: Iterator[Message], split: Split) -> None:
        """Respond with the join of `answers`, each of which is computed quickly."""
        client = (request.principal, request.connection.peer_host)
        try:
            async with self._work.task(request.size, client, lambda: request.abandoned) as task:
                answer = await task.run(_joined(request, answers, split))
                await self._send(request, answer, task)
        except Abandoned:
            pass

    async def send(self, request: Request, answer: Message) -> None:
        """Respond with a message of many rows."""
        client = (request.principal, request.connection.peer_host)
        try:
            async with self._work.task(request.size, client, lambda: request.abandoned) as task:
                request.prepare(answer)
                await self._send(request, answer, task)
        except Abandoned:
            pass

    async def _in_parts(
        self, request: Request, message: Message, split: Split, task: SlicedTask
    ) -> Message | None:
        items = FIRST_PART_ITEMS
        steps = parts(message, split, lambda: items)
        answer: Message | None = None
        while (part := await task.run(_next_part(steps))) is not None:
            began, began_cpu_s = task.spent_s, self._clock.cpu_s()
            more = await self._handle(request, part, task, is_part=True)
            # A coroutine may have its work done in other tasks, as in the controller.
            took_s = self._clock.cpu_s() - began_cpu_s if request.route.is_async else task.spent_s - began
            if took_s > PART_S:
                items = max(PART_ITEMS_MIN, int(items * PART_S / took_s))
            elif took_s < PART_S / 2:
                items = min(items * 2, PART_ITEMS_MAX)
            if answer is None:
                answer = more
            elif more is not None:
                join(answer, more, split)
        return answer

    async def _handle(
        self, whole: Request, message: Message, task: SlicedTask, *, is_part: bool
    ) -> Message | None:
        """The response of the API's authorization and handler."""
        part = PartRequest(whole, message, self._loop.create_future())
        await task.turn()
        if whole.route.is_async:
            await task.wait(self._run(part, task), is_part=is_part)
        else:
            began = self._clock.monotonic_s()
            try:
                cast(SyncHandler, whole.route.handle)(part)
            except Exception as e:
                part.fail(e)
            task.spent_s += self._clock.monotonic_s() - began
        if not part.answer.done():
            await task.wait(self._answered(part), is_part=is_part)
        return part.answer.result()

    async def _run(self, part: PartRequest, task: SlicedTask) -> None:
        began = 0.0

        def resume() -> None:
            nonlocal began
            began = self._clock.monotonic_s()

        def pause() -> None:
            task.spent_s += self._clock.monotonic_s() - began

        work = cast(AsyncHandler, part.route.handle)(part)
        try:
            part.respond(await Metered(work, resume, pause))
        except Exception as e:
            part.fail(e)

    @staticmethod
    async def _answered(part: PartRequest) -> None:
        while not part.answer.done():
            if part.abandoned:
                raise Abandoned
            await asyncio.wait((part.answer,), timeout=ABANDONED_CHECK_S)

    async def _send(self, request: Request, answer: Message, task: SlicedTask) -> None:
        request.throttle(answer)
        steps = frames.encode_response_steps(answer, request.version, request.correlation_id)
        data = await task.run(steps)
        if not request.abandoned:
            request.respond_raw(data)
        await task.run(release(answer))


def _next_part(steps: Iterator[Message | None]) -> Generator[None, None, Message | None]:
    for part in steps:
        if part is not None:
            return part
        yield
    return None


def _refused(request: Request, message: Message, limit: Limit) -> Generator[None, None, Message]:
    """The error response to a request with too many items."""
    on_error, version, error = request.route.on_error, request.version, limit.error
    words = f"more than {WHOLE_ITEMS_MAX} items in one request"
    lists = {split.items: getattr(message, split.items) for split in limit.splits}
    for name in lists:
        setattr(message, name, [])
    whole = on_error(message, version, error, words)
    for split in limit.splits:
        some = copy.copy(message)
        setattr(some, split.items, lists.pop(split.items))
        for part in parts(some, split, lambda: FIRST_PART_ITEMS):
            if part is not None:
                join(whole, on_error(part, version, error, words), split)
            yield
    return whole


def _joined(request: Request, answers: Iterator[Message], split: Split) -> Generator[None, None, Message]:
    whole: Message | None = None
    for answer in answers:
        if request.amend is not None:
            request.amend(answer)
        if whole is None:
            whole = answer
        else:
            join(whole, answer, split)
        yield
    assert whole is not None
    return whole
