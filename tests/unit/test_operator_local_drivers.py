"""Drivers as processes: states, ends that were asked for and others, and pauses between starts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ottla_operator.planning.observed import DriverInstance, JobProgress
from ottla_operator.planning.pipeline_config import DriverLaunch
from ottla_operator.platform import local_drivers, processes
from ottla_operator.platform.interfaces import StepFailed
from ottla_operator.platform.local_drivers import LocalDrivers
from ottla_operator.platform.local_security import SecretFiles
from ottla_operator.resources import Pipeline
from ottla_operator.resources.loading import parse_resource

LAUNCH = DriverLaunch("one", "127.0.0.1:9092")


class FakeProcess:
    """A driver's process that does as it is told."""

    last: FakeProcess

    def __init__(self, name: str, command: list[str], *, log: Path, folder: Path) -> None:
        self.command, self.log, self.folder = command, log, folder
        self.running, self.pid = False, 7
        self.exit_code: int | None = None
        FakeProcess.last = self

    def start(self) -> None:
        self.running = True
        self.log.open("a").write("lake: pipeline.yaml: a: is missing\nlake: pipeline.yaml: b: is missing\n")

    def terminate(self) -> None:
        self.end(0)

    def kill(self) -> None:
        self.end(-9)

    def end(self, code: int) -> None:
        self.running, self.exit_code = False, code


class World:
    def __init__(self, data: Path) -> None:
        self.now_ms = 1_000_000
        self.drivers = LocalDrivers(data, lambda: self.now_ms, SecretFiles(data / "secrets"))
        content = {"clusterRef": {"name": "demo"}, "job": "lake", "storage": {"size": 1, "deleteClaim": True}}
        pipeline, problems = parse_resource("Pipeline", {"name": "lake"}, content)
        assert isinstance(pipeline, Pipeline), problems
        self.pipeline = pipeline

    def seen(self) -> DriverInstance | None:
        return asyncio.run(self.drivers.observe([self.pipeline])).get(self.pipeline.key)

    def start(self, launch: DriverLaunch = LAUNCH) -> FakeProcess:
        asyncio.run(self.drivers.start(self.pipeline, launch))
        return FakeProcess.last

    def stop(self) -> None:
        asyncio.run(self.drivers.stop(self.pipeline, None))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    async def fetch_progress(addresses: dict[str, str]) -> dict[str, JobProgress]:
        return {key: JobProgress("app") for key in addresses}

    monkeypatch.setattr(local_drivers, "ChildProcess", FakeProcess)
    monkeypatch.setattr(processes, "fetch_progress", fetch_progress)
    return World(tmp_path)


def test_it_works_in_a_folder_of_its_own_with_its_configuration_beside(world: World, tmp_path: Path) -> None:
    assert world.seen() is None
    process = world.start()
    assert process.folder == tmp_path / "pipelines/lake/data"
    config: dict[str, Any] = json.loads((tmp_path / "pipelines/lake/pipeline.yaml").read_text())
    assert config["kafka"] == {"bootstrap": "127.0.0.1:9092"}
    assert config["checkpoint"] == str(tmp_path / "pipelines/lake/data/checkpoint")
    assert process.command[process.command.index("--master") + 1] == "local[*]"
    assert world.seen() == DriverInstance("Running", "process 7", "one", progress=JobProgress("app"))


def test_one_that_was_stopped_is_stopped_and_no_crash(world: World) -> None:
    world.start()
    world.stop()
    seen = world.seen()
    assert seen is not None
    assert (seen.state, seen.crashes, seen.exit_code) == ("Stopped", 0, None)


def test_a_crash_is_told_and_rested_from_longer_each_time(world: World) -> None:
    pauses = []
    for crash in range(1, 4):
        world.start().end(1)
        seen = world.seen()
        assert seen is not None
        assert (seen.state, seen.crashes, seen.backing_off, seen.exit_code) == ("Crashed", crash, True, 1)
        began_ms = world.now_ms
        while (seen := world.seen()) is not None and seen.backing_off:
            world.now_ms += 500
        pauses.append(world.now_ms - began_ms)
    assert pauses == [2000, 4000, 8000]
    again = world.start()
    seen = world.seen()
    assert again.running
    assert seen is not None
    assert (seen.state, seen.exit_code) == ("Running", 1)


def test_what_could_not_begin_is_told_with_all_its_lines(world: World) -> None:
    world.start().end(2)
    first = world.seen()
    assert first is not None
    assert first.message.count("is missing") == 2
    world.start(DriverLaunch("two", "127.0.0.1:9092"))
    seen = world.seen()
    assert seen is not None
    assert (seen.exit_code, seen.crashes, seen.message) == (None, 0, "")


def test_a_job_that_came_to_its_end_is_no_crash(world: World) -> None:
    world.start().end(0)
    seen = world.seen()
    assert seen is not None
    assert (seen.state, seen.exit_code, seen.crashes) == ("Stopped", 0, 0)


def test_without_spark_it_says_what_to_install(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StepFailed, match="pyspark is not installed") as failed:
        world.start()
    assert failed.value.reason == "SparkMissing"


def test_a_folder_goes_with_its_pipeline_when_that_is_asked_for(world: World, tmp_path: Path) -> None:
    process = world.start()
    asyncio.run(world.drivers.remove(world.pipeline))
    assert not process.running
    assert not (tmp_path / "pipelines/lake").exists()
