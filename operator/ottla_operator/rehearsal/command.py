"""Prints a plan and ends the command, for `kubectl ottla plan` and `ottla up --plan`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NoReturn

import click

from ottla_operator.rehearsal.changes import Refused
from ottla_operator.rehearsal.report import Planned, broker_of, json_of, text_of


def show_plan(plan: Callable[[int | None], Planned], fail: str | None, output: str | None) -> NoReturn:
    """Exit with 0 when nothing would change, with 1 when something would, with 2 on errors."""
    try:
        planned = plan(broker_of(fail))
    except Refused as refused:
        for problem in refused.problems:
            click.echo(f"refused: {problem}", err=True)
        raise click.exceptions.Exit(2) from None
    except click.ClickException as error:
        error.show()
        raise click.exceptions.Exit(2) from None
    report = json_of(planned)
    click.echo(json.dumps(report, indent=2) if output else text_of(report), nl=bool(output))
    raise click.exceptions.Exit(1 if planned.changes_something else 0)
