"""Traffic on a cluster during a test, and the assertions about it afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.e2e.clusters import Cluster

_END_S = 200


class Traffic:
    """A producer with acks=all, a consumer and a recorder of ISRs, on the node; they end with the test."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        per_second: int = 200,
        security: Mapping[str, str] | None = None,
    ) -> None:
        """`security`: settings of librdkafka for the connection; its `bootstrap.servers` has precedence."""
        kube = cluster.kube
        if not kube.has_node:
            pytest.skip("needs OTTLA_KUBE: real clients run on its node, where Services have names")
        program = str(Path(__file__).with_name("traffic.py"))
        self._command = kube.on_node(
            *(sys.executable, program, "--bootstrap", cluster.broker_addresses(), "--topic", topic),
            *("--per-second", str(per_second), "--security", json.dumps(security or {})),
        )
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._log = Path(tempfile.gettempdir()) / f"ottla-e2e-traffic-{os.getpid()}.log"
        self._acknowledged = 0
        self._consumed = 0
        self.summary: dict[str, Any] = {}

    def __enter__(self) -> Self:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.wait_for_more(50)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            self._acknowledged, self._consumed = said["acknowledged"], said["consumed"]
            if said.get("summary"):
                self.summary = said

    def wait_for_more(self, records: int, timeout_s: float = 180) -> None:
        """Waits until so many more records are acknowledged and consumed."""
        acknowledged, consumed = self._acknowledged + records, self._consumed + records
        deadline = time.monotonic() + timeout_s
        while self._acknowledged < acknowledged or self._consumed < consumed:
            assert self._process is not None
            assert self._process.poll() is None, "the clients have ended"
            assert time.monotonic() < deadline, (
                f"no {records} more records in {timeout_s:.0f} s: "
                f"{self._acknowledged} acknowledged, {self._consumed} consumed"
            )
            time.sleep(0.1)

    def stop(self) -> dict[str, Any]:
        """Ends the clients, which finish their work, and returns their summary."""
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._reader is not None
            self._process.stdin.close()
            try:
                self._process.wait(_END_S)
            finally:
                self._process.kill()
            self._reader.join(10)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None
            print("traffic:", json.dumps(self.summary))
        return self.summary

    def assert_lost_nothing(self, *, min_isr: int = 2, isr_kept: bool = True) -> None:
        """`isr_kept`: only the operator stopped brokers, so no ISR fell below its minimum."""
        said = self.stop()
        assert said, "the clients gave no account"
        assert said["lost_count"] == 0, said
        assert said["doubled"] == 0, said
        assert said["errors"] == [], said
        assert said["acknowledged"] > 0
        if isr_kept:
            assert said["isr_min"] >= min_isr, said
