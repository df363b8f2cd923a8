"""The state, kept up to date with the log; and writes, one at a time, answered after they have been read
back.

Called by `app` and `api` on one event loop, which alone accesses the state. A log (`log.TopicLog`) does the
I/O in threads.

Several instances cannot assign one id to two schemas: a write is decided on the state after a claim and a
read to the end, and is appended only if no other instance claimed since (see `log`). A fenced instance
decides again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from ottla_pipeline.registry.checks import Job, Result
from ottla_pipeline.registry.decisions import Decision
from ottla_pipeline.registry.errors import CheckFailed, Refused
from ottla_pipeline.registry.log import Deliver, LogFailed, LogRecord, RecordTooLarge
from ottla_pipeline.registry.records import (
    Key,
    UnreadableRecord,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from ottla_pipeline.registry.schemas import DecisionChecks, PendingChecks, ResultCache
from ottla_pipeline.registry.state import State

log = logging.getLogger(__name__)
WRITE_S: Final = 30.0
CATCH_UP_S: Final = 10.0
CHECKS_S: Final = 20.0
START_S: Final = 300.0
BROKERS_S: Final = 60.0
Answer = TypeVar("Answer")
Decide = Callable[[State, DecisionChecks], Answer]


class Log(Protocol):
    """The interface of `log.TopicLog`."""

    topic: str

    def ensure_topic(self) -> None: ...
    def read(self, deliver: Deliver) -> None: ...
    def end(self) -> int: ...
    def claim(self) -> None: ...
    def append(self, records: Sequence[tuple[bytes, bytes | None]], write: bytes) -> None: ...
    def release(self) -> None: ...
    def stop(self) -> None: ...


class Checks(Protocol):
    """The interface of `worker.WorkerPool`."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def run(self, job: Job, client: str) -> Result: ...


class Store:
    """One instance's state and writes. `reached` is the next offset to read; `claimed` is whether this
    instance is the writer; `failure` is why it is not healthy."""

    def __init__(self, topic_log: Log, checks: Checks) -> None:
        self.state = State()
        self._checks = checks
        self._cache = ResultCache()
        self.topic = topic_log.topic
        self.reached = 0
        self.claims = 0
        self.claimed = False
        self.failure: str | None = "not read to the end yet"
        self._log = topic_log
        self._keys: dict[Key, bytes] = {}
        self._writing = asyncio.Lock()
        self._moved = asyncio.Condition()
        self._awaited: bytes | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def start(self) -> None:
        """Reads the topic to its end. Raises TopicUnusable, LogFailed."""
        self._loop = asyncio.get_running_loop()
        await self._checks.start()
        deadline = self._loop.time() + BROKERS_S
        await self._retry(self._log.ensure_topic, deadline)
        self._thread = threading.Thread(target=self._read, name="registry-reader", daemon=True)
        self._thread.start()
        # A topic that was just created has no leader yet.
        await self._reach(await self._retry(self._log.end, deadline), START_S)
        self.failure = None
        log.info(
            "topic %s read to offset %d: %d subjects", self.topic, self.reached, len(self.state.subjects)
        )

    async def _retry(self, call: Callable[[], Answer], deadline: float) -> Answer:
        """The result of a blocking call, retried until `deadline`, because brokers may start at the same
        time."""
        while True:
            try:
                return await asyncio.to_thread(call)
            except LogFailed as failure:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                log.warning("%s; trying again", failure)
                await asyncio.sleep(1.0)

    async def stop(self) -> None:
        await self._checks.stop()
        await asyncio.to_thread(self._log.stop)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 5.0)

    async def catch_up(self) -> None:
        """Returns when all records that were in the log at the call have been read. Raises Refused."""
        try:
            # Concurrent calls each request the end: a shared result could be too old for the later one.
            await self._reach(await asyncio.to_thread(self._log.end), CATCH_UP_S)
        except LogFailed as failure:
            raise Refused(50001, f"{failure}; try again") from failure

    async def decide(
        self, decide: Decide[Answer], client: str, schemas: DecisionChecks | None = None
    ) -> Answer:
        """The result of a pure function of the state, after the schema checks that it needs. Raises
        Refused. `client` is the client that the checks are scheduled for."""
        schemas = schemas or DecisionChecks(self._cache)
        deadline = asyncio.get_running_loop().time() + CHECKS_S
        while True:
            try:
                return decide(self.state, schemas)
            except PendingChecks as pending:
                for job in pending.jobs:
                    if asyncio.get_running_loop().time() > deadline:
                        raise CheckFailed(f"its checks take longer than {CHECKS_S:.0f} s") from None
                    schemas.learn(job, await self._checks.run(job, client))

    async def write(self, decide: Decide[Decision], client: str) -> Any:
        """The answer of a decision whose records are in the log and in the state. Raises Refused."""
        schemas = DecisionChecks(self._cache)
        try:
            decision = await self.decide(decide, client, schemas)
            if not decision.records:
                return decision.answer
        except CheckFailed:
            raise
        except Refused:
            pass  # the state may be outdated
        async with self._writing:
            if not self.claimed:
                await self.catch_up()
                # A request that is refused does not take the claim from another instance.
                await self.decide(decide, client, schemas)
            return await self._write(decide, client, schemas)

    async def _write(self, decide: Decide[Decision], client: str, schemas: DecisionChecks) -> Any:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WRITE_S
        sent: tuple[bytes, Decision] | None = None
        tries = 0
        while True:
            try:
                if not self.claimed:
                    await asyncio.to_thread(self._log.claim)
                    self.claimed, self.claims = True, self.claims + 1
                    await self._reach(await asyncio.to_thread(self._log.end), CATCH_UP_S)
                if sent is not None and self._awaited is None:
                    return sent[1].answer  # it is in the log, although the commit reported an error
                decision = await self.decide(decide, client, schemas)
                if not decision.records:
                    return decision.answer
                sent = uuid.uuid4().bytes, decision
                await self._append(*sent)
                return decision.answer
            except LogFailed as failure:
                self._unclaim()
                tries += 1
                log.info("write %d of %s failed: %s", tries, self.topic, failure)
                if loop.time() > deadline:
                    raise Refused(50002, f"{failure}; whether it was written is not known") from failure
                await asyncio.sleep(random.uniform(0, min(2.0, 0.05 * 2**tries)))
            except RecordTooLarge as failure:
                self._unclaim()
                raise Refused(42209, f"The schema is too large: {failure}") from failure

    async def _append(self, write: bytes, decision: Decision) -> None:
        encoded = [
            (self._keys.get(record.key) or encode_key(record.key), encode_value(record.key, record.value))
            for record in decision.records
        ]
        self._awaited = write
        await asyncio.to_thread(self._log.append, encoded, write)
        async with self._moved:
            try:
                async with asyncio.timeout(CATCH_UP_S):
                    await self._moved.wait_for(lambda: self._awaited is None or self.failure)
            except TimeoutError:
                raise LogFailed(f"topic {self.topic}: the written records are not readable yet") from None
        if self._awaited is not None:
            raise LogFailed(str(self.failure))

    def _unclaim(self) -> None:
        self.claimed = False
        self._log.release()

    async def _reach(self, end: int, timeout_s: float) -> None:
        async with self._moved:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._moved.wait_for(lambda: self.reached >= end or not self._reads())
            except TimeoutError:
                raise LogFailed(f"topic {self.topic}: at offset {self.reached} of {end}") from None
        if self.reached < end:
            raise LogFailed(str(self.failure))

    def _reads(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    # -- The reader's thread, and what it hands over --

    def _read(self) -> None:
        assert self._loop is not None
        try:
            self._log.read(lambda records, reached: self._hand_over(self._apply(records, reached)))
        except Exception as error:
            log.error("topic %s is no longer read: %s", self.topic, error)
            self._hand_over(self._fail(str(error)))

    def _hand_over(self, work: Any) -> None:
        assert self._loop is not None
        if self._loop.is_closed():
            work.close()
        else:
            asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _apply(self, records: Sequence[LogRecord], reached: int) -> None:
        async with self._moved:
            for record in records:
                self._fold(record)
                if record.write is not None and record.write == self._awaited:
                    self._awaited = None
            self.reached = max(self.reached, reached)
            self._moved.notify_all()

    async def _fail(self, reason: str) -> None:
        async with self._moved:
            self.failure = reason
            self._moved.notify_all()

    def _fold(self, record: LogRecord) -> None:
        try:
            key = decode_key(record.key)
            value = decode_value(key, record.value)
        except UnreadableRecord as error:
            log.warning("topic %s, offset %d, is skipped: %s", self.topic, record.offset, error)
            return
        if value is None:
            self._keys.pop(key, None)
        elif record.key is not None and record.key != encode_key(key):
            self._keys[key] = record.key  # encoded differently: later records of this key use the same bytes
        self.state.apply(key, value)
