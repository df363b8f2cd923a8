"""The text of `kubectl ottla rebalance`: a proposal, its progress, and the last result, as tables.

Pure: `status.rebalance` in the API's form in, text out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ottla_operator.rehearsal.report import duration_text, size_text

_MOVES_SHOWN: Final = 20


def rebalance_text(status: Mapping[str, Any], *, all_moves: bool = False) -> str:
    """`status`: status.rebalance."""
    return "\n".join(_lines(status, all_moves=all_moves)) + "\n"


def _lines(status: Mapping[str, Any], *, all_moves: bool) -> Iterator[str]:
    message = status.get("message", "")
    yield f"{status.get('phase', 'Measuring')}" + (f": {message}" if message else "")
    proposal, progress, last = (status.get(name) for name in ("proposal", "progress", "last"))
    if proposal is not None:
        yield ""
        yield from _proposal(proposal, all_moves=all_moves)
    if progress is not None:
        moved, total = progress.get("moved", 0), progress.get("total", 0)
        left = size_text(progress.get("bytesLeft", 0))
        yield f"progress: {moved} of {total} partitions, {left} left, since {progress['startedAt']}"
    if last is not None:
        yield f"last: {last['id']} {last['result']} at {last['endedAt']}: {last.get('message', '')}"


def _proposal(proposal: Mapping[str, Any], *, all_moves: bool) -> Iterator[str]:
    seconds = proposal.get("seconds")
    time = "unknown, there is no throttle" if seconds is None else duration_text(seconds)
    yield from _table(
        [
            ("proposal", proposal["id"]),
            ("reason", proposal["reason"]),
            ("partitions", f"{proposal['partitions']}, {proposal['leaders']} of them with a new leader"),
            ("replicas", str(proposal["replicas"])),
            ("bytes", size_text(proposal["bytes"])),
            ("time", time),
            ("score", f"{proposal['scoreBefore']} -> {proposal['scoreAfter']} of 100"),
        ]
    )
    yield ""
    rows = [("GOAL", "KIND", "NOW", "MET", "AFTER", "MET")]
    rows += [
        (
            goal["name"],
            "hard" if goal.get("hard") else "soft",
            goal.get("before", ""),
            _yes(goal["metBefore"]),
            goal.get("after", ""),
            _yes(goal["metAfter"]),
        )
        for goal in proposal.get("goals", ())
    ]
    yield from _table(rows)
    yield ""
    moves = [(t["topic"], *each.split("=")) for t in proposal.get("moves", ()) for each in t["partitions"]]
    shown = moves if all_moves else moves[:_MOVES_SHOWN]
    yield from _table([("TOPIC", "PARTITION", "NEW REPLICAS"), *shown])
    if len(shown) < len(moves):
        yield f"and {len(moves) - len(shown)} more (--all)"
    yield ""


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "   ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
