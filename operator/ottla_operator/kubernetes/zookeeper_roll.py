"""Which ZooKeeper server to replace next, when its pods are not of the StatefulSet's newest revision.

Pure, but for asking servers who leads. One at a time, while all others serve; the leader last, so that there
is one election and not several. One that cannot start on its old revision is replaced at once.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

from ottla_operator.kubernetes import observing
from ottla_operator.kubernetes.observing import Object

_REVISION_LABEL = "controller-revision-hash"
_TIMEOUT_S = 3.0


def stale_members(stateful_set: Object, pods: Mapping[int, Object]) -> list[int]:
    """Pods of an older revision; none while the controller has not seen the newest template."""
    status = stateful_set.get("status") or {}
    if status.get("observedGeneration") != stateful_set["metadata"].get("generation"):
        return []
    newest = status.get("updateRevision")
    return [
        member
        for member, pod in sorted(pods.items())
        if (pod["metadata"].get("labels") or {}).get(_REVISION_LABEL) != newest
    ]


def next_to_replace(
    stateful_set: Object, pods: Mapping[int, Object], members: int, leader: int | None
) -> int | None:
    """The member to replace now, or None: nothing to do, or something to wait for."""
    stale = stale_members(stateful_set, pods)
    if not stale or any(pod["metadata"].get("deletionTimestamp") for pod in pods.values()):
        return None
    unready = [
        member for member in range(members) if member not in pods or not observing.is_ready(pods[member])
    ]
    if unready:
        return next((member for member in stale if unready == [member]), None)
    followers = [member for member in stale if member != leader]
    return followers[0] if followers else stale[0]


async def leader_of(hosts: Mapping[int, str], port: int, context: ssl.SSLContext | None = None) -> int | None:
    """The member that says that it leads; None when none does. `context`: for a port with TLS."""
    modes = await asyncio.gather(*(_mode(host, port, context) for host in hosts.values()))
    for member, mode in zip(hosts, modes, strict=True):
        if mode == "leader":
            return member
    return None


async def _mode(host: str, port: int, context: ssl.SSLContext | None) -> str:
    """`leader`, `follower`, or "" when the server does not say."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            try:
                writer.write(b"srvr")
                answer = await reader.read(65536)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return ""
    for line in answer.decode(errors="replace").splitlines():
        if line.startswith("Mode: "):
            return line.removeprefix("Mode: ").strip()
    return ""
