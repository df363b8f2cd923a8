"""SCRAM credentials as the brokers know them: the nodes of /config/users, beside the users' quotas.

Called by `dynamic`'s follower (`heard`), asked by the mechanism for every client that logs in, and read and
written by the handler of Describe- and AlterUserScramCredentials. Kafka's tools that talk to ZooKeeper
themselves write the same nodes.

`decoy` gives the credential that is shown for a user that does not exist. It looks like a real one and is the
same at each broker and after a restart. Brokers need not share a secret for that: it is derived from the keys
of a real user, the next one on a hash ring. So a change of users changes few decoys, and the keys of one user
reveal few.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from bisect import bisect
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from ottla.metadata.client_quotas import desanitize
from ottla.metadata.dynamic import USERS
from ottla.security.scram import (
    ITERATIONS_MIN,
    MECHANISMS,
    Decoy,
    Lookup,
    ScramCredential,
    decoy_credential,
    new_nonce,
)

log = logging.getLogger(__name__)


class _Ring(NamedTuple):
    """The users of one mechanism, by the hash of their names."""

    users: list[tuple[bytes, str]]
    common: frozenset[int]
    """Numbers of iterations that several users have."""
    rare: range
    """From the lowest to the highest of those that one user has: the operator's users each have their own."""

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
    def __init__(self) -> None:
        self._known: dict[str, dict[str, ScramCredential]] = {name: {} for name in MECHANISMS}
        self._rings: dict[str, _Ring] = {}
        """Of each mechanism, while they are up to date."""
        self._without_users = ScramCredential(
            new_nonce().encode(), secrets.token_bytes(64), secrets.token_bytes(64), ITERATIONS_MIN
        )

    def heard(self, entity_type: str, entity: str, settings: Mapping[str, str]) -> None:
        """The settings of a user, by the node's name, are these now."""
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
                log.error("ignoring the %s credential of %s: %s", mechanism, user, problem)

    def of(self, mechanism: str) -> Lookup:
        """What finds a user's credential for that mechanism."""
        return self._known[mechanism].get

    def decoy(self, mechanism: str) -> Decoy:
        """What gives the credential to show for a user, or a delegation token, that does not exist."""
        known = self._known[mechanism]

        def of(name: str, by_token: bool) -> ScramCredential:
            # Each broker draws the salts of delegation tokens itself, as `new_credential` does.
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
