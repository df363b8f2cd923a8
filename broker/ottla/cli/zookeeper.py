"""`ottla zookeeper`: runs a ZooKeeper server in the foreground, with the jars of the image or of PySpark.

The process is replaced by Java, so that signals and the exit code are ZooKeeper's. On Kubernetes each pod of
the ensemble runs this command, with a server id from its host name.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import click

from ottla.local.zookeeper import DEFAULT_HEAP, JavaUnusable, ZooKeeperUnavailable, find_java, spark_jars

JARS_VARIABLE = "OTTLA_ZOOKEEPER_JARS"
# Debian's jars log with slf4j-simple, PySpark's with log4j. Connections of probes are not logged.
_LOGGING = (
    "-Dlog4j2.level=INFO",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss,SSS",
    "-Dorg.slf4j.simpleLogger.log.org.apache.zookeeper.server.NIOServerCnxn=warn",
    "-Dorg.slf4j.simpleLogger.log.org.apache.zookeeper.server.NettyServerCnxn=warn",
)
_MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


@click.command(short_help="Run one ZooKeeper server.")
@click.option(
    "--config",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A zoo.cfg.",
)
@click.option(
    "--id-from-hostname",
    is_flag=True,
    help="Write myid from the number at the end of the host name: name-0 is server 1.",
)
@click.option("--heap", default=DEFAULT_HEAP, show_default=True, metavar="SIZE", help="Java's -Xmx.")
def zookeeper(config: Path, id_from_hostname: bool, heap: str) -> None:
    """Run one ZooKeeper server with a zoo.cfg, until a signal ends it."""
    try:
        java, jars = find_java(), _jars()
    except (JavaUnusable, ZooKeeperUnavailable) as error:
        raise click.ClickException(str(error)) from None
    settings = dict(line.split("=", 1) for line in config.read_text().splitlines() if "=" in line)
    data = Path(settings.get("dataDir", "").strip())
    if not data.is_absolute():
        raise click.ClickException(f"{config}: dataDir must be an absolute path")
    data.mkdir(parents=True, exist_ok=True)
    if id_from_hostname:
        (data / "myid").write_text(f"{server_id(socket.gethostname())}\n")
    arguments = [
        str(java),
        f"-Xmx{heap}",
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",
        "-Dzookeeper.admin.enableServer=false",
        *_LOGGING,
        "-cp",
        f"{jars}/*",
        _MAIN_CLASS,
        str(config),
    ]
    os.execv(java, arguments)


def server_id(hostname: str) -> int:
    """The server id of a host name: the pod's ordinal plus 1, since ZooKeeper's ids begin with 1."""
    found = re.search(r"-([0-9]+)$", hostname.split(".", 1)[0])
    if found is None:
        raise click.ClickException(f"the host name {hostname} does not end in a number, as name-0 does")
    return int(found[1]) + 1


def _jars() -> Path:
    given = os.environ.get(JARS_VARIABLE)
    return Path(given) if given else spark_jars()
