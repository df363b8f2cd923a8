"""Drivers as local processes: states, requested stops, crashes and back-off, with a fake process."""

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
    """A driver's process that a test starts and ends."""

    last: FakeProcess

    def __init__(self, name: str, command: list[str], *, log: Path, folder: Path) -> None:
        self.name, self.command, self.log, self.folder = name, command, log, folder
        self.running, self.pid = False, 7
        self.has_group = False
        self.exit_code: int | None = None
        FakeProcess.last = self

    def start(self) -> None:
        self.running = True
        with self.log.open("a") as log:
            log.write("lake: pipeline.yaml: a: is missing\nlake: pipeline.yaml: b: is missing\n")

    def terminate(self) -> None:
        self.end(0)

    def kill_group(self) -> None:
        self.has_group = False
        if self.running:
            self.end(-9)

    def stop(self, timeout_s: float) -> None:
        """Waits for it."""

    def end(self, code: int) -> None:
        self.running, self.exit_code = False, code


class LocalDriversFixture:
    def __init__(self, data: Path) -> None:
        self.now_ms = 1_000_000
        self.drivers = LocalDrivers(data, lambda: self.now_ms, SecretFiles(data / "secrets"))
        content = {"clusterRef": {"name": "demo"}, "job": "lake", "storage": {"size": 1, "deleteClaim": True}}
        pipeline, problems = parse_resource("Pipeline", {"name": "lake"}, content)
        assert isinstance(pipeline, Pipeline), problems
        self.pipeline = pipeline

    def observe(self) -> DriverInstance | None:
        return asyncio.run(self.drivers.observe([self.pipeline])).get(self.pipeline.key)

    def start(self, launch: DriverLaunch = LAUNCH) -> FakeProcess:
        asyncio.run(self.drivers.start(self.pipeline, launch))
        return FakeProcess.last

    def stop(self) -> None:
        asyncio.run(self.drivers.stop(self.pipeline, None))


@pytest.fixture
def fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalDriversFixture:
    async def fetch_progress(addresses: dict[str, str]) -> dict[str, JobProgress]:
        return {key: JobProgress("app") for key in addresses}

    monkeypatch.setattr(local_drivers, "ChildProcess", FakeProcess)
    monkeypatch.setattr(processes, "fetch_progress", fetch_progress)
    return LocalDriversFixture(tmp_path)


def test_a_driver_has_its_own_working_directory_with_the_configuration_beside_it(
    fixture: LocalDriversFixture, tmp_path: Path
) -> None:
    assert fixture.observe() is None
    process = fixture.start()
    assert process.folder == tmp_path / "pipelines/lake/data"
    config: dict[str, Any] = json.loads((tmp_path / "pipelines/lake/pipeline.yaml").read_text())
    assert config["kafka"] == {"bootstrap": "127.0.0.1:9092"}
    assert config["checkpoint"] == str(tmp_path / "pipelines/lake/data/checkpoint")
    assert process.command[process.command.index("--master") + 1] == "local[*]"
    assert fixture.observe() == DriverInstance("Running", "process 7", "one", progress=JobProgress("app"))


def test_a_requested_stop_of_a_driver_is_not_a_crash(fixture: LocalDriversFixture) -> None:
    fixture.start()
    fixture.stop()
    seen = fixture.observe()
    assert seen is not None
    assert (seen.state, seen.crashes, seen.exit_code) == ("Stopped", 0, None)


def test_a_crash_is_reported_and_backs_off_longer_each_time(fixture: LocalDriversFixture) -> None:
    pauses = []
    for crash in range(1, 4):
        fixture.start().end(1)
        seen = fixture.observe()
        assert seen is not None
        assert (seen.state, seen.crashes, seen.backing_off, seen.exit_code) == ("Crashed", crash, True, 1)
        began_ms = fixture.now_ms
        while (seen := fixture.observe()) is not None and seen.backing_off:
            fixture.now_ms += 500
        pauses.append(fixture.now_ms - began_ms)
    assert pauses == [2000, 4000, 8000]
    again = fixture.start()
    seen = fixture.observe()
    assert again.running
    assert seen is not None
    assert (seen.state, seen.exit_code) == ("Running", 1)


def test_a_job_that_cannot_start_is_reported_with_all_its_log_lines(fixture: LocalDriversFixture) -> None:
    fixture.start().end(2)
    first = fixture.observe()
    assert first is not None
    assert first.message.count("is missing") == 2
    fixture.start(DriverLaunch("two", "127.0.0.1:9092"))
    seen = fixture.observe()
    assert seen is not None
    assert (seen.exit_code, seen.crashes, seen.message) == (None, 0, "")


def test_a_completed_job_is_not_a_crash(fixture: LocalDriversFixture) -> None:
    fixture.start().end(0)
    seen = fixture.observe()
    assert seen is not None
    assert (seen.state, seen.exit_code, seen.crashes) == ("Stopped", 0, 0)


def test_without_pyspark_the_error_names_the_extra_to_install(
    fixture: LocalDriversFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StepFailed, match="pyspark is not installed") as failed:
        fixture.start()
    assert failed.value.reason == "SparkMissing"


def test_delete_claim_removes_the_folder_with_the_pipeline(
    fixture: LocalDriversFixture, tmp_path: Path
) -> None:
    process = fixture.start()
    asyncio.run(fixture.drivers.remove(fixture.pipeline))
    assert not process.running
    assert not (tmp_path / "pipelines/lake").exists()


def test_a_shutdown_kills_the_processes_that_a_driver_leaves(
    fixture: LocalDriversFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_drivers, "JVM_GRACE_S", 0.01)
    fixture.start()
    driver = FakeProcess.last
    driver.has_group = True
    asyncio.run(fixture.drivers.shutdown())
    assert (driver.exit_code, driver.has_group) == (0, False)
