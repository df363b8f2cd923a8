"""The pipeline's command: the version, signals while Spark starts. tests/interop/spark has the rest."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import ottla
from ottla_pipeline import command
from ottla_pipeline.jobs import lake
from ottla_pipeline.progress import Status
from ottla_pipeline.registry.command import main as registry
from ottla_pipeline.running import JobMetrics

CONFIG = """
name: orders
kafka: {bootstrap: "127.0.0.1:1"}
checkpoint: checkpoint
source: {topics: [orders]}
format: {type: json, fields: "id STRING, at TIMESTAMP"}
event: {id: id, time: at}
sink: {type: parquet, path: lake}
"""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_spark_starts_ends_the_job_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    file = tmp_path / "lake.yaml"
    file.write_text(CONFIG)

    def hang(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), number)
        time.sleep(60)  # cut short by the signal

    monkeypatch.setattr(command.errors, "check_reachable", lambda bootstrap: None)
    monkeypatch.setattr(command, "build_session", hang)
    options = {"available_now": False, "check": False, "status_port": None, "status_host": "127.0.0.1"}
    with pytest.raises(SystemExit) as end:
        command.execute(lake, "lake", {}, file=file, master="local[1]", memory="1g", **options)
    assert end.value.code == 0


def test_the_version_is_ottlas() -> None:
    shown = [CliRunner().invoke(each, ["--version"]).output for each in (command.main, registry)]
    assert shown == [
        f"{name}, version {ottla.__version__}\n" for name in ("ottla-pipeline", "ottla-registry")
    ]
    status = JobMetrics(Status("lake", "orders"))
    assert next(each.samples[0].labels for each in status.collect()) == {"version": ottla.__version__}
