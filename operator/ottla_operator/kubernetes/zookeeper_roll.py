"""The rolling restart of ZooKeeper: which server with an older StatefulSet revision to replace next.

Pure, but for `leader_of`, which queries the servers. One server is replaced at a time, while all others
serve; the leader last, so that there is one election only. A server that cannot start on its old revision is
replaced at once.
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
    """Members with an older revision; none before the StatefulSet controller has observed the newest
    template."""
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
    """The member to replace now; None when there is none or another one is not ready."""
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
    """The member in mode leader; None when there is none. `context`: for a port with TLS."""
    modes = await asyncio.gather(*(_mode(host, port, context) for host in hosts.values()))
    for member, mode in zip(hosts, modes, strict=True):
        if mode == "leader":
            return member
    return None


async def _mode(host: str, port: int, context: ssl.SSLContext | None) -> str:
    """The mode that `srvr` reports: `leader`, `follower`, or "" without a response."""
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
