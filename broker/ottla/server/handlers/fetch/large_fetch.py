"""A Fetch of thousands of partitions, read and answered in slices of the loop's time.

Called by the dispatcher with what `ottla.server.handlers.fetch.handler` would read in one go. Partitions are
read some hundred at a time, each lot under the limits that the lots before it left. A fetch that begins a
session is answered at once: the next one, which is incremental, waits. One without a session waits for news
of a partition, and reads everything again then; not when it names many unknown partitions. An incremental one
goes the usual way: it reads a bounded number.
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
    Wanted,
    WantedPartition,
    WholeFetch,
    wanted_partitions,
)
from ottla.server.dispatch.purgatory import PartitionKey
from ottla.server.dispatch.sliced_work import SlicedTask
from ottla.server.dispatch.splits import Split, parts
from ottla.server.handlers.fetch.down_conversion import CONVERTED_BELOW
from ottla.server.handlers.fetch.handler import FetchHandler, error_response
from ottla.server.handlers.fetch.read import FetchRead
from ottla.server.logs.page_cache_reader import TRIES_MAX, tried

LOT: Final = 200
UNKNOWN_MAX: Final = 1000
"""A fetch with more unknown partitions does not wait."""
CONVERTED_MAX: Final = 10_000
"""Partitions of a fetch whose records may have to be converted."""
FORGOTTEN_MAX: Final = 20_000
_TOPICS: Final = Split("topics", "", "partitions", key=None)


class Lot:
    """Some of the partitions of a fetch."""

    has_more = False
    session = None

    def __init__(self, wanted: list[WantedPartition]) -> None:
        self._wanted = wanted

    def __len__(self) -> int:
        return len(self._wanted)

    def to_read(self) -> list[WantedPartition]:
        return self._wanted


class News:
    """Waits in the purgatory until a partition has news, or the time is over."""

    def __init__(self, watched: list[PartitionKey], *, follower: bool) -> None:
        self.watched = watched
        self.follower = follower
        self.bucket = 0
        self.done = False
        self.came: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """With whether the time is over."""

    def news(self, key: PartitionKey) -> None:
        if not self.came.done():
            self.came.set_result(False)

    def expire(self) -> None:
        if not self.came.done():
            self.came.set_result(True)


class LargeFetches:
    def __init__(self, handler: FetchHandler) -> None:
        self._handler = handler

    def routes(self) -> list[Route]:
        return [Route(FetchRequest, self._handler.handle, error_response, large=self.handle)]

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
        if not isinstance(context, WholeFetch):
            handler.serve(request, message, context)
            return
        read = handler.reading(request, message, context)
        rows = list(wanted.values())
        await self._read(request, task, read, rows)
        begins = message.session_epoch == 0 and version >= 7
        if not begins:
            await self._wait(request, task, read, rows, message)
        if version < CONVERTED_BELOW:
            handler.answers.send(request, read)
        else:
            await task.run(handler.answers.send_steps(request, read))
        await task.run(_released(rows, wanted, read))

    def _wanted(self, message: FetchRequest, version: int, wanted: Wanted) -> Generator[None, None, None]:
        name_of, by_topic_id = self._handler.cache.topic_name, version >= TOPIC_IDS_FROM
        for part in parts(message, _TOPICS, lambda: LOT) if message.topics else ():
            if part is not None:
                assert isinstance(part, FetchRequest)
                wanted.update(wanted_partitions(part, by_topic_id, name_of))
            yield

    async def _read(
        self, request: Request, task: SlicedTask, read: FetchRead, rows: list[WantedPartition]
    ) -> None:
        """Read everything; `read` has the outcome then."""
        read.begin()
        for at in range(0, len(rows), LOT):
            lot = Lot(rows[at : at + LOT])
            tries = 0.0
            while True:
                await task.turn()
                piece = read.piece(lot)
                piece.may_wait = tries >= TRIES_MAX
                unknown = piece.read_lot()
                if not piece.misses:
                    break
                tries += tried(piece.misses)
                loaded: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
                self._handler.page_cache_reader.fetch(piece.misses, loaded.set_result)
                if await task.wait(loaded, is_part=True) is not None:
                    tries = TRIES_MAX  # the read itself runs into it, and says so
            read.add(piece, unknown)
        read.end()

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
        while not read.has(message.min_bytes) and len(read.unknown) <= UNKNOWN_MAX:
            left_ms = int((deadline - loop.time()) * 1000)
            if left_ms <= 0 or request.abandoned:
                return
            watched = [
                (answer.wanted.topic, answer.wanted.asked.partition)
                for answer in read.answers
                if answer.wanted.topic is not None and answer.wanted not in read.unknown
            ]
            news = News(watched, follower=read.follower)
            purgatory = self._handler.purgatory
            purgatory.watch_fetch(news, left_ms)
            try:
                await task.wait(news.came, is_part=False)
            finally:
                news.done = True
                purgatory.unwatch_fetch(news)
            await self._read(request, task, read, rows)


def _released(rows: list[WantedPartition], wanted: Wanted, read: FetchRead) -> Generator[None, None, None]:
    """Give up what was asked and answered, in steps. What a session keeps, it refers to."""
    while read.answers:
        del read.answers[-LOT:]
        yield
    while rows:
        read.unknown -= set(rows[-LOT:])
        del rows[-LOT:]
        yield
    while wanted:
        for _ in range(min(LOT, len(wanted))):
            wanted.popitem()
        yield
