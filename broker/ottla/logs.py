"""Log configuration of all processes: one line for each record, with unprintable characters escaped.

Called first by long-running commands. Clients choose many of the logged values, some of them before
authentication: SASL mechanisms, client ids, names of topics and groups. Unprintable characters of a record
are written as escapes, and lines of a traceback are indented, so that a client can neither forge a record nor
control a terminal.
"""

from __future__ import annotations

import logging
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeAlias

LINE: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_INDENT: Final = "    "

_ExceptionInfo: TypeAlias = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)


def configure(level: int | str = logging.INFO, *, filename: Path | None = None) -> None:
    """Log records of this level and above to standard error, or append them to a file."""
    handler = logging.StreamHandler() if filename is None else logging.FileHandler(filename, encoding="utf-8")
    handler.setFormatter(LineFormatter(LINE))
    logging.basicConfig(level=level, handlers=[handler])


class LineFormatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        return escaped(super().formatMessage(record))

    def formatException(self, ei: _ExceptionInfo | Any) -> str:  # noqa: N802 (logging's name)
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 (logging's name)
        return _indented(super().formatStack(stack_info))


def escaped(text: str) -> str:
    """The text with a backslash escape for each character that is not printable."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _indented(text: str) -> str:
    return "\n".join(_INDENT + escaped(line) for line in text.split("\n"))
