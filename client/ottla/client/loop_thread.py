"""An event loop in a thread of its own, for the clients that block (`ottla.client.blocking`)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Use: `run` from other threads; `stop` at the end. It does not keep the interpreter from ending."""

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
        """Run to the end and return what it returns. Raises TimeoutError, after which it is cancelled, and
        RuntimeError as `check_elsewhere` does."""
        if self.here:
            work.close()
            self.check_elsewhere()
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    @property
    def here(self) -> bool:
        """Whether the caller is this thread."""
        return threading.current_thread() is self._thread

    def check_elsewhere(self) -> None:
        """Raises RuntimeError in this thread, where callbacks, interceptors and serializers are called."""
        if self.here:
            raise RuntimeError("a call that blocks, from the client's own thread: it would wait for itself")

    def call_soon(self, function: Callable[[], object]) -> None:
        """Have a function called in the loop's thread."""
        self.loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
