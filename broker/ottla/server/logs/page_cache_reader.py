"""What is not in memory is read by threads, so that the event loop never waits for a disk.

Called by connections, before they send ranges of files, and by the handlers that look into logs. Two ways:

- `may_send` says of a range that is about to go out whether it may go out now. If not, its pages are read
  by a thread, and the connection is called back. One that reads a cold file from front to back has the next
  `AHEAD_BYTES` read in good time, so that mostly it finds them there.
- `run` is for reads that look something up (`storage.page_cache.NoWaiting`): it tries on the loop and, after
  `ColdRead`, again once a thread has read those pages. What is tried must bear being tried again.

Progress is certain: what a thread has read is sent, or read, without another look, even if memory is so short
that it may be gone again. The threads change no state; callbacks come on the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol, TypeVar

from ottla.storage import page_cache
from ottla.storage.page_cache import ColdRead, NoWaiting
from ottla.storage.segment import FileSlice

log = logging.getLogger(__name__)

THREADS: Final = 4
AHEAD_BYTES: Final = 4 << 20
LOOKUP_AHEAD_BYTES: Final = 1 << 20
"""Who looks up an offset will mostly want the records there: a consumer's default per partition."""
TRIES_MAX: Final = 4
"""A lookup may need the index, and then the log. After so many it is done on the loop, come what may."""
MISSES_MAX: Final = 256
"""So many at most are to be missed in one attempt, for each holds a descriptor."""
_FULL_ATTEMPTS_MAX: Final = 64
"""So many attempts that miss as much count as one, for there is more to come."""

T = TypeVar("T")
Done = Callable[["OSError | None"], None]


class ManyCold(Exception):
    """Independent lookups of one attempt have each missed something: raised to have all of it read at once,
    for attempts are few."""

    def __init__(self, misses: Sequence[ColdRead]) -> None:
        super().__init__(f"{len(misses)} reads")
        self.misses: Final = misses


def tried(misses: Sequence[ColdRead]) -> float:
    """For how much of TRIES_MAX an attempt counts that missed these."""
    return 1 if len(misses) < MISSES_MAX else 1 / _FULL_ATTEMPTS_MAX


class Disk(Protocol):
    """The part of `page_cache` that this is built on (the seam of the tests)."""

    def is_resident(self, fd: int, position: int, length: int, *, exact: bool) -> bool: ...

    def load(self, fd: int, position: int, length: int) -> None: ...

    def load_ahead(self, fd: int, position: int, length: int) -> None: ...


class PageCacheReader:
    def __init__(self, loop: asyncio.AbstractEventLoop, disk: Disk = page_cache) -> None:
        self._loop = loop
        self._disk = disk
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="cold-read")
        self._closed = False
        self.loads = 0
        """How often the loop did not wait for the disk (for tests and metrics)."""

    # --- ranges to send -----------------------------------------------------------------------------

    def may_send(self, part: FileSlice, length: int, then: Done) -> bool:
        """Whether the first `length` bytes of `part` are in memory. If not, `then` is called on the loop when
        they are, with the error if there was one. Raises OSError."""
        file, position, _ = part
        end = position + length
        ahead = file.read_ahead
        # Where somebody reads from the disk, pages come in the disk's order: look at every one.
        if self._disk.is_resident(file.fd, position, length, exact=position < ahead):
            if position < ahead < end + AHEAD_BYTES // 2:
                file.read_ahead = ahead + AHEAD_BYTES
                self._submit(partial(self._look_ahead, part, ahead))
            return True
        file.read_ahead = end + AHEAD_BYTES
        self.loads += 1
        self._submit(partial(self._load_part, part, length, then))
        return False

    def _load_part(self, part: FileSlice, length: int, then: Done) -> None:
        """In a thread."""
        file, position, _ = part
        problem = self._load(file.fd, position, length)
        self._call(then, problem)
        if problem is None:
            self._look_ahead(part, position + length)

    def _look_ahead(self, part: FileSlice, position: int) -> None:
        """In a thread."""
        try:
            self._disk.load_ahead(part.file.fd, position, AHEAD_BYTES)
        except OSError as problem:
            log.debug("reading ahead in %s: %s", part.file.path, problem)

    # --- lookups ------------------------------------------------------------------------------------

    def run(
        self,
        attempt: Callable[[], T],
        answer: Callable[[T], None],
        fail: Callable[[BaseException], None],
        tries: float = 1,
    ) -> None:
        """Call `attempt`, again after its ColdRead or ManyCold, and `answer` with what it found. What else
        goes wrong after the first time is for `fail`."""
        if tries > TRIES_MAX:
            answer(attempt())
            return
        try:
            with NoWaiting():
                found = attempt()
        except ColdRead as miss:
            misses: Sequence[ColdRead] = [miss]
        except ManyCold as cold:
            misses = cold.misses
        else:
            # Outside: an answer that is sent may bring on the connection's next request.
            answer(found)
            return
        self.fetch(misses, partial(self._run_again, attempt, answer, fail, tries + tried(misses)))

    def _run_again(
        self,
        attempt: Callable[[], T],
        answer: Callable[[T], None],
        fail: Callable[[BaseException], None],
        tries: float,
        problem: OSError | None,
    ) -> None:
        try:
            if problem is not None:
                raise problem
            self.run(attempt, answer, fail, tries)
        except Exception as e:
            fail(e)

    async def look_up(self, attempt: Callable[[], T]) -> T:
        """As `run`, for coroutines."""
        for _ in range(TRIES_MAX):
            try:
                with NoWaiting():
                    return attempt()
            except ColdRead as miss:
                loaded: asyncio.Future[None] = self._loop.create_future()
                self.fetch([miss], partial(_settle, loaded))
                await loaded
        return attempt()

    def fetch(self, misses: Sequence[ColdRead], then: Done) -> None:
        """Have what was missed read, all at once; `then` is called on the loop, with the last error."""
        left = len(misses)
        worst: OSError | None = None

        def one_done(problem: OSError | None) -> None:
            nonlocal left, worst
            left -= 1
            worst = problem or worst
            if not left:
                then(worst)

        for miss in misses:
            self.loads += 1
            self._submit(partial(self._load_miss, miss, one_done))

    def _load_miss(self, miss: ColdRead, then: Done) -> None:
        """In a thread."""
        problem = self._load(miss.file.fd, miss.position, miss.length)
        self._call(then, problem)
        if problem is None:
            self._disk.load_ahead(miss.file.fd, miss.position + miss.length, LOOKUP_AHEAD_BYTES)

    # --- threads ------------------------------------------------------------------------------------

    def _load(self, fd: int, position: int, length: int) -> OSError | None:
        try:
            self._disk.load(fd, position, length)
        except OSError as problem:
            return problem
        return None

    def _submit(self, job: Callable[[], None]) -> None:
        if not self._closed:
            self._threads.submit(job)

    def _call(self, then: Done, problem: OSError | None) -> None:
        try:
            self._loop.call_soon_threadsafe(then, problem)
        except RuntimeError:
            if not self._closed:
                raise

    def close(self) -> None:
        """Call nobody back from now on (connections are closed already)."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)


def _settle(loaded: asyncio.Future[None], problem: OSError | None) -> None:
    if loaded.done():
        return  # nobody waits any more
    if problem is None:
        loaded.set_result(None)
    else:
        loaded.set_exception(problem)
