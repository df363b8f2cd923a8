"""A Fetch of thousands of partitions, read and sent in time slices of the event loop.

Called by the dispatcher in place of `ottla.server.handlers.fetch.handler`. Partitions are read in chunks,
each under the limits that the earlier chunks left. A fetch that creates a session is responded at once: the
next one, which is incremental, waits. A fetch without a session waits until one of its partitions changes,
and reads all of them again; it does not wait if it names many unknown partitions. An incremental fetch uses
the normal path, because it reads a bounded number of partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Final

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import FetchRequest, FetchResponse
from ottla.server.dispatch.dispatcher import Request, Route
from ottla.server.dispatch.fetch_sessions import (
    TOPIC_IDS_FROM,
    FullFetch,
    Wanted,
    WantedPartition,
    wanted_partitions,
)
from ottla.server.dispatch.purgatory import PartitionKey
from ottla.server.dispatch.sliced_work import SlicedTask
from ottla.server.dispatch.splits import Split, parts
from ottla.server.handlers.fetch.down_conversion import CONVERTED_BELOW
from ottla.server.handlers.fetch.handler import FetchHandler, error_response
from ottla.server.handlers.fetch.read import FetchRead
from ottla.server.logs.page_cache_reader import ATTEMPTS_MAX, attempt_weight

CHUNK_PARTITIONS: Final = 200
UNKNOWN_MAX: Final = 1000
"""A fetch with more unknown partitions does not wait for changes."""
CONVERTED_MAX: Final = 10_000
"""Partitions of a fetch at most whose records may need conversion."""
FORGOTTEN_MAX: Final = 20_000
_TOPICS: Final = Split("topics", "", "partitions", key=None)


class PartitionChunk:
    """Some of the partitions of a fetch."""

    has_more = False
    session = None

    def __init__(self, wanted: list[WantedPartition]) -> None:
        self._wanted = wanted

    def __len__(self) -> int:
        return len(self._wanted)

    def to_read(self) -> list[WantedPartition]:
        return self._wanted


class PartitionWatcher:
    """Waits in the purgatory until a partition changes or the time is over."""

    def __init__(self, watched: list[PartitionKey], *, follower: bool) -> None:
        self.watched = watched
        self.follower = follower
        self.bucket = 0
        self.done = False
        self.woken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Completes with whether the time is over."""

    def try_complete(self, key: PartitionKey) -> None:
        if not self.woken.done():
            self.woken.set_result(False)

    def expire(self) -> None:
        if not self.woken.done():
            self.woken.set_result(True)


class LargeFetchHandler:
    """See the module. Small fetches go to the FetchHandler."""

    def __init__(self, handler: FetchHandler) -> None:
        self._handler = handler

    def routes(self) -> list[Route]:
        route = Route(FetchRequest, self._handler.handle, error_response, large=self.handle)
        self._handler.serve_repeated(route)
        return [route]

    async def handle(self, request: Request, task: SlicedTask) -> None:
        handler, version = self._handler, request.version
        message = request.decode(FetchRequest)
        forgotten = sum(len(topic.partitions) for topic in message.forgotten_topics_data)
        if forgotten > FORGOTTEN_MAX:
            request.respond(FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
            return
        wanted: Wanted = {}
        await task.run(self._wanted(message, version, wanted))
        if version < CONVERTED_BELOW and len(wanted) > CONVERTED_MAX:
            request.connection.close(f"a Fetch v{version} with more than {CONVERTED_MAX} partitions")
            return
        context = handler.open(request, message, wanted)
        if not isinstance(context, FullFetch):
            handler.serve(request, message, context)
            return
        read = handler.new_read(request, message, context)
        rows = list(wanted.values())
        await self._read(request, task, read, rows)
        begins = message.session_epoch == 0 and version >= 7
        if not begins:
            await self._wait(request, task, read, rows, message)
        if version < CONVERTED_BELOW:
            handler.sender.send(request, read)
        else:
            await task.run(handler.sender.send_steps(request, read))
        await task.run(_release(rows, wanted, read))

    def _wanted(self, message: FetchRequest, version: int, wanted: Wanted) -> Generator[None, None, None]:
        name_of, by_topic_id = self._handler.cache.topic_name, version >= TOPIC_IDS_FROM
        for part in parts(message, _TOPICS, lambda: CHUNK_PARTITIONS) if message.topics else ():
            if part is not None:
                assert isinstance(part, FetchRequest)
                wanted.update(wanted_partitions(part, by_topic_id, name_of))
            yield

    async def _read(
        self, request: Request, task: SlicedTask, read: FetchRead, rows: list[WantedPartition]
    ) -> None:
        """Read all partitions into `read`, chunk by chunk."""
        read.begin_chunks()
        for at in range(0, len(rows), CHUNK_PARTITIONS):
            chunk = PartitionChunk(rows[at : at + CHUNK_PARTITIONS])
            attempts = 0.0
            while True:
                await task.turn()
                chunk_read = read.for_chunk(chunk)
                chunk_read.allow_blocking = attempts >= ATTEMPTS_MAX
                unknown = chunk_read.read_chunk()
                if not chunk_read.page_misses:
                    break
                attempts += attempt_weight(chunk_read.page_misses)
                loaded: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
                self._handler.page_cache_reader.load(chunk_read.page_misses, loaded.set_result)
                if await task.wait(loaded, is_part=True) is not None:
                    attempts = ATTEMPTS_MAX  # the next read blocks, and reports the error itself
            read.add_chunk(chunk_read, unknown)
        read.end_chunks()

    async def _wait(
        self,
        request: Request,
        task: SlicedTask,
        read: FetchRead,
        rows: list[WantedPartition],
        message: FetchRequest,
    ) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + message.max_wait_ms / 1000
        while not read.is_satisfied(message.min_bytes) and len(read.unknown) <= UNKNOWN_MAX:
            left_ms = int((deadline - loop.time()) * 1000)
            if left_ms <= 0 or request.abandoned:
                return
            watched = [
                (partition.wanted.topic, partition.wanted.asked.partition)
                for partition in read.fetched
                if partition.wanted.topic is not None and partition.wanted not in read.unknown
            ]
            watcher = PartitionWatcher(watched, follower=read.follower)
            purgatory = self._handler.purgatory
            purgatory.watch_fetch(watcher, left_ms)
            try:
                await task.wait(watcher.woken, is_part=False)
            finally:
                watcher.done = True
                purgatory.unwatch_fetch(watcher)
            await self._read(request, task, read, rows)


def _release(rows: list[WantedPartition], wanted: Wanted, read: FetchRead) -> Generator[None, None, None]:
    """Free the request's and the response's objects in time slices. A session refers to those that it
    keeps."""
    while read.fetched:
        del read.fetched[-CHUNK_PARTITIONS:]
        yield
    while rows:
        read.unknown -= set(rows[-CHUNK_PARTITIONS:])
        del rows[-CHUNK_PARTITIONS:]
        yield
    while wanted:
        for _ in range(min(CHUNK_PARTITIONS, len(wanted))):
            wanted.popitem()
        yield
