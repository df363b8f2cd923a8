"""The process that looks into large or compressed batches: `python -m ottla.storage.append_worker`.

Started by `server.deferred_validation`, for appends that could hold up the event loop. It takes one job after
another from its standard input (a topic's settings and what a client sent for a partition), does
`batch_rules.settle`, and answers on its standard output. It has no state and touches no file: it may be
killed at any time, and ends with its input. It is nicer to others than the broker is, and may take only so
much memory: who makes it take more is answered MESSAGE_TOO_LARGE.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import struct
import sys
from typing import BinaryIO, Final

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.batch_rules import settle
from ottla.storage.log_config import LogConfig
from ottla.storage.record_checks import RecordError, RecordsRefused

JOB: Final = struct.Struct(">IIq")
"""Lengths of the pickled settings and of the records, which follow, and the time in ms."""
ANSWER: Final = struct.Struct(">BqI")
"""SETTLED or REFUSED, the log append time, and the length of what follows: a batch, or a pickled refusal."""
SETTLED: Final = 0
REFUSED: Final = 1

MEMORY_BYTES_MAX: Final = 1 << 30
_NICENESS: Final = 5

Refusal = tuple[int, str, list[tuple[int, int, str]]]
"""Error code, message, and single records' index, code and message."""


def refusal(error: KafkaError) -> Refusal:
    records = error.record_errors if isinstance(error, RecordsRefused) else []
    return int(error.code), error.message, [(r.batch_index, int(r.code), r.message) for r in records]


def error_of(refused: Refusal) -> KafkaError:
    code, message, records = refused
    if records:
        return RecordsRefused([RecordError(index, ErrorCode.of(c), text) for index, c, text in records])
    return KafkaError(ErrorCode.of(code), message)


def work(jobs: BinaryIO, answers: BinaryIO) -> None:
    """Until the input ends."""
    while head := _read(jobs, JOB.size):
        config_size, size, now_ms = JOB.unpack(head)
        config: LogConfig = pickle.loads(_read(jobs, config_size))
        kind, append_time, data = _answer(_read(jobs, size), config, now_ms)
        answers.write(ANSWER.pack(kind, append_time, len(data)))
        answers.write(data)
        answers.flush()


def _answer(records: bytes, config: LogConfig, now_ms: int) -> tuple[int, int, bytes | memoryview]:
    try:
        batch, append_time = settle(records, config, now_ms)
    except KafkaError as error:
        problem = refusal(error)
    except MemoryError:
        problem = int(ErrorCode.MESSAGE_TOO_LARGE), "the records take too much memory", []
    except Exception as error:
        problem = int(ErrorCode.UNKNOWN_SERVER_ERROR), f"looking into the records failed: {error!r}", []
    else:
        return SETTLED, append_time, batch
    return REFUSED, -1, pickle.dumps(problem)


def _read(source: BinaryIO, size: int) -> bytes:
    """So many bytes; none at the end. A broker that dies in between leaves a rest, which is no job."""
    data = source.read(size)
    return data if len(data) == size else b""


def main() -> None:
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt, EOFError):
        work(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
