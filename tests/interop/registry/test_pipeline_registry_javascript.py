"""The registry by clients for JavaScript: Confluent's and KafkaJS's, with all three formats."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.judges.registries import Registry
from tests.oracles import JUDGES

PACKAGES = {
    "@confluentinc/schemaregistry": "1.10.1",
    "@kafkajs/confluent-schema-registry": "4.1.0",
    "protobufjs": "7.6.6",
}
SCRIPT = JUDGES / "registry_clients.mjs"
CACHE = Path.home() / ".cache" / "ottla" / "registry-clients-1"


@pytest.fixture(scope="module")
def modules() -> Path:
    """Where the packages are installed; without npm or its registry the tests are skipped."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("npm: not here")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side
        if not (CACHE / "done").exists():
            install()
    return CACHE


def install() -> None:
    """From nothing: what an installation that was broken off has left is removed."""
    shutil.rmtree(CACHE / "node_modules", ignore_errors=True)
    (CACHE / "package.json").write_text(json.dumps({"private": True, "dependencies": PACKAGES}))
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock"]
    try:
        ran = subprocess.run(command, cwd=CACHE, capture_output=True, text=True, timeout=280, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("npm: the clients of the registry could not be installed in time")
    if ran.returncode:
        pytest.skip(f"npm: the clients of the registry cannot be installed: {ran.stderr[-300:]}")
    (CACHE / "done").touch()


@pytest.mark.parametrize("schema_type", ["AVRO", "JSON", "PROTOBUF"])
@pytest.mark.parametrize("client", ["kafkajs", "confluent"])
def test_a_value_makes_a_round_trip(registry: Registry, modules: Path, client: str, schema_type: str) -> None:
    command = ["node", str(SCRIPT), registry.url, client, schema_type]
    environment = {**os.environ, "NODE_MODULES_OF": str(modules)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ran.stdout.endswith("done\n"), ran.stdout + ran.stderr
