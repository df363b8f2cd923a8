"""A server with S3's API over a folder: Versity's gateway, built from its Go module once a machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from ottla.local.processes import ChildProcess, port_in_use, wait_until
from tests.judges.up_session import free_ports

_MODULE: Final = "github.com/versity/versitygw/cmd/versitygw"
_VERSION: Final = "v1.8.0"
_PLACE: Final = Path.home() / ".cache" / "ottla" / f"versitygw-{_VERSION}"
BUCKET: Final = "backups"


class S3Server(NamedTuple):
    """A running server with one bucket."""

    endpoint: str
    credentials: dict[str, str]
    """Environment variables of its only user."""
    folder: Path
    """The bucket's objects, as files."""


def _binary() -> Path:
    found = _PLACE / "versitygw"
    if not found.exists():
        go = shutil.which("go")
        if go is None:
            pytest.skip("needs Go, to build an S3 server")
        environment = {**os.environ, "GOBIN": str(_PLACE)}
        subprocess.run([go, "install", f"{_MODULE}@{_VERSION}"], check=True, timeout=900, env=environment)
    return found


@contextmanager
def s3_server(directory: Path) -> Iterator[S3Server]:
    """Run the server over a folder below `directory`."""
    port = free_ports(1)
    server, command = s3_command(directory, f"127.0.0.1:{port}")
    process = ChildProcess("s3", command, log=directory / "s3.log")
    process.start()
    try:
        assert wait_until(lambda: port_in_use(port), timeout_s=60), (directory / "s3.log").read_text()
        yield server
    finally:
        process.kill()


def s3_command(directory: Path, address: str) -> tuple[S3Server, list[str]]:
    """The server at this address over a folder below `directory`, and the command line that runs it."""
    root = directory / "s3"
    bucket = root / BUCKET
    bucket.mkdir(parents=True)
    key, secret = "key", "secret-of-the-test"
    command = [str(_binary()), "--access", key, "--secret", secret, "--port", address, "posix", str(root)]
    credentials = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
    return S3Server(f"http://{address}", credentials, bucket), command
