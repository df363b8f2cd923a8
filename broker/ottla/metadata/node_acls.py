"""The ACLs that nodes are created with: Kafka's rules (ZkData.defaultAcls), in kazoo's words.

Called by the ZooKeeper adapter for every node that it makes, the chroot's included. With
`zookeeper.set.acl=true` who made a node may do all with it, and everybody may read it unless secrets are kept
below it; /consumers stays open, as consumers of 0.8 write there. Who made it is whoever ZooKeeper has
authenticated: by SASL, by a client certificate, or both.
"""

from __future__ import annotations

from typing import Final

from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from ottla.metadata import znodes

_SENSITIVE: Final = ("/config/users", znodes.CONFIG_BROKERS, "/delegation_token/tokens")
"""Beginnings of paths, whatever comes behind them, as in Kafka."""


def node_acls(path: str, *, secure: bool) -> list[ACL]:
    if not secure or path == znodes.CONSUMERS:
        return list(OPEN_ACL_UNSAFE)
    if path.startswith(_SENSITIVE):
        return list(CREATOR_ALL_ACL)
    return [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]
