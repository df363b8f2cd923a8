"""`ottla broker`: runs a broker in the foreground until SIGTERM or Ctrl-C, then shuts it down."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import resource
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ottla import logs
from ottla.metadata import zookeeper_access
from ottla.metadata.config import BrokerConfig, ConfigError, read_properties
from ottla.metadata.zookeeper_access import ZooKeeperAccess

if TYPE_CHECKING:
    from ottla.server.assembly.broker import Broker

log = logging.getLogger("ottla")

_TRIM_DELAYS_S: Final = (3.0, 30.0)
"""Delays after the start at which freed memory is returned; by then a broker mostly has its leaderships."""
_STATE_INTERVAL_S: Final = 1.0


@click.command(short_help="Run one broker with a server.properties.")
@click.option(
    "--config",
    "config_file",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="A server.properties with Kafka's settings.",
)
@click.option("--override", multiple=True, metavar="NAME=VALUE", help="A setting that overrides the file.")
@click.option(
    "--log-level", default="INFO", show_default=True, type=click.Choice(["DEBUG", "INFO", "WARNING"])
)
@click.option(
    "--state-file",
    "state",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file for probes with the broker's state: starting, recovering, ready, stopping or fenced.",
)
def broker(config_file: Path, override: tuple[str, ...], log_level: str, state: Path | None) -> None:
    """Run one broker with a server.properties, as kafka-server-start.sh does.

    The properties of KAFKA_OPTS for ZooKeeper are used: a JAAS file, and those of its client.
    """
    logs.configure(log_level)
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    try:
        properties = zookeeper_access.java_properties(os.environ.get(zookeeper_access.JAVA_OPTIONS, ""))
        settings = zookeeper_access.settings_of(properties) | read_properties(config_file)
        for item in override:
            name, equals, value = item.partition("=")
            if not equals or not name.strip():
                raise ConfigError([f"--override {item}: must be NAME=VALUE"])
            settings[name.strip()] = value
        config = BrokerConfig.from_properties(settings)
        _require(config)
        access = ZooKeeperAccess.of(config, properties)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(f"ottla broker: {problem}", err=True)
        raise SystemExit(2) from None
    for warning in config.warnings:
        log.warning("%s", warning)
    raise_descriptor_limit()
    from ottla.server.assembly.broker import new_event_loop

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        raise SystemExit(runner.run(_serve(config, access, state)))


def _require(config: BrokerConfig) -> None:
    """Check settings that a process requires although they have a default. Raises ConfigError."""
    problems = []
    if config.broker_id < 0:
        problems.append("broker.id: not set; it must be a whole number from 0")
    if not config.zookeeper_connect:
        problems.append("zookeeper.connect: not set; it must be HOST:PORT[,HOST:PORT…][/chroot]")
    if problems:
        raise ConfigError(problems)


def raise_descriptor_limit() -> None:
    """Raise the limit of open files to the hard limit, as a JVM does. Each connection and each segment
    needs a descriptor, and the usual soft limit of 1,024 exists for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def trim_heap() -> None:
    """Return memory that the start has freed to the operating system; glibc would keep it."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


async def _serve(config: BrokerConfig, access: ZooKeeperAccess, state: Path | None) -> int:
    """Start, serve until a signal, stop. Returns the exit code: 0, or 1 when the start or the broker
    failed."""
    from ottla.server.assembly.broker import Broker

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if config.get_bool("ottla.fenced"):
        log.warning("broker %d is fenced (ottla.fenced=true): it serves nothing", config.broker_id)
        async with state_file(state, lambda: "fenced"):
            await stopping.wait()
        return 0
    server = Broker(config, zookeeper_access=access)
    async with state_file(state, lambda: server.phase):
        return await _run(server, stopping)


async def _run(server: Broker, stopping: asyncio.Event) -> int:
    from ottla.server.assembly.broker import StartupError

    loop = asyncio.get_running_loop()
    start = loop.create_task(server.start())
    stop_wanted = loop.create_task(stopping.wait())
    await asyncio.wait({start, stop_wanted}, return_when=asyncio.FIRST_COMPLETED)
    if not start.done():
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        await server.stop()
        return 0
    try:
        start.result()
    except StartupError as error:
        log.error("broker %d cannot start: %s", server.broker_id, error)
        await server.stop()
        return 1
    # The objects of the start are permanent; a full collection would traverse them while requests wait.
    gc.collect()
    gc.freeze()
    for delay_s in _TRIM_DELAYS_S:
        loop.call_later(delay_s, trim_heap)
    died = loop.create_task(server.wait_failed())
    await asyncio.wait({stop_wanted, died}, return_when=asyncio.FIRST_COMPLETED)
    failed = died.done()
    died.cancel()
    await server.stop()
    return 1 if failed else 0


@asynccontextmanager
async def state_file(path: Path | None, phase: Callable[[], str]) -> AsyncIterator[None]:
    """Write the broker's state to a file every second while the context lasts, then remove the file. None: no
    file.

    The file has one line: starting, recovering, ready, stopping or fenced. The event loop writes it, so that
    an old file means that the loop is blocked.
    """
    if path is None:
        yield
        return
    writer = asyncio.get_running_loop().create_task(_write_periodically(path, phase))
    try:
        yield
    finally:
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
        _remove(path)


async def _write_periodically(path: Path, phase: Callable[[], str]) -> None:
    while True:
        _write_state(path, phase())
        await asyncio.sleep(_STATE_INTERVAL_S)


def _write_state(path: Path, phase: str) -> None:
    """Replace the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.tmp")
    partial.write_text(f"{phase}\n")
    partial.replace(path)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
