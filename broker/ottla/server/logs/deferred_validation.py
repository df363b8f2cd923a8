"""Validates large and compressed batches in worker processes, outside the event loop.

Called by the produce handler when a log raises `ValidationDeferred`: a few bytes from a client can hold a
million records, and iterating over them in Python takes long. A worker process (`storage.validation_worker`)
validates the batch and returns it ready to append. Processes start when they are first needed. Each has a
thread, which only waits for it. If a process dies, its batch fails with UNKNOWN_SERVER_ERROR, and the next
batch gets a new process.
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
"""Two, so that one client's expensive batches do not block those of all others."""
TIMEOUT_S: Final = 600.0
"""Longer than any batch takes that a worker has memory for."""

ValidationResult: TypeAlias = ValidatedBatch | KafkaError


class DeferredValidation:
    """See the module. Belongs to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(WORKERS, thread_name_prefix="validation")
        self._thread_local = threading.local()
        self._workers: set[_Worker] = set()
        self._closed = False
        self.submitted = 0
        """Batches submitted so far, for tests."""

    @property
    def pids(self) -> list[int]:
        """The pids of the running worker processes."""
        return [worker.pid for worker in list(self._workers)]

    def submit(
        self,
        records: bytes | memoryview,
        config: LogConfig,
        now_ms: int,
        done: Callable[[ValidationResult], None],
    ) -> None:
        """Validate `records` by `config`; `done` is called on the loop with the result. The records must stay
        unchanged until then."""
        self.submitted += 1
        if self._closed:
            done(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker is shutting down"))
            return
        work = self._threads.submit(self._validate, records, config, now_ms)
        work.add_done_callback(lambda work: self._report(work, done))

    def _report(self, work: Future[ValidationResult], done: Callable[[ValidationResult], None]) -> None:
        """In the thread."""
        result = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR) if work.cancelled() else work.result()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(done, result)

    def _validate(self, records: bytes | memoryview, config: LogConfig, now_ms: int) -> ValidationResult:
        """In a thread, which has a worker of its own."""
        worker: _Worker | None = getattr(self._thread_local, "worker", None)
        try:
            if worker is None:
                worker = self._thread_local.worker = _Worker()
                self._workers.add(worker)
                if self._closed:
                    worker.kill()
            return worker.validate(records, config, now_ms)
        except (OSError, EOFError) as problem:
            if worker is not None:
                self._thread_local.worker = None
                self._workers.discard(worker)
                worker.kill()
            if not self._closed:
                log.warning("A validation worker died: %s", problem)
            return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the records could not be validated")

    async def close(self) -> None:
        """Stop validating, and wait until the processes have ended."""
        self._closed = True
        for worker in list(self._workers):
            worker.kill()
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)


class _Worker:
    """A worker process. One thread uses it; any thread may kill it."""

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

    def validate(self, records: bytes | memoryview, config: LogConfig, now_ms: int) -> ValidationResult:
        """Raises OSError or EOFError if the process died or took longer than TIMEOUT_S."""
        jobs, answers = self._process.stdin, self._process.stdout
        assert jobs is not None
        assert answers is not None
        settings = pickle.dumps(config)
        jobs.write(JOB.pack(len(settings), len(records), now_ms) + settings)
        jobs.write(records)
        jobs.flush()
        if not self._readable.poll(TIMEOUT_S * 1000):
            raise EOFError(f"no answer in {TIMEOUT_S:.0f} s")
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
