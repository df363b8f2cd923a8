"""Log levels as settings of the resource BROKER_LOGGER (KIP-412), for the handlers of configs.

Levels have log4j's names, loggers Python's. Changes last until the process ends. A logger without its own
level has the level that it inherits.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import IncrementalAlterConfigsRequest

ROOT: Final = "root"
_LEVELS: Final = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG // 2,
}
_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3

Change = IncrementalAlterConfigsRequest.AlterableConfig


def levels() -> dict[str, str]:
    """Each logger's name and effective level."""
    names = [
        name for name, entry in logging.root.manager.loggerDict.items() if isinstance(entry, logging.Logger)
    ]
    return {ROOT: _name(logging.root)} | {name: _name(logging.getLogger(name)) for name in sorted(names)}


def alter(changes: Sequence[Change], *, validate_only: bool) -> None:
    """Set or remove levels of loggers. Raises KafkaError, with nothing changed."""
    for change in changes:
        _check(change)
    if not validate_only:
        for change in changes:
            level = logging.NOTSET if change.config_operation == _DELETE else _LEVELS[change.value or ""]
            _find(change.name).setLevel(level)


def _check(change: Change) -> None:
    name, operation = change.name, change.config_operation
    if operation in (_APPEND, _SUBTRACT):
        word = "APPEND" if operation == _APPEND else "SUBTRACT"
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{word} operation is not allowed for the BROKER_LOGGER resource"
        )
    if operation not in (_SET, _DELETE):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unknown operation type {operation} is not allowed for the BROKER_LOGGER resource",
        )
    if name != ROOT and name not in logging.root.manager.loggerDict:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
    if operation == _DELETE and name == ROOT:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Removing the log level of the {ROOT} logger is not allowed"
        )
    if operation == _SET and change.value not in _LEVELS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {name} to {change.value} as it is not a supported log level. "
            f"Valid log levels are {', '.join(_LEVELS)}",
        )


def _find(name: str) -> logging.Logger:
    return logging.root if name == ROOT else logging.getLogger(name)


def _name(logger: logging.Logger) -> str:
    level = logger.getEffectiveLevel()
    return next((name for name, number in _LEVELS.items() if level >= number), "TRACE")
