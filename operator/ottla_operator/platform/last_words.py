"""What a process said last, for those who want to know why it ended. Used by every platform."""

from __future__ import annotations


def last_words(log_tail: str) -> str:
    """Why a process ended, as far as its log tells: the last line above INFO, or else the last one."""
    lines = [line.strip() for line in log_tail.splitlines() if line.strip()]
    told = [line for line in lines if " INFO " not in line] or lines
    return told[-1].rpartition(" ERROR ")[2].strip() if told else ""
