"""A certified OpenID provider as a process: `oidc-provider` of npm; skips the test without npm's registry.

with openid_provider(directory, callback) as provider:   # provider.issuer, provider.keys_url, provider.log()
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from ottla.local.processes import ChildProcess, free_port, wait_until

VERSION: Final = "9.13.3"
CLIENT, SECRET, AUDIENCE = "ottla-console", "a secret: of the test?", "kafka"
_CACHE: Final = Path.home() / ".cache" / "ottla" / f"oidc-provider-{VERSION}"
_PROGRAM: Final = Path(__file__).with_suffix(".mjs")


class OpenIdProvider(NamedTuple):
    """A running provider."""

    port: int
    file: Path

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def keys_url(self) -> str:
        return f"{self.issuer}/jwks"

    def log(self) -> list[str]:
        """Its events."""
        return self.file.read_text().splitlines()


@contextmanager
def openid_provider(directory: Path, callback: str, *, access_token_s: int = 600) -> Iterator[OpenIdProvider]:
    """`callback`: the redirect URI of its client."""
    program = _installed()
    port, log = free_port(), directory / "provider.log"
    settings = {
        "port": port,
        "client": CLIENT,
        "secret": SECRET,
        "callback": callback,
        "audience": AUDIENCE,
        "accessTokenSeconds": access_token_s,
    }
    process = ChildProcess("oidc-provider", ["node", str(program), json.dumps(settings)], log=log)
    process.start()
    try:
        assert wait_until(
            lambda: not process.running or (log.exists() and "serving" in log.read_text()), timeout_s=60
        )
        assert process.running, log.read_text()
        yield OpenIdProvider(port, log)
    finally:
        process.kill()


def _installed() -> Path:
    """The program beside its modules, since node looks for them from there."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm: not here")
    _CACHE.mkdir(parents=True, exist_ok=True)
    program = _CACHE / _PROGRAM.name
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side
        if not (_CACHE / "node_modules" / "oidc-provider").exists():
            (_CACHE / "package.json").write_text(json.dumps({"private": True, "type": "module"}))
            command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
            ran = subprocess.run(
                [*command, f"oidc-provider@{VERSION}"],
                cwd=_CACHE,
                capture_output=True,
                text=True,
                timeout=200,
                check=False,
            )
            if ran.returncode:
                pytest.skip(f"npm: oidc-provider cannot be installed: {ran.stderr[-300:]}")
        program.write_text(_PROGRAM.read_text())
    return program
