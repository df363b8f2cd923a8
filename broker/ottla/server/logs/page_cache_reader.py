"""Reads pages of log files that are not in the page cache in threads, so that the event loop never waits for
a disk.

Called by connections before they send ranges of files, and by the handlers that look into logs:

- `ensure_resident` returns whether a range that is about to be sent is in the page cache. If not, a thread
  reads its pages, and the connection is called back. While a connection reads a file sequentially, the next
  `AHEAD_BYTES` are read ahead.
- `run_lookup` is for lookups, which run under `NonblockingReads`: it runs the lookup on the loop and, after a
  `PageCacheMiss`, again once a thread has read those pages. The lookup must be repeatable.

Progress is guaranteed: pages that a thread has read are sent, or read, without another check, even if memory
is so short that they may be evicted again. The threads change no state; callbacks run on the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from ottla.ports.workers import Workers
from ottla.storage.nonblocking_reads import NonblockingReads, OpenFile, PageCacheMiss
from ottla.storage.segment_files import FileSlice, SegmentFile

log = logging.getLogger(__name__)

THREADS: Final = 4
AHEAD_BYTES: Final = 4 << 20
LOOKUP_AHEAD_BYTES: Final = 1 << 20
"""After a lookup of an offset mostly the records there are read: a consumer's default per partition."""
ATTEMPTS_MAX: Final = 4
"""A lookup may miss in the index, then in the log. After so many attempts it runs on the loop, blocking."""
MISSES_MAX: Final = 256
"""Misses of one attempt at most: each holds a file descriptor."""
_FULL_ATTEMPTS_MAX: Final = 64
"""Attempts with MISSES_MAX misses that count as one attempt, because they make progress."""

T = TypeVar("T")
OnLoaded = Callable[["OSError | None"], None]


class ManyPageMisses(Exception):
    """Raised by a lookup of many independent positions: all its misses are read at once, because the number
    of attempts is limited."""

    def __init__(self, misses: Sequence[PageCacheMiss]) -> None:
        super().__init__(f"{len(misses)} reads")
        self.misses: Final = misses


def attempt_weight(misses: Sequence[PageCacheMiss]) -> float:
    """The share of ATTEMPTS_MAX that an attempt with these misses counts for."""
    return 1 if len(misses) < MISSES_MAX else 1 / _FULL_ATTEMPTS_MAX


class PageCacheReader:
    """See the module. Belongs to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, workers: Workers) -> None:
        self._loop = loop
        self._threads = workers.threads("page-cache-reader", THREADS)
        self._closed = False
        self.loads = 0
        """Reads by threads so far, for tests."""

    # --- ranges to send -----------------------------------------------------------------------------

    def ensure_resident(self, part: FileSlice, length: int, on_loaded: OnLoaded) -> bool:
        """Whether the first `length` bytes of `part` are in the page cache. If not, a thread reads them and
        `on_loaded` is called on the loop, with the error if there was one. Raises OSError."""
        file, position, _ = part
        end = position + length
        ahead = file.read_ahead
        # During read-ahead, pages arrive in any order: check every one.
        if file.files.is_resident(file.fd, position, length, exact=position < ahead):
            if position < ahead < end + AHEAD_BYTES // 2:
                file.read_ahead = ahead + AHEAD_BYTES
                self._submit(partial(self._look_ahead, part, ahead))
            return True
        file.read_ahead = end + AHEAD_BYTES
        self.loads += 1
        self._submit(partial(self._load_part, part, length, on_loaded))
        return False

    def _load_part(self, part: FileSlice, length: int, on_loaded: OnLoaded) -> None:
        """In a thread."""
        file, position, _ = part
        problem = _load(file, position, length)
        self._call(on_loaded, problem)
        if problem is None:
            self._look_ahead(part, position + length)

    def _look_ahead(self, part: FileSlice, position: int) -> None:
        """In a thread."""
        try:
            part.file.files.load_ahead(part.file.fd, position, AHEAD_BYTES)
        except OSError as problem:
            log.debug("reading ahead in %s: %s", part.file.path, problem)

    # --- lookups ------------------------------------------------------------------------------------

    def run_lookup(
        self,
        lookup: Callable[[], T],
        on_result: Callable[[T], None],
        on_error: Callable[[BaseException], None],
        attempts: float = 1,
    ) -> None:
        """Call `lookup`, again after its PageCacheMiss or ManyPageMisses, and `on_result` with its result.
        Errors of the first attempt are raised; those of later ones go to `on_error`."""
        if attempts > ATTEMPTS_MAX:
            on_result(lookup())
            return
        try:
            with NonblockingReads():
                found = lookup()
        except PageCacheMiss as miss:
            misses: Sequence[PageCacheMiss] = [miss]
        except ManyPageMisses as many:
            misses = many.misses
        else:
            # Outside of NonblockingReads: sending the response may start the connection's next request.
            on_result(found)
            return
        self.load(
            misses, partial(self._rerun, lookup, on_result, on_error, attempts + attempt_weight(misses))
        )

    def _rerun(
        self,
        lookup: Callable[[], T],
        on_result: Callable[[T], None],
        on_error: Callable[[BaseException], None],
        attempts: float,
        problem: OSError | None,
    ) -> None:
        try:
            if problem is not None:
                raise problem
            self.run_lookup(lookup, on_result, on_error, attempts)
        except Exception as e:
            on_error(e)

    async def look_up(self, lookup: Callable[[], T]) -> T:
        """As `run_lookup`, for coroutines."""
        for _ in range(ATTEMPTS_MAX):
            try:
                with NonblockingReads():
                    return lookup()
            except PageCacheMiss as miss:
                loaded: asyncio.Future[None] = self._loop.create_future()
                self.load([miss], partial(_set_loaded, loaded))
                await loaded
        return lookup()

    def load(self, misses: Sequence[PageCacheMiss], on_loaded: OnLoaded) -> None:
        """Read all missed pages in parallel; `on_loaded` is called on the loop, with the last error."""
        left = len(misses)
        last_error: OSError | None = None

        def one_done(problem: OSError | None) -> None:
            nonlocal left, last_error
            left -= 1
            last_error = problem or last_error
            if not left:
                on_loaded(last_error)

        for miss in misses:
            self.loads += 1
            self._submit(partial(self._load_miss, miss, one_done))

    def _load_miss(self, miss: PageCacheMiss, on_loaded: OnLoaded) -> None:
        """In a thread."""
        problem = _load(miss.file, miss.position, miss.length)
        self._call(on_loaded, problem)
        if problem is None:
            miss.file.files.load_ahead(miss.file.fd, miss.position + miss.length, LOOKUP_AHEAD_BYTES)

    # --- threads ------------------------------------------------------------------------------------

    def _submit(self, job: Callable[[], None]) -> None:
        if not self._closed:
            self._threads.submit(job)

    def _call(self, on_loaded: OnLoaded, problem: OSError | None) -> None:
        try:
            self._loop.call_soon_threadsafe(on_loaded, problem)
        except RuntimeError:
            if not self._closed:
                raise

    async def stop(self) -> None:
        """Stop calling back (connections are closed already), and wait for the reads that have begun."""
        self._closed = True
        await self._threads.stop()


def _load(file: SegmentFile | OpenFile, position: int, length: int) -> OSError | None:
    """Read a range into the page cache; returns the error if it fails. In a thread."""
    try:
        file.files.load(file.fd, position, length)
    except OSError as problem:
        return problem
    return None


def _set_loaded(loaded: asyncio.Future[None], problem: OSError | None) -> None:
    if loaded.done():
        return  # the coroutine was cancelled
    if problem is None:
        loaded.set_result(None)
    else:
        loaded.set_exception(problem)
