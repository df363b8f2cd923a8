"""Validates large and compressed batches in worker processes, outside the event loop.

Called by the produce handler when a log raises `ValidationDeferred`: a few bytes from a client can hold a
million records, and iterating over them in Python takes long. A worker process validates the batch and
returns it ready to append. If a process dies, its batch fails with UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from ottla.ports.workers import ProcessDied, ProcessLimits, Workers
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.log import ValidatedBatch
from ottla.storage.log_config import LogConfig
from ottla.storage.log_validator import validate_in_worker

log = logging.getLogger(__name__)

WORKERS: Final = 2
"""Two, so that one client's expensive batches do not block those of all others."""
LIMITS: Final = ProcessLimits(niceness=5, memory_bytes_max=1 << 30, timeout_s=600.0)
"""The time is longer than any batch takes that a worker has memory for."""

ValidationResult: TypeAlias = ValidatedBatch | KafkaError


class DeferredValidation:
    """See the module. Belongs to the event loop."""

    def __init__(self, workers: Workers) -> None:
        self._processes = workers.processes("validation", WORKERS, LIMITS)
        self._closed = False
        self.submitted = 0
        """Batches submitted so far, for tests."""

    @property
    def pids(self) -> list[int]:
        """The pids of the running worker processes."""
        return self._processes.pids

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
        work = self._processes.submit(validate_in_worker, memoryview(records), config, now_ms)
        work.add_done_callback(partial(self._report, done))

    def _report(self, done: Callable[[ValidationResult], None], work: asyncio.Future[ValidatedBatch]) -> None:
        problem: BaseException | None = asyncio.CancelledError() if work.cancelled() else work.exception()
        done(work.result() if problem is None else self._error(problem))

    def _error(self, problem: BaseException) -> KafkaError:
        if isinstance(problem, KafkaError):
            return problem
        if isinstance(problem, MemoryError):
            return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "the records take too much memory")
        if isinstance(problem, ProcessDied | OSError | asyncio.CancelledError):
            if not self._closed:
                log.warning("A validation worker died: %s", problem)
            return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the records could not be validated")
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the validation failed: {problem!r}")

    async def close(self) -> None:
        """Stop validating, and wait until the processes have ended."""
        self._closed = True
        await self._processes.stop()
