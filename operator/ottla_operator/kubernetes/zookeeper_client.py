"""Requests of the operator to ZooKeeper servers: their roles, and the ACLs of existing nodes.

Called by the platform. The node ACLs are set once for a cluster that was created without
zookeeper.set.acl=true, as Kafka's zookeeper-security-migration does, and again after an interruption: a node
that has its ACL is not written. The operator is ZooKeeper's super user. The ACLs are those of
`ottla.metadata.kazoo_adapter`, with the brokers' distinguished name as the creator.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.security import ACL, Id

from ottla.metadata import znodes
from ottla.metadata.kazoo_adapter import node_acls
from ottla.metadata.kazoo_connection import new_client
from ottla.metadata.zookeeper_access import ZooKeeperAccess
from ottla.security.tls import TlsSettings
from ottla_operator.kubernetes.zookeeper_planning import ServerRole

SetAcls = Callable[[str, TlsSettings, str], int]
"""(zookeeper.connect, TLS settings, the brokers' distinguished name) -> the number of changed nodes."""

FindRoles = Callable[[Mapping[int, str], int, ssl.SSLContext | None], Awaitable[Mapping[int, ServerRole]]]
"""(host by member, port, TLS settings of the port) -> the role of each member."""

# Requests in flight.
_BATCH: Final = 500
_TIMEOUT_S: Final = 20.0
_MONITOR_TIMEOUT_S: Final = 3.0
_SESSION_TIMEOUT_S: Final = 10.0
# ZooKeeper's own nodes and those of 0.8 consumers, which Kafka's tool skips, too.
_NOT_BROKERS: Final = ("/zookeeper", znodes.CONSUMERS)


def set_acls(connect: str, tls: TlsSettings, owner: str) -> int:
    """Set the ACLs of all nodes; returns the number of changed ones. Blocks. Raises kazoo's errors."""
    client = new_client(connect, _SESSION_TIMEOUT_S, ZooKeeperAccess(tls=tls))
    try:
        client.start(timeout=_TIMEOUT_S)
        return _set_below(client, owner)
    finally:
        client.stop()
        client.close()


def _set_below(client: KazooClient, owner: str) -> int:
    changed, waiting = 0, iter(["/"])
    while batch := list(islice(waiting, _BATCH)):
        # ACLs are set before children are listed: nodes that brokers create later have theirs from the start.
        wanted = {path: _acls_of(path, owner) for path in batch}
        found = dict(_results({path: client.get_acls_async(path) for path in batch}))
        stale = [path for path, (acls, _) in found.items() if set(acls) != set(wanted[path])]
        changed += len(list(_results({path: client.set_acls_async(path, wanted[path]) for path in stale})))
        children = dict(_results({path: client.get_children_async(path) for path in found}))
        below = [f"{path.rstrip('/')}/{name}" for path, names in children.items() for name in names]
        waiting = iter([*waiting, *(path for path in below if path not in _NOT_BROKERS)])
    return changed


def _results(requests: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The results of the requests, without nodes that no longer exist."""
    for path, request in requests.items():
        try:
            yield path, request.get(timeout=_TIMEOUT_S)
        except NoNodeError:
            continue


def _acls_of(path: str, owner: str) -> list[ACL]:
    return [
        ACL(acl.perms, Id("x509", owner)) if acl.id.scheme == "auth" else acl
        for acl in node_acls(path, secure=True)
    ]


async def roles_of(
    hosts: Mapping[int, str], port: int, context: ssl.SSLContext | None = None
) -> dict[int, ServerRole]:
    """The role of each server. `context`: for a port with TLS."""
    answers = await asyncio.gather(*(_monitor(host, port, context) for host in hosts.values()))
    return {member: _role(answer) for member, answer in zip(hosts, answers, strict=True)}


async def _monitor(host: str, port: int, context: ssl.SSLContext | None) -> str:
    """The answer to `mntr`, or ""."""
    try:
        async with asyncio.timeout(_MONITOR_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            try:
                writer.write(b"mntr")
                answer = await reader.read()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return ""
    return answer.decode(errors="replace")


def _role(answer: str) -> ServerRole:
    """The role in the answer to `mntr`: a line for each metric, with its name, a tab and its value."""
    metrics = dict(line.split("\t", 1) for line in answer.splitlines() if "\t" in line)
    synced = metrics.get("zk_synced_followers", "0").partition(".")[0]
    return ServerRole(metrics.get("zk_server_state", ""), int(synced) if synced.isdigit() else 0)
