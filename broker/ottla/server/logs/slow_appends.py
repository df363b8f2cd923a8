"""Appends that have to look into large or compressed batches leave the event loop.

Called by the produce handler, where a log says `ValidationDeferred`: a few bytes of a client's can hold a
million records, and walking over them is Python. They go to a worker process (`storage.validation_worker`)
and come back as a batch that only needs to be appended. The processes are started when they are first needed;
a broker whose topics ask for nothing of the kind has none. Each is spoken to by a thread, which only waits.
What cannot be done because a process died is refused with UNKNOWN_SERVER_ERROR, and the next one gets a new
process.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import IO, Final, TypeAlias

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.log import ValidatedBatch
from ottla.storage.log_config import LogConfig
from ottla.storage.validation_worker import JOB, RESULT, VALID, decode_error

log = logging.getLogger(__name__)

WORKERS: Final = 2
"""So that one bad client does not hold up all the others' slow appends."""
PATIENCE_S: Final = 600.0
"""Longer than any batch takes that a worker has memory for."""

Verdict: TypeAlias = ValidatedBatch | KafkaError


class SlowAppends:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(WORKERS, thread_name_prefix="slow-append")
        self._here = threading.local()
        self._workers: set[_Worker] = set()
        self._closed = False
        self.submitted = 0
        """How many there were, for metrics and tests."""

    @property
    def pids(self) -> list[int]:
        """Of the processes that there are."""
        return [worker.pid for worker in list(self._workers)]

    def submit(
        self, records: bytes | memoryview, config: LogConfig, now_ms: int, done: Callable[[Verdict], None]
    ) -> None:
        """Have `done` called, on the loop, with what became of the records. They are read meanwhile."""
        self.submitted += 1
        if self._closed:
            done(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker stops"))
            return
        work = self._threads.submit(self._settle, records, config, now_ms)
        work.add_done_callback(lambda work: self._tell(work, done))

    def _tell(self, work: Future[Verdict], done: Callable[[Verdict], None]) -> None:
        """In the thread."""
        verdict = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR) if work.cancelled() else work.result()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(done, verdict)

    def _settle(self, records: bytes | memoryview, config: LogConfig, now_ms: int) -> Verdict:
        """In a thread; its worker is its own."""
        worker: _Worker | None = getattr(self._here, "worker", None)
        try:
            if worker is None:
                worker = self._here.worker = _Worker()
                self._workers.add(worker)
                if self._closed:
                    worker.kill()
            return worker.settle(records, config, now_ms)
        except (OSError, EOFError) as problem:
            if worker is not None:
                self._here.worker = None
                self._workers.discard(worker)
                worker.kill()
            if not self._closed:
                log.warning("a worker for slow appends died: %s", problem)
            return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the records could not be looked into")

    async def close(self) -> None:
        """Nothing is settled any more. Waits for the processes to go."""
        self._closed = True
        for worker in list(self._workers):
            worker.kill()
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)


class _Worker:
    """A process; used by one thread, killed by any."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ottla.storage.validation_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pid = self._process.pid
        self._killed = threading.Lock()
        assert self._process.stdout is not None
        self._readable = select.poll()
        self._readable.register(self._process.stdout.fileno(), select.POLLIN)

    def settle(self, records: bytes | memoryview, config: LogConfig, now_ms: int) -> Verdict:
        """Raises OSError or EOFError when it is dead, also because it took longer than PATIENCE_S."""
        jobs, answers = self._process.stdin, self._process.stdout
        assert jobs is not None
        assert answers is not None
        settings = pickle.dumps(config)
        jobs.write(JOB.pack(len(settings), len(records), now_ms) + settings)
        jobs.write(records)
        jobs.flush()
        if not self._readable.poll(PATIENCE_S * 1000):
            raise EOFError(f"no answer in {PATIENCE_S:.0f} s")
        kind, append_time, size = RESULT.unpack(self._read(answers, RESULT.size))
        data = self._read(answers, size)
        return (data, append_time) if kind == VALID else decode_error(pickle.loads(data))

    def _read(self, answers: IO[bytes], size: int) -> bytes:
        data = answers.read(size)
        if len(data) < size:
            raise EOFError(f"exit status {self._process.wait()}")
        return data

    def kill(self) -> None:
        with self._killed:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with suppress(OSError, ValueError):
                        pipe.close()
