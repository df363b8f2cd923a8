"""kubectl and helm on a Kubernetes cluster, and waiting for conditions.

Used by all tests of this folder. Through kube.sh, the single-node cluster of a machine without registries
(OTTLA_KUBE is its path), or through kubectl and helm on the PATH and a KUBECONFIG.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Object = dict[str, Any]

# Of the manifests that helm renders without a cluster: its own default is older than the charts allow.
KUBE_VERSION = "1.31.0"


class CommandFailed(AssertionError):
    """A command failed; the message has its output."""

    def __init__(self, command: Sequence[str], output: str) -> None:
        super().__init__(f"{' '.join(command)}: {output}")
        self.output = output


class Kube:
    """One cluster. `script`: the path of kube.sh, or None for the KUBECONFIG."""

    def __init__(self, script: Path | None) -> None:
        self._script = script

    def command(self, tool: str, arguments: Iterable[str] = ()) -> list[str]:
        """The command line that runs `kubectl` or `helm` for this cluster, by its path: a script of the
        same name may run it."""
        program = [shutil.which(tool) or tool] if self._script is None else [str(self._script), tool]
        return [*program, *arguments]

    def kubectl(self, *arguments: str, text: str | None = None, timeout_s: float = 300) -> str:
        return _run(self.command("kubectl", arguments), text, timeout_s)

    def helm(self, *arguments: str, timeout_s: float = 600) -> str:
        return _run(self.command("helm", arguments), None, timeout_s)

    def on_node(self, *command: str) -> list[str]:
        """The command line that runs `command` where Service names resolve; None if there is no such
        place."""
        assert self._script is not None
        return [str(self._script), "node", *command]

    def run_on_node(self, *command: str, timeout_s: float = 60) -> str:
        return _run(self.on_node(*command), None, timeout_s)

    @property
    def has_node(self) -> bool:
        return self._script is not None

    # ---- objects

    def get(self, kind: str, name: str, namespace: str) -> Object | None:
        text = self.kubectl("get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def list(self, kind: str, namespace: str, selector: str = "") -> list[Object]:
        more = ["-l", selector] if selector else []
        found: list[Object] = json.loads(
            self.kubectl("get", kind, "-n", namespace, "-o", "json", "--ignore-not-found", *more)
            or '{"items": []}'
        )["items"]
        return found

    @contextmanager
    def watching(self, kind: str, name: str, namespace: str, path: str) -> Iterator[Sequence[str]]:
        """A list that grows by each value of the JSONPath `path` of an object; "" where it has none. A watch
        delivers every change, so that none is missed on a busy machine."""
        command = self.command("kubectl", ("get", kind, name, "-n", namespace, "-w", "-o"))
        process = subprocess.Popen(
            [*command, f'jsonpath={{{path}}}{{"\\n"}}'],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        seen: deque[str] = deque()

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                if not seen or seen[-1] != line.strip():
                    seen.append(line.strip())

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            wait_for("the watch has begun", lambda: seen, 60)
            yield seen
        finally:
            # The command may be a script: its kubectl has to end as well, or the reader never does.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            reader.join()
            assert process.stdout is not None
            process.stdout.close()

    def apply(self, *objects: Object) -> None:
        content = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "-f", "-", text=json.dumps(content))

    def patch(self, kind: str, name: str, namespace: str, patch: Object) -> None:
        self.kubectl("patch", kind, name, "-n", namespace, "--type=merge", "-p", json.dumps(patch))

    def delete(self, kind: str, name: str, namespace: str, *more: str) -> None:
        self.kubectl("delete", kind, name, "-n", namespace, "--ignore-not-found", *more)

    def ensure_namespace(self, name: str) -> None:
        """Creates the namespace unless it exists."""
        if not self.kubectl("get", "namespace", name, "--ignore-not-found", "-o", "name").strip():
            self.kubectl("create", "namespace", name)


def _run(command: list[str], text: str | None, timeout_s: float) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise CommandFailed(command, done.stderr.strip() or done.stdout.strip())
    return done.stdout


def stage_of(pod: Object) -> str:
    """`stopping`, `starting` or `ready`."""
    if pod["metadata"].get("deletionTimestamp"):
        return "stopping"
    conditions = pod.get("status", {}).get("conditions") or ()
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return "ready" if ready else "starting"


_PATIENCE = 3
"""Machines that test are busy: what is expected in a time may take so many times as long."""


def wait_for(what: str, look: Callable[[], T | None], timeout_s: float, poll_s: float = 0.5) -> T:
    """Waits until `look` returns a true value, and returns it; raises AssertionError after the time-out. A
    failed command counts as false: a pod may be starting, or the API server slow."""
    timeout_s *= _PATIENCE
    deadline = time.monotonic() + timeout_s
    while True:
        failed = ""
        try:
            seen = look()
            if seen:
                return seen
        except (CommandFailed, subprocess.TimeoutExpired) as error:
            failed = f": {error}"
        if time.monotonic() > deadline:
            raise AssertionError(f"not in {timeout_s:.0f} s: {what}{failed}")
        time.sleep(poll_s)
