"""A PostgreSQL server for one test: `with postgresql() as server`. Skips the test where none is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ottla.local.processes import ChildProcess, free_port, wait_until

USER, PASSWORD, DATABASE = "shop", "secret of the shop", "shop"
HOST = "127.0.0.1"
SYSTEM_USER = "postgres"
"""Root may not run the server: it is this user's then."""


@dataclass(frozen=True)
class PostgreSql:
    """A running server with one database."""

    programs: Path
    port: int

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def execute(self, statements: str) -> None:
        """Runs SQL, all of it in one transaction."""
        command = [self.programs / "psql", "-h", HOST, "-p", str(self.port), "-U", USER, "-d", DATABASE]
        done = subprocess.run(
            [*command, "-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-f", "-"],
            env={**os.environ, "PGPASSWORD": PASSWORD},
            input=statements,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def programs() -> Path:
    """The folder of the server's programs; Debian keeps them out of PATH."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = str(versions[-1]) if versions else shutil.which("initdb")
    if found is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    return Path(found).resolve().parent


@contextmanager
def postgresql() -> Iterator[PostgreSql]:
    where, port = programs(), free_port(HOST)
    with tempfile.TemporaryDirectory(prefix="ottla-postgresql-") as folder:
        data, secret = Path(folder) / "data", Path(folder) / "password"
        secret.write_text(PASSWORD)
        if os.geteuid() == 0:
            for path in (Path(folder), secret):
                shutil.chown(path, SYSTEM_USER, SYSTEM_USER)
        made = [where / "initdb", "-D", data, "-U", USER, "--pwfile", secret, "-A", "scram-sha-256", "-N"]
        done = subprocess.run(
            _as_user([*map(str, made), "-E", "UTF8", "--no-locale"]),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        settings = {"listen_addresses": HOST, "unix_socket_directories": "", "fsync": "off"}
        given = [word for name, text in settings.items() for word in ("-c", f"{name}={text}")]
        command = [str(where / "postgres"), "-D", str(data), "-p", str(port), *given]
        server = ChildProcess("postgresql", _as_user(command), log=Path(folder) / "log", folder=Path(folder))
        server.start()
        try:
            ready = [where / "pg_isready", "-q", "-h", HOST, "-p", str(port)]
            assert wait_until(
                lambda: not server.running or subprocess.run(ready, check=False).returncode == 0, timeout_s=60
            )
            assert server.running, server.log_tail()
            found = PostgreSql(where, port)
            create = [where / "createdb", "-h", HOST, "-p", str(port), "-U", USER, DATABASE]
            subprocess.run(create, env={**os.environ, "PGPASSWORD": PASSWORD}, timeout=60, check=True)
            yield found
        finally:
            server.stop(timeout_s=30)


def _as_user(command: Sequence[str]) -> list[str]:
    """The command line under the system's postgres user, if we are root; the process ends with this one."""
    if os.geteuid() != 0:
        return list(command)
    ids = ("--reuid", SYSTEM_USER, "--regid", SYSTEM_USER, "--clear-groups")
    return ["setpriv", *ids, "--pdeathsig", "KILL", *command]
