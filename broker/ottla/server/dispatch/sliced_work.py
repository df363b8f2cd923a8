"""Long work in short slices: one slice in each iteration of the event loop, whatever the number of tasks.

Called by ottla.server.dispatch.large_requests. Work is a generator that yields every fraction of a
millisecond. In each iteration the task that has had the least time runs for SLICE_S (least attained service):
short tasks overtake long ones, and the loop's other events are handled in between.

`Admission` limits the work in progress, by the bytes of requests: a decoded request takes up to 64 times its
bytes.

While there is long work, full garbage collections are off: one would walk all objects of a request that is
being decoded, which reference counts free. A full collection follows when no work is left, at most every
FULL_COLLECTION_S.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Hashable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]

SLICE_S: Final = 0.005
FULL_COLLECTION_S: Final = 10.0
BIG_BYTES: Final = 256 << 10
BIG_MAX: Final = 2
"""How many requests above BIG_BYTES are in progress at a time, no two of one client."""
SMALL_BYTES_MAX: Final = 1 << 20
"""The bytes of the other requests in progress, without those that wait in their handlers."""
_NEVER: Final = 1 << 30
_GC_THRESHOLDS: Final = gc.get_threshold()


class Abandoned(Exception):
    """The connection is closed: nothing waits for the result."""


class SlicedTask:
    """The work of one request, and the time it has had."""

    __slots__ = ("_admission", "_client", "_inside", "_size", "_work", "abandoned", "around", "spent_s")

    def __init__(
        self,
        work: SlicedWork,
        admission: Admission | None,
        size: int,
        client: Hashable,
        abandoned: Callable[[], bool],
        around: tuple[Callable[[], None], Callable[[], None]] | None,
    ) -> None:
        """The functions of `around` are called before and after each slice. A task without `admission` runs
        before the others."""
        self._work = work
        self._admission = admission
        self._size = size
        self._client = client
        self._inside = False
        self.abandoned = abandoned
        self.around = around
        self.spent_s = 0.0 if admission is not None else float("-inf")

    async def enter(self) -> None:
        """Wait for admission, to begin or to continue."""
        if self._admission is not None:
            await self._admission.enter(self._size, self._client)
        self._inside = True

    def leave(self) -> None:
        """The work is done or waits: admit another task."""
        if self._inside:
            self._inside = False
            if self._admission is not None:
                self._admission.leave(self._size, self._client)

    async def wait(self, awaitable: Awaitable[T], *, is_part: bool) -> T:
        """Await something that takes long, but little of the loop's time. Another task is admitted meanwhile,
        except for parts of a big request: too many would be in progress."""
        if is_part and self._size > BIG_BYTES:
            return await awaitable
        self.leave()
        if not is_part:
            self._work.ended()
        try:
            result = await awaitable
        finally:
            if not is_part:
                self._work.began()
        await self.enter()
        return result

    async def run(self, steps: Steps[T]) -> T:
        """Run the generator in slices; returns its result. Raises its exceptions, and Abandoned."""
        result: T = await self._work.submit(self, steps)
        return result

    async def turn(self) -> None:
        """Wait for the task's next slice, to do something short in it."""
        await self.run(_one_step())


class SlicedWork:
    """See the module."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        slice_s: float = SLICE_S,
    ) -> None:
        """`clock` gives seconds that never step."""
        self._loop = loop
        self._clock = clock
        self._slice_s = slice_s
        self._ready: list[tuple[float, int, SlicedTask, Steps[Any], asyncio.Future[Any]]] = []
        self._count = 0
        self._scheduled = False
        self._admission = Admission(loop)
        self._working = 0
        self._collected_s = clock()

    @asynccontextmanager
    async def task(
        self,
        size: int,
        client: Hashable,
        abandoned: Callable[[], bool],
        around: tuple[Callable[[], None], Callable[[], None]] | None = None,
        *,
        urgent: bool = False,
    ) -> AsyncIterator[SlicedTask]:
        """A task for a request of `size` bytes; waits for its admission, unless it is `urgent`."""
        task = SlicedTask(self, None if urgent else self._admission, size, client, abandoned, around)
        await task.enter()
        self.began()
        try:
            yield task
        finally:
            self.ended()
            task.leave()

    def submit(self, task: SlicedTask, steps: Steps[T]) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self._loop.create_future()
        self._push(task, steps, done)
        return done

    def _push(self, task: SlicedTask, steps: Steps[Any], done: asyncio.Future[Any]) -> None:
        self._count += 1
        heapq.heappush(self._ready, (task.spent_s, self._count, task, steps, done))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._slice)

    def _slice(self) -> None:
        """Run the task that has had the least time."""
        self._scheduled = False
        _, _, task, steps, done = heapq.heappop(self._ready)
        if not done.cancelled():
            began = self._clock()
            if task.around is not None:
                task.around[0]()
            try:
                finished = self._advance(task, steps, done, began + self._slice_s)
            finally:
                task.spent_s += self._clock() - began
                if task.around is not None:
                    task.around[1]()
            if not finished:
                self._push(task, steps, done)
                return
        if self._ready and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._slice)

    def _advance(self, task: SlicedTask, steps: Steps[Any], done: asyncio.Future[Any], until: float) -> bool:
        if task.abandoned():
            steps.close()
            done.set_exception(Abandoned())
            return True
        clock = self._clock
        try:
            while True:
                next(steps)
                if clock() >= until:
                    return False
        except StopIteration as end:
            done.set_result(end.value)
        except Exception as problem:
            done.set_exception(problem)
        return True

    def began(self) -> None:
        """A task begins or continues its work."""
        if not self._working:
            gc.set_threshold(*_GC_THRESHOLDS[:2], _NEVER)
        self._working += 1

    def ended(self) -> None:
        """A task ends its work or waits."""
        self._working -= 1
        if not self._working:
            gc.set_threshold(*_GC_THRESHOLDS)
            now = self._clock()
            if now - self._collected_s > FULL_COLLECTION_S:
                self._collected_s = now
                gc.collect()


class Admission:
    """Admits requests while few are in progress, clients in turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._small = _Lane(SMALL_BYTES_MAX, one_each=False)
        self._big = _Lane(BIG_MAX, one_each=True)

    async def enter(self, size: int, client: Hashable) -> None:
        lane, weight = self._lane(size)
        turn = self._loop.create_future()
        lane.waiting.setdefault(client, deque()).append((turn, weight))
        lane.admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(size, client)  # it was admitted at the same moment
            raise

    def leave(self, size: int, client: Hashable) -> None:
        lane, weight = self._lane(size)
        lane.leave(client, weight)
        lane.admit()

    def _lane(self, size: int) -> tuple[_Lane, int]:
        return (self._big, 1) if size > BIG_BYTES else (self._small, size)


class _Lane:
    """The requests in progress, and those that wait, by client."""

    def __init__(self, limit: int, *, one_each: bool) -> None:
        self._limit = limit
        self._one_each = one_each
        self._in_progress = 0
        self._inside: Counter[Hashable] = Counter()
        self.waiting: dict[Hashable, deque[tuple[asyncio.Future[None], int]]] = {}

    def admit(self) -> None:
        """Admit the first request of each client in turn, up to the limit."""
        for client in list(self.waiting):
            if self._in_progress >= self._limit:
                return
            if self._one_each and client in self._inside:
                continue
            queue = self.waiting.pop(client)
            turn, weight = queue.popleft()
            if queue:
                self.waiting[client] = queue
            if not turn.cancelled():
                self._in_progress += weight
                self._inside[client] += 1
                turn.set_result(None)

    def leave(self, client: Hashable, weight: int) -> None:
        self._in_progress -= weight
        self._inside[client] -= 1
        if not self._inside[client]:
            del self._inside[client]


def _one_step() -> Steps[None]:
    yield
