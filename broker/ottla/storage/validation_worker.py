"""The process that validates large or compressed batches: `python -m ottla.storage.validation_worker`.

Started by the broker's server for validations that could block the event loop. It reads jobs from standard
input (a topic's configuration and a client's records for a partition), calls `log_validator.validate`, and
writes the result to standard output. It has no state and touches no file: it may be killed at any time, and
ends with its input. It runs with a lower priority than the broker and a memory limit: records that exceed it
are rejected with MESSAGE_TOO_LARGE.
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
from ottla.storage.log_config import LogConfig
from ottla.storage.log_validator import validate
from ottla.storage.record_validation import InvalidRecords, RecordError

JOB: Final = struct.Struct(">IIq")
"""The lengths of the pickled configuration and of the records, which follow, and the time in ms."""
RESULT: Final = struct.Struct(">BqI")
"""VALID or REJECTED, the log append time, and the length of the batch or the pickled rejection that
follows."""
VALID: Final = 0
REJECTED: Final = 1

MEMORY_BYTES_MAX: Final = 1 << 30
_NICENESS: Final = 5

EncodedError = tuple[int, str, list[tuple[int, int, str]]]
"""Error code, message, and (index, code, message) of each invalid record."""


def encode_error(error: KafkaError) -> EncodedError:
    records = error.record_errors if isinstance(error, InvalidRecords) else []
    return int(error.code), error.message, [(r.batch_index, int(r.code), r.message) for r in records]


def decode_error(encoded: EncodedError) -> KafkaError:
    code, message, records = encoded
    if records:
        return InvalidRecords([RecordError(index, ErrorCode.of(c), text) for index, c, text in records])
    return KafkaError(ErrorCode.of(code), message)


def process_jobs(jobs: BinaryIO, results: BinaryIO) -> None:
    """Process jobs until the input ends."""
    while head := _read(jobs, JOB.size):
        config_size, size, now_ms = JOB.unpack(head)
        config: LogConfig = pickle.loads(_read(jobs, config_size))
        kind, append_time, data = _validate(_read(jobs, size), config, now_ms)
        results.write(RESULT.pack(kind, append_time, len(data)))
        results.write(data)
        results.flush()


def _validate(records: bytes, config: LogConfig, now_ms: int) -> tuple[int, int, bytes | memoryview]:
    try:
        batch, append_time = validate(records, config, now_ms)
    except KafkaError as error:
        problem = encode_error(error)
    except MemoryError:
        problem = int(ErrorCode.MESSAGE_TOO_LARGE), "the records take too much memory", []
    except Exception as error:
        problem = int(ErrorCode.UNKNOWN_SERVER_ERROR), f"the validation failed: {error!r}", []
    else:
        return VALID, append_time, batch
    return REJECTED, -1, pickle.dumps(problem)


def _read(source: BinaryIO, size: int) -> bytes:
    """Read `size` bytes; none at the end. A broker that dies may leave an incomplete job, which is
    ignored."""
    data = source.read(size)
    return data if len(data) == size else b""


def main() -> None:
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt, EOFError):
        process_jobs(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
