"""The `Drivers` interface for local processes, with Spark in local mode.

Used by `ottla up`. The folder `<data>/pipelines/<name>/data` replaces a pipeline's volume and is its driver's
working directory; configuration and log are beside it. Drivers end with the process of `ottla up`, so that
none is left from an earlier run. Like a kubelet, this class has in memory which exits were requested and how
often a driver crashed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ottla.local.processes import ChildProcess, free_port
from ottla_operator.planning.observed import DriverInstance
from ottla_operator.planning.pipeline_config import DriverLaunch, complete_config, driver_heap_mib
from ottla_operator.planning.pipelines import CONFIG_FILE, EXIT_CANNOT_START
from ottla_operator.platform import processes
from ottla_operator.platform.interfaces import Ensured, StepFailed
from ottla_operator.platform.local_security import SecretFiles
from ottla_operator.platform.processes import (
    crash_back_off_ms,
    exit_description,
    exit_message,
    terminate_all,
    write_atomically,
)
from ottla_operator.resources import Pipeline

log = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
GRACE_MS: Final = 60_000
JVM_GRACE_S: Final = 2.0
"""Of the JVM after the driver's Python has ended: it deletes its temporary files."""
BACK_OFF_MS_MIN, BACK_OFF_MS_MAX = 2_000, 60_000
BACK_OFF_RESET_MS: Final = 120_000
_LOG_LINES: Final = 40


@dataclass(slots=True)
class _DriverRun:
    """The state of one driver's process."""

    process: ChildProcess
    port: int
    revision: str
    started_at_ms: int
    log_from: int
    """The position in the log at which this process began, in bytes."""
    stop_requested_ms: int | None = None
    ended_at_ms: int | None = None
    crashes: int = 0
    last_exit: int | None = None
    exit_message: str = ""


def driver_command(pipeline: Pipeline, config: Path, port: int) -> list[str]:
    """The command line of a driver with Spark in local mode."""
    return [
        *(sys.executable, "-m", "ottla_pipeline.command", pipeline.spec.job, "--config", str(config)),
        *("--status-port", str(port), "--status-host", HOST, "--master", "local[*]"),
        *("--memory", f"{driver_heap_mib(pipeline)}m"),
    ]


class LocalDrivers:
    """The drivers of all pipelines under one data folder."""

    def __init__(self, data: Path, clock_ms: Callable[[], int], secrets: SecretFiles) -> None:
        self._folder = data.absolute() / "pipelines"
        self._clock_ms = clock_ms
        self._secrets = secrets
        self._drivers: dict[str, _DriverRun] = {}

    def folder(self, pipeline: Pipeline) -> Path:
        """The driver's working directory, to which relative paths of the configuration refer."""
        return self._folder / pipeline.metadata.name / "data"

    def log(self, pipeline: Pipeline) -> Path:
        return self._folder / pipeline.metadata.name / "driver.log"

    def traits(self, pipeline: Pipeline) -> Mapping[str, str]:
        return {}

    # ---- observing

    async def observe(self, pipelines: Iterable[Pipeline]) -> Mapping[str, DriverInstance]:
        known = {p.key: self._drivers[p.key] for p in pipelines if p.key in self._drivers}
        addresses = {key: f"{HOST}:{d.port}" for key, d in known.items() if d.process.running}
        progress_by_key = await processes.fetch_progress(addresses)
        instances = {}
        for key, driver in known.items():
            instance = self._update_state(driver)
            progress = progress_by_key.get(key) if instance.state == "Running" else None
            instances[key] = DriverInstance(
                state=instance.state,
                name=f"process {driver.process.pid}" if driver.process.running else "",
                revision=driver.revision,
                crashes=driver.crashes,
                backing_off=instance.backing_off,
                exit_code=driver.last_exit,
                message=driver.exit_message,
                progress=progress,
            )
        return instances

    def _update_state(self, driver: _DriverRun) -> DriverInstance:
        """The state of the process, and whether it backs off; records the times of changes."""
        now_ms = self._clock_ms()
        if driver.process.running:
            if driver.stop_requested_ms is not None:
                if now_ms - driver.stop_requested_ms > GRACE_MS:
                    driver.process.kill_group()
                return DriverInstance("Stopping")
            if now_ms - driver.started_at_ms > BACK_OFF_RESET_MS:
                driver.crashes = 0
            return DriverInstance("Running")
        if driver.stop_requested_ms is not None:
            return DriverInstance("Stopped")
        if driver.ended_at_ms is None:
            driver.ended_at_ms = now_ms
            driver.last_exit = driver.process.exit_code
            driver.exit_message = _exit_message(driver)
            driver.crashes += driver.last_exit != 0
        if driver.last_exit == 0:
            return DriverInstance("Stopped")
        back_off_ms = crash_back_off_ms(driver.crashes, BACK_OFF_MS_MIN, BACK_OFF_MS_MAX)
        return DriverInstance("Crashed", backing_off=now_ms - driver.ended_at_ms < back_off_ms)

    # ---- steps

    async def ensure_children(self, pipeline: Pipeline, launch: DriverLaunch) -> Ensured:
        return Ensured()

    async def start(self, pipeline: Pipeline, launch: DriverLaunch) -> None:
        before = self._drivers.get(pipeline.key)
        if before is not None and before.process.running:
            return
        if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("ottla_pipeline") is None:
            raise StepFailed("SparkMissing", "pyspark is not installed: pip install 'ottla[pipeline]'")
        folder = self.folder(pipeline)
        config = self._folder / pipeline.metadata.name / CONFIG_FILE
        content = complete_config(
            pipeline,
            launch,
            checkpoint=str(folder / "checkpoint") if pipeline.spec.storage is not None else None,
            path_of=lambda secret, entry: str(self._secrets.path(secret, entry).absolute()),
        )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # JSON is valid YAML. The file is private since a configuration may have passwords.
            write_atomically(config, json.dumps(content, indent=1, default=str).encode())
        except OSError as error:
            raise StepFailed("FolderNotWritable", f"{folder}: {error.strerror}") from None
        port, log_file = free_port(HOST), self.log(pipeline)
        same_revision = (
            before is not None and before.revision == launch.revision and before.stop_requested_ms is None
        )
        process = ChildProcess(
            f"driver of {pipeline.metadata.name}",
            driver_command(pipeline, config, port),
            log=log_file,
            folder=folder,
        )
        running = _DriverRun(
            process,
            port,
            launch.revision,
            self._clock_ms(),
            log_file.stat().st_size if log_file.exists() else 0,
        )
        if same_revision and before is not None:
            running.crashes, running.last_exit, running.exit_message = (
                before.crashes,
                before.last_exit,
                before.exit_message,
            )
        process.start()
        self._drivers[pipeline.key] = running

    async def stop(self, pipeline: Pipeline, after: DriverLaunch | None) -> None:
        driver = self._drivers.get(pipeline.key)
        if driver is not None and driver.stop_requested_ms is None:
            driver.stop_requested_ms = self._clock_ms()
            driver.process.terminate()

    async def remove(self, pipeline: Pipeline) -> None:
        driver = self._drivers.pop(pipeline.key, None)
        if driver is not None and driver.process.running:
            driver.process.kill_group()
        storage = pipeline.spec.storage
        if storage is not None and storage.delete_claim:
            await asyncio.to_thread(shutil.rmtree, self._folder / pipeline.metadata.name, True)

    # ---- shutdown

    async def shutdown(self, grace_s: float = 45) -> None:
        """Terminate all drivers; those that still run after `grace_s` are killed, as is what they leave."""
        running = {driver.process.name: driver.process for driver in self._drivers.values()}
        await terminate_all(running, grace_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(JVM_GRACE_S):
                while any(process.has_group for process in running.values()):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        for process in running.values():
            process.kill_group()

    def kill(self) -> None:
        """Kill all drivers."""
        for driver in self._drivers.values():
            driver.process.kill_group()


def _exit_message(driver: _DriverRun) -> str:
    """How the process ended: with all log lines of a job that cannot start, otherwise with the likely
    cause."""
    code = driver.process.exit_code

    def cause() -> str:
        try:
            with driver.process.log.open("rb") as file:
                file.seek(driver.log_from)
                text = "\n".join(file.read().decode(errors="replace").splitlines()[-_LOG_LINES:])
        except OSError:
            return ""
        return text if code == EXIT_CANNOT_START else exit_message(text)

    return exit_description(code, cause)
