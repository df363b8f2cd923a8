"""`ottla broker`: one broker in the foreground, until SIGTERM or Ctrl-C shuts it down in order."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import resource
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ottla import logs
from ottla.cli.state_file import state_file
from ottla.metadata import zookeeper_access
from ottla.metadata.config import BrokerConfig, ConfigError, read_properties
from ottla.metadata.zookeeper_access import ZooKeeperAccess

if TYPE_CHECKING:
    from ottla.server.assembly.broker import Broker

log = logging.getLogger("ottla")

_AT_REST_S: Final = (3.0, 30.0)
"""So long after its start a broker has heard, mostly, what it leads."""


@click.command(short_help="Run one broker with a server.properties.")
@click.option(
    "--config",
    "config_file",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="A server.properties with Kafka's settings.",
)
@click.option("--override", multiple=True, metavar="NAME=VALUE", help="A setting that wins over the file's.")
@click.option(
    "--log-level", default="INFO", show_default=True, type=click.Choice(["DEBUG", "INFO", "WARNING"])
)
@click.option(
    "--state-file",
    "state",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep one line there: starting, recovering, ready or stopping. For probes.",
)
def broker(config_file: Path, override: tuple[str, ...], log_level: str, state: Path | None) -> None:
    """Run one broker with a server.properties, as kafka-server-start.sh does.

    Of the environment's KAFKA_OPTS, what concerns ZooKeeper counts: a JAAS file, and its client's properties.
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
        _need(config)
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


def _need(config: BrokerConfig) -> None:
    """What a process cannot do without, although Kafka's table has a default for it."""
    problems = []
    if config.broker_id < 0:
        problems.append("broker.id: not set; it must be a whole number from 0")
    if not config.zookeeper_connect:
        problems.append("zookeeper.connect: not set; it must be HOST:PORT[,HOST:PORT…][/chroot]")
    if problems:
        raise ConfigError(problems)


def raise_descriptor_limit() -> None:
    """As many descriptors as the system lets us have, as a JVM takes them: each connection is one, and each
    segment, and the usual limit of 1,024 is meant for programs that call select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def give_back_memory() -> None:
    """What a start with thousands of partitions took, and freed, goes back to the system: glibc keeps it."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


async def _serve(config: BrokerConfig, access: ZooKeeperAccess, state: Path | None) -> int:
    """Start, serve until a signal, stop. The exit code: 0, or 1 when it could not start or died."""
    from ottla.server.assembly.broker import Broker

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server = Broker(config, zookeeper_access=access)
    async with state_file(state, lambda: server.phase):
        return await _live(server, stopping)


async def _live(server: Broker, stopping: asyncio.Event) -> int:
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
    # What the start left stays; a full collection would walk all of it each time while requests wait.
    gc.collect()
    gc.freeze()
    for delay_s in _AT_REST_S:
        loop.call_later(delay_s, give_back_memory)
    died = loop.create_task(server.wait_failed())
    await asyncio.wait({stop_wanted, died}, return_when=asyncio.FIRST_COMPLETED)
    failed = died.done()
    died.cancel()
    await server.stop()
    return 1 if failed else 0
