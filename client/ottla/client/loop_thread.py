"""An event loop in a thread of its own, for the blocking clients (`ottla.client.blocking`).

`blocking` and `in_loop` make a method of a blocking client from a method of the asynchronous client, with the
same signature and docstring. Type checkers see the signature through the ParamSpec.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class EventLoopThread:
    """A daemon thread that runs an event loop. Use: `run` from other threads; `stop` at the end."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine to its end and return its result. Raises TimeoutError, after which the coroutine is
        cancelled, and RuntimeError in this thread."""
        if self.is_current:
            work.close()
            self.check_not_current()
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.current_thread() is self._thread

    def check_not_current(self) -> None:
        """Raises RuntimeError in this thread, which calls callbacks, interceptors and serializers."""
        if self.is_current:
            raise RuntimeError("a blocking call in the client's own thread would wait for itself")

    def call_soon(self, function: Callable[[], object]) -> None:
        """Schedule a function in the event loop."""
        self.loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        """Stop the event loop and join the thread. A second call does nothing."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()


class _BlockingClient(Protocol):
    """A blocking client: an asynchronous client, and the way to run a coroutine in its event loop."""

    @property
    def _client(self) -> Any: ...

    def _run(self, work: Coroutine[Any, Any, T]) -> T: ...


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """The method of a blocking client that runs this coroutine method of its asynchronous client."""
    name = method.__name__

    @wraps(method)
    def run(self: _BlockingClient, /, *arguments: P.args, **keywords: P.kwargs) -> T:
        work: Coroutine[Any, Any, T] = getattr(self._client, name)(*arguments, **keywords)
        return self._run(work)

    return run


def in_loop(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """The method of a blocking client that calls this method of its asynchronous client in the event loop."""
    name = method.__name__

    @wraps(method)
    def run(self: _BlockingClient, /, *arguments: P.args, **keywords: P.kwargs) -> T:
        async def call() -> T:
            result: T = getattr(self._client, name)(*arguments, **keywords)
            return result

        return self._run(call())

    return run
