"""`ottla up --plan`: what changed files would do to the cluster that an `ottla up` runs over the data folder.

It reads the files of that process and asks its brokers; it changes nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from ottla.metadata.config import read_properties
from ottla_operator.planning.observed import BrokerInstance, KafkaState, Observed, ZooKeeperState
from ottla_operator.platform import probe
from ottla_operator.platform.local import LocalPlatform
from ottla_operator.platform.local_security import SecretFiles
from ottla_operator.rehearsal.changes import changed_resources
from ottla_operator.rehearsal.effects import effects_of
from ottla_operator.rehearsal.rehearse import Situation, rehearse, rehearse_loss
from ottla_operator.rehearsal.report import Planned, clients_of, timing_of
from ottla_operator.resources import AnyResource
from ottla_operator.resources.common import parse_quantity
from ottla_operator.resources.loading import load_folder
from ottla_operator.up.store import FolderStore

_START_MS: Final = 3_000


def plan_files(files: Path, data: Path, port: int, fail: int | None = None) -> Planned:
    """Raises Refused and ClickException."""
    now_ms = time.time_ns() // 1_000_000
    existing = _resources(data, now_ms)
    if not existing:
        raise click.ClickException(f"no `ottla up` has run over {data}; give its folder with --data")
    change = changed_resources(existing, load_folder(files), complete=True, now_ms=now_ms)
    answer = _answer(data)
    kafka = probe.state_of(answer)
    if not kafka.has_controller:
        raise click.ClickException(f"the brokers of {data} do not answer: {kafka.problem}")
    observed = Observed(ZooKeeperState(True), _brokers(data, kafka), kafka, now_ms)
    if fail is not None and fail not in observed.brokers:
        raise click.ClickException(f"--fail: broker {fail} does not exist")
    throttle = change.cluster.spec.rebalance.replication_throttle
    timing, assumptions = timing_of(
        (), parse_quantity(throttle) if throttle is not None else None, assumed_start_ms=_START_MS
    )
    platform = LocalPlatform(data, port, lambda: now_ms, SecretFiles(data / "secrets"))

    def situation(resources: Sequence[AnyResource]) -> Situation:
        sizes = probe.sizes_of(answer)
        kept = platform.kept_volumes()
        return Situation(
            *(observed, resources, timing, platform.traits), sizes=sizes, kept_volumes=kept, restarts=False
        )

    pending = tuple(rehearse(situation(change.before)).steps)
    rehearsal = rehearse(situation(change.after), fail)
    loss = None
    if fail is not None:
        assert rehearsal.worst is not None, "a watched rehearsal has a worst moment"
        loss = rehearse_loss(situation(change.after), fail, rehearsal.worst)
    return Planned(
        situation(change.after),
        change.changes,
        rehearsal,
        clients_of(answer),
        assumptions,
        pending,
        change.notes,
        loss,
        effects_of(change.before, change.after, platform.bootstrap),
    )


def _resources(data: Path, now_ms: int) -> list[AnyResource]:
    try:
        store = FolderStore(data / "state.json", lambda: now_ms)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    return [entry.resource for entry in store.entries.values() if entry.resource is not None]


def _answer(data: Path) -> dict[str, Any]:
    """The answer of the first broker that answers."""
    files = sorted((data / "brokers").glob("*/server.properties"))
    metrics = {}
    for file in files:
        http = read_properties(file).get("ottla.http.port", "")
        if http.isdigit():
            metrics[file.parent.name] = f"127.0.0.1:{http}"
    answer: dict[str, Any] = {"problem": "there is none"}
    for file in files:
        answer = probe.probe_by(file, metrics)
        if "problem" not in answer:
            break
    return answer


def _brokers(data: Path, kafka: KafkaState) -> dict[int, BrokerInstance]:
    """The brokers by their folders; those that are registered run."""
    found = {}
    for file in (data / "brokers").glob("*/revision.json"):
        broker, revision = int(file.parent.name), json.loads(file.read_text())
        runs = broker in kafka.brokers
        found[broker] = BrokerInstance(
            broker,
            "Running" if runs else "Stopped",
            ready=runs,
            config_hash=revision.get("hash", ""),
            settings=revision.get("static", {}),
            ready_since_ms=0 if runs else None,
            name=f"broker-{broker}",
            pool=revision.get("pool", {}).get("name", ""),
            delete_volume=bool(revision.get("pool", {}).get("deleteClaim", False)),
        )
    return found
