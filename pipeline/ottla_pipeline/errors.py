"""Errors that end a job, and the summary of Spark's error messages."""

from __future__ import annotations

import re


class JobStartError(Exception):
    """The job cannot start or continue with its folders, topics or schemas; the message says why and what
    to do."""


_PYTHON_ERROR = re.compile(r"^[A-Za-z_][\w.]*: \S")


def error_summary(error: Exception) -> str:
    """The essential lines of a Spark error message, without query plans and stack traces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "Traceback (most recent call last):" in str(error).partition("\tat ")[0]:
        # Of a task in Python: what it raised stands below its stack, and above Java's.
        python = [line for line in lines[1:] if _PYTHON_ERROR.match(line)]
        if python:
            return python[0][:600]
    told = [line for line in lines if not line.startswith(("at ", "=== ", "Current ", "{", "JVM stacktrace"))]
    return " ".join(told[:3])[:600]
