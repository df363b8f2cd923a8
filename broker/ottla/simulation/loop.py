"""An event loop in virtual time, on which many simulated processes run in one thread.

Everything that runs belongs to a process or to the simulation itself: a callback, a timer and a task inherit
the context in which they were created, and a context variable in it names the process. So a process can be
killed between any two callbacks (nothing of it runs again, not even `finally`), or paused and resumed.

Invariants: time advances only when nothing is left to do now; callbacks run in the order in which they were
scheduled; timers at one time fire in the order of their creation. So a run is a function of its seed.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import logging
import sys
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

CLOSE_ATTEMPTS_MAX: Final = 100
"""How many awaits in `finally` blocks of one killed task are tried; each one fails."""
TURNS_AT_ONE_TIME_MAX: Final = 100_000
"""More turns of the loop without an advance of time are a livelock."""
COLLECT_S: Final = 10.0
"""Virtual time between two garbage collections: at fixed points, so that finalizers run in the same order."""


class ProcessKilled(BaseException):
    """Raised inside a process that has been killed in the middle of a system call."""


class Livelock(Exception):
    """Callbacks schedule each other without end, and time does not advance."""


class Deadlock(Exception):
    """Nothing is scheduled any more, and the simulation has not ended."""


class Process:
    """A process of the simulation: the owner of callbacks, tasks and timers."""

    def __init__(self, loop: SimulatedLoop, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.runs = True
        """Alive and not paused."""
        self.tasks: set[asyncio.Task[Any]] = set()
        self.waiting: list[_Handle | _Timer] = []
        """Callbacks that were due while the process was paused."""
        self._loop = loop
        self.context: Context = contextvars.copy_context()
        self.context.run(CURRENT.set, self)

    def __repr__(self) -> str:
        return f"<process {self.name}>"

    def set(self, variable: ContextVar[T], value: T) -> None:
        """Set a context variable for all that this process will run."""
        self.context.run(variable.set, value)

    def create_task(self, work: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        return self._loop.create_task(work, name=name, context=self.context.copy())

    def kill(self) -> None:
        """End the process: nothing of it runs any more."""
        self.alive = self.runs = False
        self.waiting.clear()
        # Referenced until the end: a coroutine that is collected would run its `finally` blocks.
        self._loop.graveyard.append(self.tasks)

    def pause(self) -> None:
        self.paused = True
        self.runs = False

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self.runs = self.alive
            waiting, self.waiting = self.waiting, []
            self._loop.ready.extend(waiting)


CURRENT: Final[ContextVar[Process | None]] = ContextVar("process", default=None)
"""The process that runs; None: the simulation."""


class _Handle(asyncio.Handle):
    """A callback with its process. Sets what the base class has by itself, for speed."""

    __slots__ = ("process",)

    def __init__(
        self,
        callback: Callable[..., object],
        args: Sequence[Any],
        loop: asyncio.AbstractEventLoop,
        context: Context,
    ) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self.process: Process | None = context.get(CURRENT)


class _Timer(asyncio.TimerHandle):
    """As `_Handle`."""

    __slots__ = ("process",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: Sequence[Any],
        loop: asyncio.AbstractEventLoop,
        context: Context,
    ) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when
        self._scheduled = True
        self.process: Process | None = context.get(CURRENT)


class Task(asyncio.Task[Any]):
    """A task that knows its process: an exception never retrieved is reported when it is collected."""

    __slots__ = ("process",)
    process: Process | None


class Readiness(Protocol):
    """A simulated socket, for `add_reader` and `add_writer`."""

    reader: asyncio.Handle | None
    writer: asyncio.Handle | None

    def poll(self) -> None:
        """Schedule the reader or the writer if the socket is ready."""


Connect = Callable[..., Coroutine[Any, Any, tuple[asyncio.Transport, asyncio.BaseProtocol]]]


class SimulatedLoop(asyncio.BaseEventLoop):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.ready: deque[_Handle | _Timer] = deque()
        self.graveyard: list[set[asyncio.Task[Any]]] = []
        """The tasks of killed processes."""
        self.sockets: dict[int, Readiness] = {}
        """By descriptor."""
        self.connect: Connect | None = None
        """Makes outgoing connections: the simulated network's."""
        self.execution_delay_s: Callable[[], float] = lambda: 0.0
        """How long a job of an executor waits before it runs."""
        self._heap: list[tuple[float, int, _Timer]] = []
        self._sequence = 0
        self._descriptor = 2
        self._cancelled = 0
        self._collected = 0.0
        self._at_this_time = 0
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._on_exception)
        self.on_problem: Callable[[Process | None, dict[str, Any]], None] = lambda process, context: None
        """Called with what was not handled: an exception of a callback, or of a task never awaited."""

    # --- time ---

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        ready = self.ready
        if not ready:
            self._advance()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle.process
            if process is not None and not process.runs:
                if process.alive:
                    process.waiting.append(handle)
                continue
            try:
                handle._context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as problem:
                # Not by call_exception_handler, which would swallow what a fault or a check raises.
                context = {"message": f"Exception in callback {handle._callback!r}", "exception": problem}
                handle._context.run(self._on_exception, self, context)
        self._at_this_time += 1
        if self._at_this_time > TURNS_AT_ONE_TIME_MAX:
            waiting = "; ".join(f"{handle.process}: {handle!r}" for handle in list(ready)[:3])
            raise Livelock(f"time stands still at {self.now:.6f} s: {waiting}")

    def _advance(self) -> None:
        heap = self._heap
        while heap and heap[0][2]._cancelled:
            heapq.heappop(heap)
            self._cancelled -= 1
        if not heap:
            raise Deadlock(f"nothing is scheduled at {self.now:.6f} s")
        if heap[0][0] > self.now:
            self.now = heap[0][0]
            self._at_this_time = 0
        now = self.now
        while heap and heap[0][0] <= now:
            handle = heapq.heappop(heap)[2]
            handle._scheduled = False
            if handle._cancelled:
                self._cancelled -= 1
            else:
                self.ready.append(handle)
        # Outside `run`, Python collects by itself.
        if now - self._collected >= COLLECT_S and not gc.isenabled():
            self._collected = now
            gc.collect()

    # --- callbacks ---

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if context is None:
            context = contextvars.copy_context()
        handle = _Handle(callback, args, self, context)
        self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if context is None:
            context = contextvars.copy_context()
        timer = _Timer(when, callback, args, self, context)
        self._sequence += 1
        heapq.heappush(self._heap, (when, self._sequence, timer))
        return timer

    def _timer_handle_cancelled(self, handle: _Timer) -> None:
        if handle._scheduled:
            self._cancelled += 1
            if self._cancelled > 256 and self._cancelled * 2 > len(self._heap):
                self._heap = [each for each in self._heap if not each[2]._cancelled]
                heapq.heapify(self._heap)
                self._cancelled = 0

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        context: Context | None = None,
        **settings: Any,
    ) -> asyncio.Task[Any]:
        if context is None:
            context = contextvars.copy_context()
        task = Task(work, loop=loop, context=context, **settings)
        process = task.process = context.get(CURRENT)
        if process is not None:
            process.tasks.add(task)
            task.add_done_callback(process.tasks.discard, context=context)
        return task

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(context.get("exception"), ProcessKilled):
            return
        # The loop calls this outside of the context of the callback or task that failed.
        owner = context.get("handle") or context.get("task") or context.get("future")
        process = getattr(owner, "process", None) or CURRENT.get()
        if process is None or process.alive:
            self.on_problem(process, context)

    # --- threads ---

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, work: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run the work at once, after a delay: as one step, which is what a lock or the GIL makes of it."""
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                result = work(*args)
            except Exception as problem:
                future.set_exception(problem)
            else:
                future.set_result(result)

        self.call_later(self.execution_delay_s(), run)
        return future

    # --- the network ---

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        return [(2, 1, 6, "", (host, port))]

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **settings: Any
    ) -> Any:
        assert self.connect is not None
        return await self.connect(protocol_factory, host, port, **settings)

    async def sock_connect(self, sock: Any, address: Any) -> None:
        await sock.connect(*address[:2])

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        socket = self.sockets[fd]
        if socket.reader is not None:
            socket.reader.cancel()
        socket.reader = self._watch(callback, args)
        socket.poll()

    def remove_reader(self, fd: int) -> bool:  # type: ignore[override]
        socket = self.sockets.get(fd)
        if socket is None or socket.reader is None:
            return False
        socket.reader.cancel()
        socket.reader = None
        return True

    def add_writer(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        socket = self.sockets[fd]
        if socket.writer is not None:
            socket.writer.cancel()
        socket.writer = self._watch(callback, args)
        socket.poll()

    def remove_writer(self, fd: int) -> bool:  # type: ignore[override]
        socket = self.sockets.get(fd)
        if socket is None or socket.writer is None:
            return False
        socket.writer.cancel()
        socket.writer = None
        return True

    def new_descriptor(self) -> int:
        """A descriptor that no simulated socket or file has had."""
        self._descriptor += 1
        return self._descriptor

    def _watch(self, callback: Callable[..., object], args: tuple[Any, ...]) -> asyncio.Handle:
        return _Handle(callback, args, self, contextvars.copy_context())

    # --- life ---

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the simulation's own task to its end. The garbage collector runs at fixed points of virtual
        time."""
        enabled = gc.isenabled()
        gc.collect()
        gc.disable()
        try:
            with frozen():
                return self.run_until_complete(work)
        finally:
            if enabled:
                gc.enable()

    def _process_events(self, event_list: Any) -> None:
        raise AssertionError("there is no selector")

    def _write_to_self(self) -> None:
        """There are no other threads to be woken by."""

    def close(self) -> None:
        self.ready.clear()
        self._heap.clear()
        super().close()
        # As the running loop: without one, asyncio.gather makes a real loop, which nothing closes.
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            with unheard():
                for tasks in self.graveyard:
                    for task in list(tasks):
                        _end_coroutine(task.get_coro())
                self.graveyard.clear()
        finally:
            asyncio._set_running_loop(before)


def _end_coroutine(work: Any) -> None:
    """Run the `finally` blocks of a killed coroutine, in a closed loop, before it is collected."""
    for _ in range(CLOSE_ATTEMPTS_MAX):
        with suppress(BaseException):
            work.close()
            return


_is_frozen = False


@contextmanager
def frozen() -> Iterator[None]:
    """Collections within skip the objects that there were before the outermost of these."""
    global _is_frozen
    if _is_frozen:
        yield
        return
    _is_frozen = True
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        _is_frozen = False


@contextmanager
def unheard() -> Iterator[None]:
    """What killed coroutines do when they are closed or collected is neither logged nor reported."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a coroutine was never awaited; there is no current event loop
            yield
    finally:
        logging.disable(disabled)
        sys.unraisablehook = hook
