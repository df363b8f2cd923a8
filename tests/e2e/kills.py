"""Kills the operator each time that an observed state changes.

Used by the tests of rolls, of scaling and of deletions. `look` returns the observed state as text. The
Deployment replaces a killed operator, which has to continue from there.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tests.e2e.clusters import SYSTEM
from tests.e2e.kube import Kube, Object

_SELECTOR = "app.kubernetes.io/name=ottla-operator"
_POLL_S = 0.2

# Given a pod's uid on the node: no warning, as when a node is lost.
_SIGKILL = (
    'for p in /proc/[0-9]*; do ! grep -qs "$0" "$p/cgroup" || kill -KILL "${p#/proc/}" 2>/dev/null; done'
)


def kill_operator(kube: Kube) -> None:
    """Kills the operator's pod without grace, as the loss of a node does; its Deployment starts another."""
    for pod in _operators(kube):
        _kill(kube, pod)


def _operators(kube: Kube) -> list[Object]:
    return kube.list("pod", SYSTEM, _SELECTOR)


def _kill(kube: Kube, pod: Object) -> None:
    if kube.has_node:
        kube.run_on_node("sh", "-c", _SIGKILL, pod["metadata"]["uid"])
    kube.delete("pod", pod["metadata"]["name"], SYSTEM, "--grace-period=0", "--force", "--wait=false")


class KilledAtEachStep:
    """Kills the operator whenever `look` returns a new state. `at`: the states. Errors of `look` are ignored:
    an observed object may be in deletion."""

    def __init__(self, kube: Kube, look: Callable[[], object]) -> None:
        self._kube, self._look = kube, look
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.at: list[str] = []

    def __enter__(self) -> Self:
        self._seen = {self._said()}
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> list[str]:
        """Stops killing. Returns the states at which the operator was killed."""
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join(60)
            print(f"the operator was killed {len(self.at)} times, at:", *self.at, sep="\n  ")
        return self.at

    def _said(self) -> str:
        return json.dumps(self._look())

    def _run(self) -> None:
        while not self._stop.wait(_POLL_S):
            try:
                said = self._said()
                if said in self._seen:
                    continue
                running = [pod for pod in _operators(self._kube) if pod["status"].get("phase") == "Running"]
                if not running:
                    continue
                for pod in running:
                    _kill(self._kube, pod)
            except AssertionError as error:
                print(f"looking failed: {error}")
                time.sleep(1)
                continue
            self._seen.add(said)
            self.at.append(said)
