"""The resources of a cluster that `ottla up` runs, for `resources`: reads them from its data folder.

`ottla up` replaces the file atomically after each change. A resource whose file was never valid has no spec,
and so no reference to its cluster; `ottla up` runs one cluster, to which all resources of the file belong.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

from ottla_console.cluster.problems import Kind, Problem
from ottla_console.cluster.resources import Found, ReadingFailed

STATE: Final = "state.json"
_CLUSTER: Final = "BrokerCluster"


class OfUp:
    """The source of the BrokerCluster over a data folder of `ottla up`."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / STATE
        self.what = f"BrokerCluster of ottla up in {folder}"

    async def close(self) -> None:
        pass

    async def read(self) -> Found:
        try:
            text = await asyncio.to_thread(self._file.read_text)
        except OSError as error:
            raise ReadingFailed(self._problem(f"{self._file}: {error.strerror}")) from None
        content: dict[str, Any] = json.loads(text)
        resources = content["resources"]
        clusters = [each for each in resources if each["kind"] == _CLUSTER]
        if not clusters:
            raise ReadingFailed(self._problem(f"{self._file} has no {_CLUSTER}"))
        cluster = min(clusters, key=_age)
        # A file that cannot be read at all is a warning: it belongs to no resource.
        status = cluster["status"]
        status["warnings"] = [*(status.get("warnings") or ()), *content.get("errors", ())]
        owner = {"clusterRef": {"name": cluster["metadata"]["name"]}}
        others = [{**each, "spec": each["spec"] or owner} for each in resources if each["kind"] != _CLUSTER]
        return Found(cluster, others, content.get("events", ()))

    def _problem(self, reason: str) -> Problem:
        advice = "The page shows what the brokers say, and tries again by itself."
        return Problem(Kind.UNREACHABLE, self.what, reason, advice)


def _age(resource: dict[str, Any]) -> tuple[str, str]:
    """A sort key as in `ottla up`, which runs the oldest cluster."""
    return resource["metadata"]["creationTimestamp"], resource["metadata"]["name"]
