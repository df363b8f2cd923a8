"""Apache Kafka 3.9.1 from Maven Central: its classpath, its broker as a process, its tools.

Called by the benchmarks, and by the tests that use Apache Kafka as their oracle.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from bench.maven import Artifact, fetch_jars
from bench.maven import JarsUnavailable as JarsUnavailable
from ottla.local.brokers import escaped
from ottla.local.processes import ChildProcess, StartFailed, free_port, wait_until
from ottla.local.zookeeper import find_java
from ottla.protocol.codec import decode
from ottla.protocol.frames import encode_request, response_body_offset
from ottla.protocol.messages import MetadataRequest, MetadataResponse

KAFKA_VERSION: Final = "3.9.1"
_METADATA_VERSION: Final = 5
"""Version of the Metadata requests."""
_ARTIFACTS: Final = (
    Artifact("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    Artifact("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    Artifact("org.slf4j", "slf4j-reload4j", "1.7.36"),
)
_LOG4J: Final = """\
log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.target=System.err
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %c{1} %m%n
"""


_SHORT_LIVED: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""No threads of a garbage collector and no optimizing compiler: half the time to start."""
_QUIET_ARCHIVE: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
"""Java ignores an archive that does not fit, and logs no warning."""
LEAN_JVM: Final = ("-Xmx512m", *_SHORT_LIVED)
"""For the tools: the heap that Kafka's own scripts give them."""
SMALL_BROKER_JVM: Final = ("-Xmx1g", *_SHORT_LIVED)
"""For brokers that are the oracle of a test: they start fast on a busy machine."""
STOCK_BROKER_JVM: Final = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)
"""For brokers that are measured: the options of kafka-server-start.sh."""


@lru_cache
def kafka_classpath() -> str:
    """The classpath of Kafka's broker, clients and tools. Raises JarsUnavailable."""
    folder = fetch_jars(f"kafka-{KAFKA_VERSION}", _ARTIFACTS)
    logging = folder / "log4j.properties"
    if not logging.exists():
        logging.write_text(_LOG4J)
    return f"{folder}/*"


def class_archive() -> Path:
    """The archive of Kafka's loaded classes (class data sharing); a start with it takes half the CPU."""
    return Path(kafka_classpath()).parent / "classes.jsa"


def java_command(
    main_class: str, *arguments: str, jvm: Sequence[str] = LEAN_JVM, classes: Path | None = None
) -> list[str]:
    """The command line that runs a class of Kafka's or of the folder `classes`; it logs warnings only."""
    classpath = kafka_classpath()
    logging = Path(classpath).parent / "log4j.properties"
    options = [*jvm, f"-Dlog4j.configuration=file:{logging}"]
    if class_archive().exists() and set(_SHORT_LIVED) <= set(jvm):
        options += [f"-XX:SharedArchiveFile={class_archive()}", *_QUIET_ARCHIVE]
    if classes is not None:
        classpath = f"{classpath}:{classes}"
    return [str(find_java()), *options, "-cp", classpath, main_class, *arguments]


def run_tool(
    main_class: str,
    arguments: Sequence[str],
    *,
    timeout_s: float = 240,
    stdin: str | None = None,
    classes: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a tool of Kafka's, or a class of `classes`, to its end; the output is captured as text."""
    command = java_command(main_class, *arguments, classes=classes)
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, input=stdin, check=False
    )


class KafkaBroker:
    """A process with an Apache Kafka broker in ZooKeeper mode, on loopback by default."""

    def __init__(
        self,
        directory: Path,
        zookeeper_connect: str,
        *,
        broker_id: int = 0,
        host: str = "127.0.0.1",
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        jvm: Sequence[str] = SMALL_BROKER_JVM,
        classes: Path | None = None,
    ) -> None:
        """`classes`: a folder of classes that its settings name."""
        self.host = host
        self.port = port or free_port()
        self.directory = directory
        self._settings = {
            "broker.id": str(broker_id),
            "listeners": f"PLAINTEXT://{host}:{self.port}",
            "zookeeper.connect": zookeeper_connect,
            "log.dirs": str(directory / "data"),
            "offsets.topic.replication.factor": "1",
            "group.initial.rebalance.delay.ms": "0",
            **(settings or {}),
        }
        self._jvm = jvm
        self._classes = classes
        self._process: ChildProcess | None = None

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self, prefix: Sequence[str] = (), timeout_s: float = 180) -> None:
        """Start the broker; return when its metadata has the controller and itself.

        It listens before that, and a client that finds no controller may wait for a minute. `prefix` is put
        before the command, for instance taskset. Raises StartFailed."""
        self.directory.mkdir(parents=True, exist_ok=True)
        properties = self.directory / "server.properties"
        properties.write_text("".join(f"{n}={escaped(text)}\n" for n, text in self._settings.items()))
        command = [
            *prefix,
            *java_command("kafka.Kafka", str(properties), jvm=self._jvm, classes=self._classes),
        ]
        self._process = process = ChildProcess("Apache Kafka", command, log=self.directory / "kafka.log")
        process.start()
        serves = wait_until(lambda: not process.running or self._is_registered(), timeout_s=timeout_s)
        if not serves or not process.running:
            raise StartFailed(f"Apache Kafka did not come up:\n{process.log_tail()}")

    def _is_registered(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=10) as connection:
                connection.sendall(encode_request(MetadataRequest(topics=[]), _METADATA_VERSION, 0, "bench"))
                with connection.makefile("rb") as responses:
                    frame = responses.read(int.from_bytes(responses.read(4), "big"))
        except OSError:
            return False
        if not frame:
            return False
        body = response_body_offset(MetadataRequest.api_key, _METADATA_VERSION, frame)
        metadata = decode(MetadataResponse, _METADATA_VERSION, frame, body)
        own_id = int(self._settings["broker.id"])
        return metadata.controller_id >= 0 and own_id in [broker.node_id for broker in metadata.brokers]

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop(timeout_s=120)

    @classmethod
    def write_class_archive(cls, directory: Path, zookeeper_connect: str) -> None:
        """Start and stop a broker so that Java writes the archive of its classes."""
        part = class_archive().with_suffix(f".{os.getpid()}.part")
        jvm = (*SMALL_BROKER_JVM, f"-XX:ArchiveClassesAtExit={part}", *_QUIET_ARCHIVE)
        broker = cls(directory, zookeeper_connect, jvm=jvm)
        try:
            broker.start()
        finally:
            broker.stop()
        if part.exists():  # not every Java writes one
            part.replace(class_archive())

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self._process is not None:
            self._process.kill()
