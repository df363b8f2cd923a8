"""The job of a worker process that validates a large or compressed batch.

Submitted by the broker's server for validations that could block the event loop. It has no state and touches
no file. Records that take more memory than the process may have raise MemoryError.
"""

from __future__ import annotations

from ottla.ports.files import Files
from ottla.storage.log_config import LogConfig
from ottla.storage.log_validator import validate


def validate_records(
    files: Files, records: bytes | memoryview, config: LogConfig, now_ms: int
) -> tuple[bytes | memoryview, int]:
    """See `log_validator.validate`. Raises KafkaError."""
    return validate(records, config, now_ms)
