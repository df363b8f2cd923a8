"""SCRAM credentials of users, cached from the nodes of /config/users, which also have the users' quotas.

Updated by `dynamic_configs`, read by the SCRAM mechanism for every login, and by the handlers of
DescribeUserScramCredentials and AlterUserScramCredentials. Kafka's ZooKeeper-based tools write the same
nodes.

`decoy` returns a fake credential for users that do not exist, so that a client cannot test for users. It is
the same on every broker and after a restart, without a shared secret: it is derived from the keys of a real
user, the next one on a hash ring. So a change of users changes few decoys, and the keys of one user reveal
few.
"""

from __future__ import annotations

import hashlib
import logging
from bisect import bisect
from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import NamedTuple

from ottla.metadata.client_quotas import desanitize
from ottla.metadata.dynamic_configs import USERS
from ottla.security.scram import (
    ITERATIONS_MIN,
    MECHANISMS,
    Decoy,
    Lookup,
    ScramCredential,
    decoy_credential,
)

log = logging.getLogger(__name__)


class _Ring(NamedTuple):
    """The users of one mechanism, by the hash of their names."""

    users: list[tuple[bytes, str]]
    common: frozenset[int]
    """Iteration counts of several users."""
    rare: range
    """The range of the iteration counts of single users: the operator's users each have a different one."""

    @classmethod
    def of(cls, known: Mapping[str, ScramCredential]) -> _Ring:
        users = sorted((_hash(user), user) for user in known)
        counts = Counter(credential.iterations for credential in known.values())
        rare = [iterations for iterations, count in counts.items() if count == 1] or [ITERATIONS_MIN]
        common = frozenset(iterations for iterations, count in counts.items() if count > 1)
        return cls(users, common, range(min(rare), max(rare) + 1))


def _hash(user: str) -> bytes:
    return hashlib.sha256(user.encode()).digest()


class ScramCredentials:
    def __init__(self, random: Random) -> None:
        self._known: dict[str, dict[str, ScramCredential]] = {name: {} for name in MECHANISMS}
        self._rings: dict[str, _Ring] = {}
        """The rings by mechanism; removed when a credential changes."""
        self._without_users = ScramCredential(
            random.randbytes(16).hex().encode(), random.randbytes(64), random.randbytes(64), ITERATIONS_MIN
        )

    def on_entity_changed(self, entity_type: str, entity: str, settings: Mapping[str, str]) -> None:
        """Update the credentials of a user from the settings of its node; `entity` is the node's name."""
        if entity_type != USERS or "/" in entity:
            return
        user = desanitize(entity)
        if user is None:
            return
        for mechanism, known in self._known.items():
            text = settings.get(mechanism)
            if known.pop(user, None) is not None or text is not None:
                self._rings.pop(mechanism, None)
            if text is None:
                continue
            try:
                known[user] = ScramCredential.of_text(text)
            except ValueError as problem:
                log.error("Ignoring the %s credential of %s: %s", mechanism, user, problem)

    def of(self, mechanism: str) -> Lookup:
        """The lookup of users' credentials for a mechanism."""
        return self._known[mechanism].get

    def decoy(self, mechanism: str) -> Decoy:
        """The lookup of fake credentials for users and delegation tokens that do not exist."""
        known = self._known[mechanism]

        def of(name: str, by_token: bool) -> ScramCredential:
            # The salts of delegation tokens differ between brokers, as those of `new_credential`.
            if by_token or not known:
                return decoy_credential(name, self._without_users, range(ITERATIONS_MIN, ITERATIONS_MIN + 1))
            ring = self._rings.get(mechanism)
            if ring is None:
                ring = self._rings[mechanism] = _Ring.of(known)
            _, user = ring.users[bisect(ring.users, (_hash(name), "")) % len(ring.users)]
            like = known[user]
            is_common = like.iterations in ring.common
            return decoy_credential(
                name, like, range(like.iterations, like.iterations + 1) if is_common else ring.rare
            )

        return of
