"""The command `ottla up`: loads the files, reconciles, shows the state, and stops all processes at the end.

Reconciles when a file changes and on a timer.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO

import click
from rich.console import Console
from watchfiles import awatch

from ottla import logs
from ottla.local.zookeeper import JavaUnusable, ZooKeeperUnavailable, find_java, spark_jars
from ottla_operator.conditions import find
from ottla_operator.platform.backups import BackupRunner, RecoveryRunner
from ottla_operator.platform.interfaces import Environment
from ottla_operator.platform.kafka import KafkaAdmin
from ottla_operator.platform.loads import LoadMonitor, metrics_over_http
from ottla_operator.platform.local import LocalPlatform
from ottla_operator.platform.local_drivers import LocalDrivers
from ottla_operator.platform.local_security import ClientFiles, SecretFiles
from ottla_operator.reconcile import Reconciler, is_ready
from ottla_operator.rehearsal.command import show_plan
from ottla_operator.resources import BrokerCluster, ConnectCluster, Connector, Pipeline, User
from ottla_operator.resources.common import config_texts
from ottla_operator.resources.loading import Loaded, load_folder
from ottla_operator.step_executor import ReconcileResult
from ottla_operator.up.console import ConsoleProcess
from ottla_operator.up.planning import plan_files
from ottla_operator.up.rebalance import rebalance
from ottla_operator.up.store import STATE, FolderStore
from ottla_operator.up.view import LiveView, PlainView, View

log = logging.getLogger(__name__)

POLL_BUSY_S, POLL_IDLE_S = 0.3, 1.0
CONSOLE_AFTER_MS = 10_000
"""The console starts when all resources are Ready, at the latest so long after the cluster is available."""
_ON_KUBERNETES = (ConnectCluster.definition.kind, Connector.definition.kind)


class CannotRun(Exception):
    """`ottla up` cannot start; the message says what to do."""


def now_ms() -> int:
    """The wall clock in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def lock_data_folder(data: Path) -> IO[str]:
    """Lock the data folder until the returned file is closed. Raises CannotRun when it is locked."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        file = (data / "up.lock").open("a+")
    except OSError as error:
        raise CannotRun(
            f"the data folder {data} cannot be written: {error.strerror}; set another one with --data"
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        owner = file.read().strip()
        file.close()
        raise CannotRun(
            f"the data folder {data} is in use by another `ottla up` (process {owner}); "
            "stop that process, or set another folder with --data"
        ) from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


class Session:
    """The components of one `ottla up`."""

    def __init__(
        self,
        files: Path,
        data: Path,
        port: int,
        clock_ms: Callable[[], int] = now_ms,
        console_port: int | None = None,
    ) -> None:
        """`console_port`: of the web console; None: without it. Raises CannotRun."""
        self.files = files
        self._lock = lock_data_folder(data)
        try:
            self.store = FolderStore(data / STATE, clock_ms)
        except ValueError as error:
            self._lock.close()
            raise CannotRun(str(error)) from None
        self.secrets = SecretFiles(data / "secrets")
        self._clients = ClientFiles(data / "clients", self.secrets)
        self._console = None if console_port is None else ConsoleProcess(data, console_port)
        self.platform = LocalPlatform(data, port, clock_ms, self.secrets)
        self.kafka = KafkaAdmin(self.platform.client_properties)
        self.drivers = LocalDrivers(data, clock_ms, self.secrets)
        self._reconciler = Reconciler(
            Environment(
                self.platform,
                self.kafka,
                self.store,
                self.secrets,
                self.drivers,
                clock_ms,
                recorder=self.store,
                loads=LoadMonitor(metrics_over_http(self.platform.http_addresses), self.kafka.log_dirs),
                backups=BackupRunner(self.kafka.take_backup, self.secrets, clock_ms),
                recoveries=RecoveryRunner(self.kafka.restore, self.secrets, clock_ms),
            )
        )
        self._clock_ms = clock_ms
        self._announced = False
        self._available_ms: int | None = None
        """When all partitions had leaders for the first time."""
        self._controller: int | None = None
        self._printed: set[str] = set()
        self._ignored: list[str] = []
        """The keys of resources that run on Kubernetes only."""
        self.stopping = asyncio.Event()
        self._wake = asyncio.Event()

    # ---- checks before the start

    def preflight(self) -> None:
        """Check files, Java and ports before any process is started. Raises CannotRun."""
        loaded = self._load()
        if not loaded.documents and not self.store.entries:
            reasons = "".join(f"\n  {error}" for error in loaded.errors)
            raise CannotRun(f"{self.files} has no resource of ottla.dev (*.yaml, *.yml){reasons}")
        self.store.sync(loaded)
        cluster = self._cluster()
        if cluster is None:
            return
        if cluster.spec.zookeeper.connect is None:
            try:
                find_java()
                spark_jars()
            except (JavaUnusable, ZooKeeperUnavailable) as error:
                raise CannotRun(str(error)) from None
        for broker in cluster.broker_ids:
            problem = self.platform.port_problem(cluster, broker, config_texts(cluster.spec.config))
            if problem:
                raise CannotRun(problem)

    def _load(self) -> Loaded:
        """The resources of the files, without those that run on Kubernetes only."""
        loaded = load_folder(self.files)
        self._ignored = [each.key for each in loaded.documents if each.kind in _ON_KUBERNETES]
        kept = tuple(each for each in loaded.documents if each.kind not in _ON_KUBERNETES)
        return replace(loaded, documents=kept)

    def _cluster(self) -> BrokerCluster | None:
        resources = (entry.resource for entry in self.store.entries.values())
        clusters = [resource for resource in resources if isinstance(resource, BrokerCluster)]
        return min(clusters, key=lambda c: c.metadata.age_key, default=None)

    # ---- running

    async def run(self, view: View) -> None:
        """Run until `stopping` is set, then stop all processes."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)
        watcher = loop.create_task(self._watch())
        try:
            while not self.stopping.is_set():
                result = await self._reconcile(view)
                busy = result is None or not result.idle or not self._announced
                await self._pause(POLL_BUSY_S if busy else POLL_IDLE_S)
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
            running = " after the pipelines" if self._runs_pipelines() else ""
            view.print_line(f"stopping: brokers first{running}, then ZooKeeper")
            if self._console is not None:
                await asyncio.to_thread(self._console.stop)
            await self.drivers.shutdown()
            await self.kafka.close()
            await self.platform.shutdown(last=self._controller)
            self._lock.close()
            view.print_line("stopped")

    def _runs_pipelines(self) -> bool:
        return any(isinstance(entry.resource, Pipeline) for entry in self.store.entries.values())

    def _signalled(self) -> None:
        if self.stopping.is_set():
            # A second signal: kill all processes.
            self.drivers.kill()
            self.platform.kill()
        self.stopping.set()
        self._wake.set()

    async def _pause(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _watch(self) -> None:
        folder = self.files if self.files.is_dir() else self.files.parent
        while True:
            try:
                async for _ in awatch(folder, recursive=False, debounce=100, step=50):
                    self._wake.set()
            except (OSError, RuntimeError) as error:
                # The folder may be replaced. Each reconciliation reads the files, too.
                log.warning("watching %s failed: %s", folder, error)
            await asyncio.sleep(POLL_IDLE_S)

    async def _reconcile(self, view: View) -> ReconcileResult | None:
        """Load the files and reconcile once; None when it failed or was cancelled by a stop."""
        try:
            if self.files.exists():
                self.store.sync(self._load())
        except Exception as error:
            # A full disk or a bug in the operator: the brokers go on.
            log.exception("loading the files failed")
            self._show_error(view, error)
            return None
        reconciling = asyncio.ensure_future(self._reconciler.reconcile())
        stop = asyncio.ensure_future(self.stopping.wait())
        await asyncio.wait({reconciling, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not reconciling.done():
            reconciling.cancel()
            await asyncio.gather(reconciling, return_exceptions=True)
            return None
        try:
            result = reconciling.result()
        except Exception as error:
            log.exception("reconciliation failed")
            self._show_error(view, error)
            return None
        if result.observed is not None and result.observed.kafka.controller_id >= 0:
            self._controller = result.observed.kafka.controller_id
        self._print_notes(view)
        self._print_http_addresses(view)
        self._print_users(view)
        view.show(list(self.store.entries.values()), self.store.errors, result.steps)
        self._announce(view)
        return result

    def _show_error(self, view: View, error: Exception) -> None:
        view.show(list(self.store.entries.values()), [f"internal error: {error!r} (see up.log)"], [])

    def _print_notes(self, view: View) -> None:
        for key in self._ignored:
            line = f"note: {key}: Kafka Connect runs on Kubernetes only; the resource is ignored"
            if line not in self._printed:
                self._printed.add(line)
                view.print_line(line)
        for entry in self.store.entries.values():
            resource = entry.resource
            for note in () if resource is None else (*resource.ignored_by_up(), *resource.status.warnings):
                line = f"note: {entry.key}: {note}"
                if line not in self._printed:
                    self._printed.add(line)
                    view.print_line(line)

    def _print_http_addresses(self, view: View) -> None:
        """Print the address of each broker's metrics and probes, once."""
        for broker, address in self.platform.http_addresses().items():
            line = f"broker {broker} metrics=http://{address}/metrics"
            if line not in self._printed:
                self._printed.add(line)
                view.print_line(line)

    def _print_users(self, view: View) -> None:
        """Print how each user connects, once and after each change."""
        cluster = self._cluster()
        if cluster is None:
            return
        resources = (entry.resource for entry in self.store.entries.values())
        users = [user for user in resources if isinstance(user, User)]
        for user, line in self._clients.write(cluster, users):
            if is_ready(user) and line not in self._printed:
                self._printed.add(line)
                view.print_line(line)

    def _announce(self, view: View) -> None:
        """Print `ready …` when all resources have become Ready."""
        entries = list(self.store.entries.values())
        cluster = self._cluster()
        ready = (
            cluster is not None
            and not self.store.errors
            and all(
                entry.resource is not None and not entry.problems and is_ready(entry.resource)
                for entry in entries
            )
        )
        if ready and not self._announced:
            assert cluster is not None
            zookeeper = self.platform.zookeeper_connect(cluster)
            view.print_line(f"ready bootstrap={cluster.status.bootstrap_servers} zookeeper={zookeeper}")
        if cluster is not None and self._console is not None and self._serves_console(cluster, ready):
            servers = {"bootstrap.servers": cluster.status.bootstrap_servers}
            secured = cluster.spec.is_secured
            properties = self._clients.console_properties(cluster) if secured else servers
            if (line := self._console.follow(cluster.metadata.name, properties)) is not None:
                view.print_line(line)
        self._announced = ready

    def _serves_console(self, cluster: BrokerCluster, ready: bool) -> bool:
        """Whether it is time for the console: the cluster is ready, or has served clients for a while; the
        console then says why it is not ready."""
        available = find(cluster.status.conditions, "Available")
        if available is None or available.status != "True":
            return ready
        if self._available_ms is None:
            self._available_ms = self._clock_ms()
        return ready or self._clock_ms() - self._available_ms >= CONSOLE_AFTER_MS


@click.group(short_help="Run clusters from custom resources.", invoke_without_command=True)
@click.option(
    "-f",
    "--files",
    type=click.Path(exists=True, path_type=Path),
    help="Required: a folder or a file with resources in YAML: BrokerCluster, BrokerPool, Topic, User, "
    "Quota, ConsumerGroup, Pipeline.",
)
@click.option(
    "--data",
    default="ottla-data",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder for data of brokers and ZooKeeper; the next run uses it again.",
)
@click.option(
    "--port",
    default=9092,
    show_default=True,
    type=click.IntRange(1, 65535),
    help="The port of broker 0; broker N listens on this plus N, and on 100 more for each further listener.",
)
@click.option(
    "--console-port",
    type=click.IntRange(1, 65535),
    help="Serve the web console at this port, as `ottla console` does (needs the extra console).",
)
@click.option(
    "--plan", is_flag=True, help="Print what these files would change in the cluster that runs over --data."
)
@click.option("--fail", metavar="BROKER", help="With --plan: rehearse the loss of this broker, too.")
@click.option("-o", "--output", type=click.Choice(["json"]), help="With --plan: print JSON.")
@click.pass_context
def up(
    context: click.Context,
    files: Path | None,
    data: Path,
    port: int,
    console_port: int | None,
    plan: bool,
    fail: str | None,
    output: str | None,
) -> None:
    """Run a cluster from custom resources, with local processes instead of pods.

    Changes of the files are applied while it runs. Ctrl-C stops all processes gracefully. --plan changes
    nothing; it exits with 0 when nothing would change, with 1 when something would, and with 2 on errors.
    """
    if context.invoked_subcommand is not None:
        return
    if files is None:
        raise click.UsageError("Missing option '-f' / '--files'.")
    if plan:
        show_plan(partial(plan_files, files, data, port), fail, output)
    if fail or output:
        raise click.UsageError("--fail and --output need --plan")
    asyncio.run(_up(files, data, port, console_port))


up.add_command(rebalance)


async def _up(files: Path, data: Path, port: int, console_port: int | None) -> None:
    try:
        session = Session(files, data, port, console_port=console_port)
        session.preflight()
    except CannotRun as error:
        raise click.ClickException(str(error)) from None
    logs.configure(filename=data / "up.log")
    console = Console()
    view: View = LiveView(console) if console.is_terminal else PlainView(_write)
    try:
        await session.run(view)
    finally:
        view.close()


def _write(line: str) -> None:
    click.echo(line)
