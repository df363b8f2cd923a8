"""Prometheus, Debian's: `with Prometheus(...) as server` scrapes targets and evaluates queries; promtool."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from ottla.local.processes import ChildProcess, free_port, wait_until

HOST = "127.0.0.1"
INTERVAL_S = 1


def program(name: str) -> str:
    """The path of `prometheus` or `promtool`; skips the test without it."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: apt-get install prometheus")
    return found


def promtool(*arguments: str) -> str:
    """The output of promtool, which succeeds."""
    command = [program("promtool"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Prometheus:
    """A server over a folder of its own. `targets`: host:port by job, with the labels of each."""

    def __init__(
        self, directory: Path, targets: Mapping[str, Sequence[tuple[str, Mapping[str, str]]]], rules: Path
    ) -> None:
        config = directory / "prometheus.yml"
        jobs = [
            {
                "job_name": job,
                "honor_labels": True,
                "static_configs": [
                    {"targets": [target], "labels": dict(labels)} for target, labels in several
                ],
            }
            for job, several in targets.items()
        ]
        settings = {"scrape_interval": f"{INTERVAL_S}s", "evaluation_interval": f"{INTERVAL_S}s"}
        document = {"global": settings, "scrape_configs": jobs, "rule_files": [str(rules)]}
        config.write_text(yaml.safe_dump(document))
        self.address = f"{HOST}:{free_port(HOST)}"
        self._log = directory / "prometheus.log"
        self._process = ChildProcess(
            "prometheus",
            [
                *(program("prometheus"), f"--config.file={config}", f"--web.listen-address={self.address}"),
                f"--storage.tsdb.path={directory / 'data'}",
            ],
            log=self._log,
        )

    def __enter__(self) -> Self:
        self._process.start()
        try:
            assert wait_until(self._is_ready, timeout_s=60), self._log.read_text()
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stop(30)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=10) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def get(self, path: str, **parameters: str) -> Any:
        """The data of a response of the HTTP API, which succeeds."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as refused:
            with refused:
                raise AssertionError(f"{parameters}: {refused.read().decode()}") from None
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant vector."""
        found = self.get("query", query=expression)
        assert found["resultType"] == "vector", expression
        samples: list[dict[str, Any]] = found["result"]
        return samples
