"""The embedded ZooKeeper: a standalone server from the jars in PySpark's wheel, as a child process.

Used by `ottla up` and the tests. It listens on loopback, has no admin server, needs about 130 MB of memory,
and its data folder is kept when it stops.

`python -m ottla.local.zookeeper` (in `make setup`) writes an archive of its loaded classes (class data
sharing), which shortens later starts by a third.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import socket
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from ottla.local.processes import ChildProcess, StartFailed, free_port, wait_until

JAVA_MIN: Final = 17
"""The version that Spark 4 requires; ZooKeeper requires less."""
DEFAULT_HEAP: Final = "256m"
"""Java's -Xmx."""
VERSION_TIMEOUT_S: Final = 120.0
"""Of `java -version`."""
ABANDONED_GRACE_S: Final = 2.0
"""Of a server that is stopped while it starts: it has no clients yet, and a Java that hangs does not end."""


class JavaUnusable(Exception):
    """Java is missing or too old; the message says what to do."""


def find_java() -> Path:
    """The `java` of JAVA_HOME, else of PATH, at version 17 or later. Raises JavaUnusable."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(str(Path(home) / "bin" / "java")) if home else shutil.which("java")
    if found is None:
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on PATH"
        raise JavaUnusable(f"Java is missing: {where}. Install Java {JAVA_MIN} or 21, or set JAVA_HOME.")
    _check_version(found)
    return Path(found)


@cache
def _check_version(java: str) -> None:
    """Run `java -version`, once, since it takes a tenth of a second. Raises JavaUnusable."""
    with tempfile.TemporaryDirectory() as folder:
        ran = ChildProcess("java", [java, "-version"], log=Path(folder) / "output")
        ran.start()
        try:
            if not wait_until(lambda: not ran.running, timeout_s=VERSION_TIMEOUT_S, poll_s=0.01):
                raise JavaUnusable(f"{java} -version did not end within {VERSION_TIMEOUT_S:g} s")
        finally:
            ran.kill_group()
        output = ran.log_tail()
    version = parse_java_version(output)
    if ran.exit_code or version is None:
        raise JavaUnusable(f"{java} -version failed: {output.strip()[:200]}")
    if version < JAVA_MIN:
        raise JavaUnusable(
            f"{java} is Java {version}; Java {JAVA_MIN} or 21 is needed. Set JAVA_HOME to one."
        )


def parse_java_version(text: str) -> int | None:
    """The major version in what `java -version` prints: 8 for "1.8.0_372", 17 for "17.0.15"."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    major = int(match[1])
    return int(match[2]) if major == 1 and match[2] else major


_QUIET: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
"""Java ignores an archive of another version; these options disable its warnings."""
_JARS: Final = (
    "zookeeper-",
    "slf4j-api-",
    "log4j-",
    "netty-",
    "snappy-java-",
    "commons-io-",
    "metrics-core-",
)
"""The jars that the server needs; a start with all of Spark's jars takes twice as long."""
_CONFIG: Final = """\
tickTime=2000
dataDir={data_dir}
clientPort={port}
clientPortAddress={host}
admin.enableServer=false
maxClientCnxns=0
minSessionTimeout=2000
maxSessionTimeout=60000
autopurge.snapRetainCount=3
autopurge.purgeInterval=24
4lw.commands.whitelist=srvr,ruok,mntr,cons
"""
_LOGBACK: Final = """\
<configuration><appender name="OUT" class="ch.qos.logback.core.ConsoleAppender"><encoder>
<pattern>%d %-5level %logger{0} %msg%n</pattern></encoder></appender>
<root level="WARN"><appender-ref ref="OUT"/></root></configuration>
"""
_LOG4J2: Final = """\
status=error
appender.out.type=Console
appender.out.name=OUT
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %-5level %logger{1.} %msg%n
rootLogger.level=warn
rootLogger.appenderRef.out.ref=OUT
"""


class ZooKeeperUnavailable(Exception):
    """ZooKeeper's jars are missing; the message says how to install them."""


def spark_jars() -> Path:
    """The folder of PySpark's jars, which include ZooKeeper's server. Raises ZooKeeperUnavailable."""
    spec = importlib.util.find_spec("pyspark")
    jars = Path(spec.origin).parent / "jars" if spec is not None and spec.origin else None
    if jars is None or not any(jars.glob("zookeeper-3*.jar")):
        raise ZooKeeperUnavailable(
            "the embedded ZooKeeper comes with PySpark, which is not installed: pip install pyspark==4.0.0"
        )
    return jars


def class_archive(java: Path) -> Path:
    """The path of the class archive for this Java and these jars, beside the jars, so that it goes with them;
    it may not exist. Java ignores the archive after the same jars were installed again: it compares their
    times."""
    release = java.resolve().parents[1] / "release"
    times = sorted((jar.name, jar.stat().st_mtime) for jar in spark_jars().iterdir())
    made_of = f"{release.read_text() if release.is_file() else java}{spark_jars()}{times}"
    name = f"zookeeper-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}.jsa"
    return spark_jars().parent / "ottla-classes" / name


def write_class_archive() -> None:
    """Write the class archive unless it exists, Java cannot write one or the folder of the jars is not ours;
    delete those of other jars. Raises as `EmbeddedZooKeeper.start`."""
    archive = class_archive(find_java())
    if archive.exists():
        return
    try:
        archive.parent.mkdir(exist_ok=True)
    except PermissionError:
        return
    part = archive.with_suffix(f".{os.getpid()}.part")
    with tempfile.TemporaryDirectory() as folder:
        zookeeper = EmbeddedZooKeeper(Path(folder), jvm=(f"-XX:ArchiveClassesAtExit={part}", *_QUIET))
        zookeeper.start()
        zookeeper.stop(timeout_s=120)
    if part.exists():
        part.replace(archive)
    for other in set(archive.parent.glob("zookeeper-*.jsa")) - {archive}:
        other.unlink(missing_ok=True)


class EmbeddedZooKeeper:
    """A standalone ZooKeeper server as a child process."""

    def __init__(
        self,
        data_dir: Path,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
        settings: str = "",
        jvm: Sequence[str] = (),
        heap: str = DEFAULT_HEAP,
    ) -> None:
        """`prefix`: put before the command, such as nsenter. `settings`: additional lines of zoo.cfg. `heap`:
        Java's -Xmx."""
        self.data_dir = data_dir
        self.host = host
        self._prefix = prefix
        self._settings = settings
        self._jvm = jvm
        self._heap = heap
        self.port = port or free_port()
        self._process: ChildProcess | None = None
        self._abandoned = threading.Event()

    @property
    def connect(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def start(self, timeout_s: float = 90) -> None:
        """Start and wait until it serves. Raises JavaUnusable, ZooKeeperUnavailable or StartFailed, this also
        after `abandon_start`."""
        java, jars = find_java(), spark_jars()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        config = self.data_dir / "zoo.cfg"
        own = _CONFIG.format(data_dir=self.data_dir.resolve(), host=self.host, port=self.port)
        config.write_text(own + self._settings)
        (self.data_dir / "logback.xml").write_text(_LOGBACK)
        (self.data_dir / "log4j2.properties").write_text(_LOG4J2)
        command = [
            *self._prefix,
            str(java),
            f"-Xmx{self._heap}",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            *(self._jvm or _shared(java)),
            "-Dzookeeper.admin.enableServer=false",
            f"-Dlogback.configurationFile={self.data_dir.resolve() / 'logback.xml'}",
            f"-Dlog4j2.configurationFile={self.data_dir.resolve() / 'log4j2.properties'}",
            "-cp",
            os.pathsep.join(str(jar) for name in _JARS for jar in sorted(jars.glob(f"{name}*.jar"))),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(config),
        ]
        self._process = ChildProcess(
            "zookeeper",
            command,
            log=self.data_dir / "zookeeper.log",
            pid_file=self.data_dir / "zookeeper.pid",
        )
        if not self._abandoned.is_set():
            self._process.start()
        served = wait_until(
            lambda: self._abandoned.is_set() or not self.running or self._serves(), timeout_s=timeout_s
        )
        if not served or not self.running or self._abandoned.is_set():
            tail = self._process.log_tail()
            self._process.stop(ABANDONED_GRACE_S)
            self._process.kill_group()
            raise StartFailed(f"ZooKeeper did not come up on {self.connect}:\n{tail}")

    def _serves(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=5) as probe:
                probe.sendall(b"srvr")
                return b"Mode: standalone" in probe.recv(4096)
        except OSError:
            return False

    def abandon_start(self) -> None:
        """A `start` in another thread ends with StartFailed, as does the next one, until `stop` is called."""
        self._abandoned.set()

    def stop(self, timeout_s: float = 10) -> None:
        self._abandoned.clear()
        if self._process is not None:
            self._process.stop(timeout_s)
            self._process = None

    def kill(self) -> None:
        """SIGKILL, which simulates a crash."""
        if self._process is not None:
            self._process.kill()


def _shared(java: Path) -> tuple[str, ...]:
    archive = class_archive(java)
    return (f"-XX:SharedArchiveFile={archive}", *_QUIET) if archive.exists() else ()


if __name__ == "__main__":
    write_class_archive()
