"""`kubectl ottla rebalance` and `ottla up rebalance`: what both print and request.

They differ in how they reach the resource (`Requests`). A request is a value of the annotation
`ottla.dev/rebalance`, which the operator answers in `status.rebalance`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import click

from ottla_operator.rehearsal.report import duration_text, size_text

_MOVES_SHOWN: Final = 20
F = TypeVar("F", bound=Callable[..., Any])


class Requests(Protocol):
    """A cluster's rebalances."""

    def state(self) -> Mapping[str, Any]:
        """status.rebalance; empty without one."""
        ...

    def request(self, value: str) -> None:
        """Set the annotation."""
        ...


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asks for; nothing: the state."""

    dry_run: bool
    approve: str | None
    cancel: bool
    all_moves: bool


def rebalance_options(command: F) -> F:
    """The options of both commands, for the fields of `Options`."""
    for option in (
        click.option("--all", "all_moves", is_flag=True, help="Print all moves."),
        click.option(
            "--cancel", is_flag=True, help="Decline the proposal, or take back what is in progress."
        ),
        click.option("--approve", metavar="ID", help="Have the proposal of this id executed."),
        click.option("--dry-run", is_flag=True, help="Have a new proposal computed from the loads of now."),
    ):
        command = option(command)
    return command


def run_rebalance(requests: Requests, options: Options, command: str, poll_s: float) -> None:
    """`command`: as the user types it, for the hints. Raises ClickException."""
    if sum((options.dry_run, options.approve is not None, options.cancel)) > 1:
        raise click.UsageError("--dry-run, --approve and --cancel exclude each other")
    state = requests.state()
    current = (state.get("proposal") or {}).get("id")
    if options.approve is not None:
        if options.approve != current:
            known = f"the current proposal is {current}" if current else "there is no proposal"
            raise click.ClickException(f"{options.approve} cannot be approved: {known}")
        requests.request(f"approve:{current}")
        click.echo(f"approved: {current}; {command} shows the progress")
        return
    if options.cancel:
        if current is None:
            raise click.ClickException("there is no proposal and no rebalance in progress")
        requests.request(f"cancel:{current}")
        click.echo(f"cancelled: {current}; {command} shows the progress")
        return
    if options.dry_run:
        state = _proposed(requests, state, poll_s)
    click.echo(rebalance_text(state, all_moves=options.all_moves) if state else "no rebalance", nl=not state)
    if options.dry_run and state.get("proposal"):
        click.echo(f"to execute it: {command} --approve {state['proposal']['id']}")


def _proposed(requests: Requests, state: Mapping[str, Any], poll_s: float) -> Mapping[str, Any]:
    """The state with the answer to a new request."""
    if state.get("progress"):
        raise click.ClickException("a rebalance is in progress; --cancel cancels it")
    token = uuid.uuid4().hex[:12]
    requests.request(f"propose:{token}")
    printed = ""
    while True:
        state = requests.state()
        if state.get("handledRequest") == token:
            return state
        message = state.get("message") or "loads are measured"
        if message != printed:
            click.echo(f"waiting: {message}", err=True)
            printed = message
        time.sleep(poll_s)


# ---- the text


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
