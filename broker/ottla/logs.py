"""Log configuration of all processes: one line for each record, with unprintable characters escaped.

OTTLA_LOG_FORMAT is the format of the lines: `text` (the default), `logfmt` (key=value) or `json`. A record
may have `fields` besides its message (`extra={"fields": …}`), which become keys.

Called first by long-running commands. Clients choose many of the logged values, some of them before
authentication: SASL mechanisms, client ids, names of topics and groups. Unprintable characters of a record
are written as escapes, and lines of a traceback are indented, so that a client can neither forge a record nor
control a terminal.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeAlias

LINE: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
FORMAT_VARIABLE: Final = "OTTLA_LOG_FORMAT"
_INDENT: Final = "    "
_BARE: Final = re.compile(r"[^\s\"=\\]+")

_ExceptionInfo: TypeAlias = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)


def configure(level: int | str = logging.INFO, *, filename: Path | None = None) -> None:
    """Log records of this level and above to standard error, or append them to a file."""
    handler = logging.StreamHandler() if filename is None else logging.FileHandler(filename, encoding="utf-8")
    chosen = os.environ.get(FORMAT_VARIABLE) or "text"
    handler.setFormatter(FORMATTERS.get(chosen, FORMATTERS["text"])())
    logging.basicConfig(level=level, handlers=[handler])
    if chosen not in FORMATTERS:
        formats = ", ".join(FORMATTERS)
        logging.getLogger(__name__).warning("%s=%s: it must be %s", FORMAT_VARIABLE, chosen, formats)


class LineFormatter(logging.Formatter):
    """Time, level, logger, message, and fields as key=value."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        line = super().formatMessage(record)
        fields: Mapping[str, object] = getattr(record, "fields", {})
        return escaped(f"{line} {_pairs(fields)}" if fields else line)

    def formatException(self, ei: _ExceptionInfo | Any) -> str:  # noqa: N802 (logging's name)
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 (logging's name)
        return _indented(super().formatStack(stack_info))


class LogfmtFormatter(logging.Formatter):
    """key=value, with the time in UTC; an exception is one value."""

    def format(self, record: logging.LogRecord) -> str:
        return escaped(_pairs(_keys(self, record)))


class JsonFormatter(logging.Formatter):
    """A JSON object, with the time in UTC; an exception is one value."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_keys(self, record), default=str)  # ASCII: what is not, is escaped


FORMATTERS: Final[Mapping[str, Callable[[], logging.Formatter]]] = {
    "text": lambda: LineFormatter(LINE),
    "logfmt": LogfmtFormatter,
    "json": JsonFormatter,
}


def _keys(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, object]:
    time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    keys: dict[str, object] = {
        "time": time.replace("+00:00", "Z"),
        "level": record.levelname,
        "logger": record.name,
        "message": record.getMessage(),
        **getattr(record, "fields", {}),
    }
    if record.exc_info:
        keys["exception"] = formatter.formatException(record.exc_info)
    if record.stack_info:
        keys["stack"] = record.stack_info
    return keys


def _pairs(fields: Mapping[str, object]) -> str:
    return " ".join(f"{key}={_quoted(str(value))}" for key, value in fields.items())


def _quoted(text: str) -> str:
    return text if _BARE.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """The text with a backslash escape for each character that is not printable."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _indented(text: str) -> str:
    return "\n".join(_INDENT + escaped(line) for line in text.split("\n"))
