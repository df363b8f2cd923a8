"""`ottla-pipeline JOB --config FILE`: the command line of all jobs. Each job is a module of
`ottla_pipeline.jobs`.

A job module has `CONFIG` (its configuration model) and a docstring whose first line is the help text. It has
either `start(context, config)`, which returns streaming queries, or `run(context, config)`, which returns an
exit status. It may have `SESSION` (settings of the Spark session) and `PARAMS` (click options of its own;
their values are in `context.params`). The command imports the module and validates the configuration before
it starts Spark.

Exit status: 0 when the job is done or was stopped, 1 when it failed, 2 when it could not start.
"""

from __future__ import annotations

import importlib
import pkgutil
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from prometheus_client import CollectorRegistry
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from ottla import __version__
from ottla_pipeline import errors, jobs
from ottla_pipeline.config.common import ConfigError, JobConfig, load
from ottla_pipeline.errors import JobStartError, error_summary
from ottla_pipeline.progress import GroupOffsets, Status
from ottla_pipeline.running import JobContext, JobMetrics, ProgressListener, await_queries
from ottla_pipeline.spark import JavaMissing, build_session, use_java_checkpoint_files
from ottla_pipeline.status_port import StatusPort

STARTUP_ERRORS = (ConfigError, JobStartError, JavaMissing, errors.BrokersUnreachable, OSError)


def job_names() -> list[str]:
    """The names of all jobs, as written on the command line."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(jobs.__path__))


class JobGroup(click.Group):
    """A click group with one subcommand for each job module, imported on use."""

    def list_commands(self, context: click.Context) -> list[str]:
        return job_names()

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in job_names():
            return None
        return command_of(importlib.import_module(f"ottla_pipeline.jobs.{name.replace('-', '_')}"), name)


def command_of(module: ModuleType, name: str) -> click.Command:
    """The click command of one job."""
    own: Sequence[click.Parameter] = getattr(module, "PARAMS", ())
    shared: list[click.Parameter] = [
        click.Option(
            ["--config", "file"],
            required=True,
            type=click.Path(path_type=Path, dir_okay=False),
            help="The job's configuration (YAML).",
        ),
        click.Option(["--available-now"], is_flag=True, help="Process all available records, then stop."),
        click.Option(["--check"], is_flag=True, help="Validate the configuration and exit."),
        click.Option(["--status-port"], type=click.IntRange(0, 65535), help="Port of /status and /metrics."),
        click.Option(
            ["--status-host"], default="127.0.0.1", show_default=True, help="Address of the status port."
        ),
        click.Option(
            ["--master"], default="local[2]", show_default=True, help="Spark master (not under spark-submit)."
        ),
        click.Option(
            ["--memory"], default="1g", show_default=True, help="Driver memory (not under spark-submit)."
        ),
    ]

    def callback(**given: Any) -> None:
        params = {option.name: given.pop(option.name) for option in own if option.name}
        sys.exit(execute(module, name, params, **given))

    text = (module.__doc__ or "").strip().partition("\n")[0]
    return click.Command(name, params=[*own, *shared], callback=callback, help=text)


def execute(
    module: ModuleType,
    name: str,
    params: dict[str, Any],
    *,
    file: Path,
    available_now: bool,
    check: bool,
    status_port: int | None,
    status_host: str,
    master: str,
    memory: str,
) -> int:
    """Runs the job and returns its exit status."""

    def echo(line: str) -> None:
        click.echo(f"{name}: {line}")

    def echo_error(text: str) -> None:
        for line in text.splitlines():
            click.echo(f"{name}: {line}", err=True)

    stop = threading.Event()
    try:
        config: JobConfig = load(file, module.CONFIG)
        if check:
            echo(f"{file} is valid")
            return 0
        if available_now:
            config = config.model_copy(
                update={"trigger": config.trigger.model_copy(update={"available_now": True})}
            )
        execution = Execution(module, name, config, params, echo)

        def end(*_: object) -> None:
            stop.set()
            if execution.starting:
                raise SystemExit(0)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)
        return execution.run(stop, status_port, status_host, master=master, memory=memory)
    except STARTUP_ERRORS as error:
        echo_error(str(error))
        return 2
    except (PySparkException, Py4JError) as error:
        echo_error(error_summary(error))
        return 1


class Execution:
    """One run of a job: check of the brokers, Spark session, queries, status server."""

    def __init__(
        self, module: ModuleType, name: str, config: JobConfig, params: dict[str, Any], echo: Any
    ) -> None:
        self._module = module
        self._config = config
        self._params = params
        self._echo = echo
        self._status = Status(name, config.name)
        self.starting = True
        """Until there is a Spark session: nothing needs an orderly end, and Java may hang."""
        self._metrics = CollectorRegistry()
        self._metrics.register(JobMetrics(self._status))

    def run(self, stop: threading.Event, port: int | None, host: str, *, master: str, memory: str) -> int:
        served = StatusPort(host, port, self._status.to_json, self._metrics) if port is not None else None
        if served is not None:
            self._echo(f"status at {host}:{served.port}")
        try:
            return self._run(stop, master, memory)
        except Exception as error:
            self._status.state = "Failed"
            self._status.error = (
                error_summary(error) if isinstance(error, PySparkException | Py4JError) else str(error)
            )
            raise
        finally:
            if served is not None:
                served.close()

    def _run(self, stop: threading.Event, master: str, memory: str) -> int:
        config, module = self._config, self._module
        errors.check_reachable(config.kafka.bootstrap)
        settings = {**config.spark.settings, **getattr(module, "SESSION", {})}
        spark = build_session(
            f"ottla-{config.JOB}-{config.name}",
            master=master,
            memory=memory,
            extra=settings,
            packages=config.spark.packages,
        )
        self.starting = False
        self._status.application_id = spark.sparkContext.applicationId
        context = JobContext(spark, self._echo, self._metrics, self._params, self._status.details)
        try:
            if hasattr(module, "run"):
                self._status.state = "Running"
                code = int(module.run(context, config))
                self._status.state = "Done"
                return code
            return self._stream(context, stop)
        finally:
            spark.stop()

    def _stream(self, context: JobContext, stop: threading.Event) -> int:
        config = self._config
        use_java_checkpoint_files(context.spark, config.checkpoint)
        group = GroupOffsets(config.kafka.librdkafka(), config.consumer_group)
        progress = ProgressListener(self._status, group, self._echo)
        context.spark.streams.addListener(progress)
        queries: Sequence[StreamingQuery] = ()
        try:
            queries = self._module.start(context, config)
            self._status.queries = len(queries)
            self._status.state = "Running"
            ended = await_queries(queries, stop)
            self._status.state = "Done" if ended else "Stopped"
            return 0
        finally:
            context.spark.streams.removeListener(progress)
            progress.close(queries)
            context.at_end.close()


@click.group(cls=JobGroup, context_settings={"max_content_width": 110})
@click.version_option(__version__, prog_name="ottla-pipeline")
def main() -> None:
    """Runs one of the pipeline's jobs on Spark."""


if __name__ == "__main__":
    main()
