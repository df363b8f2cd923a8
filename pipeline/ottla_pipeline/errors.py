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
        # An error of a Python task: its message is below the Python stack and above the Java stack.
        python = [line for line in lines[1:] if _PYTHON_ERROR.match(line)]
        if python:
            return python[0][:600]
    essential = [
        line for line in lines if not line.startswith(("at ", "=== ", "Current ", "{", "JVM stacktrace"))
    ]
    return " ".join(essential[:3])[:600]
