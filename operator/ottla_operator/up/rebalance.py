"""`ottla up rebalance`: requests for the rebalances by load of a running `ottla up`.

It reads the state that `up.store` keeps in the data folder, and writes the annotation into requests.json
there, which the store reads with the files.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from ottla_operator.rebalance_command import Options, rebalance_options, run_rebalance
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.common import REBALANCE_ANNOTATION
from ottla_operator.up.store import REQUESTS, STATE

_POLL_S: Final = 0.5


class FolderRequests:
    """The interface `Requests` over a data folder."""

    def __init__(self, data: Path) -> None:
        """Raises ClickException when no `ottla up` runs there."""
        self._data = data
        if not _is_running(data):
            raise click.ClickException(f"no `ottla up` runs over the data folder {data}; set it with --data")

    def _cluster(self) -> Mapping[str, Any]:
        content = json.loads((self._data / STATE).read_text())
        kind = BrokerCluster.definition.kind
        clusters = [item for item in content["resources"] if item["kind"] == kind]
        if not clusters:
            raise click.ClickException(f"the data folder {self._data} has no {kind}")
        return min(clusters, key=lambda item: str(item["metadata"]["creationTimestamp"]))

    def state(self) -> Mapping[str, Any]:
        return self._cluster()["status"].get("rebalance") or {}

    def request(self, value: str) -> None:
        metadata, path = self._cluster()["metadata"], self._data / REQUESTS
        before = json.loads(path.read_text()) if path.exists() else {}
        key = f"{BrokerCluster.definition.kind}/{metadata['name']}"
        in_force = (metadata.get("annotations") or {}).get(REBALANCE_ANNOTATION)
        if in_force is not None and in_force != before.get(key, {}).get(REBALANCE_ANNOTATION):
            raise click.ClickException(
                f"the file of {key} sets the annotation {REBALANCE_ANNOTATION}: remove it from the file"
            )
        partial = path.with_suffix(".tmp")
        partial.write_text(json.dumps({**before, key: {REBALANCE_ANNOTATION: value}}))
        partial.replace(path)


def _is_running(data: Path) -> bool:
    """Whether an `ottla up` holds the lock of the data folder."""
    try:
        with (data / "up.lock").open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


@click.command(short_help="Show, request, approve or cancel a rebalance by load.")
@click.option(
    "--data",
    default="ottla-data",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The data folder of the `ottla up` that runs.",
)
@rebalance_options
def rebalance(data: Path, **options: Any) -> None:
    """Show the proposed rebalance by load and its progress; request, approve or cancel one.

    A proposal moves nothing until it is approved, unless spec.rebalance.mode is Auto.
    """
    run_rebalance(FolderRequests(data), Options(**options), f"ottla up rebalance --data {data}", _POLL_S)
