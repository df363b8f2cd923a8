"""SCRAM credentials as the brokers know them: the nodes of /config/users, beside the users' quotas.

Called by `dynamic`'s follower (`heard`), asked by the mechanism for every client that logs in, and read and
written by the handler of Describe- and AlterUserScramCredentials. Kafka's tools that talk to ZooKeeper
themselves write the same nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ottla.metadata.client_quotas import desanitize
from ottla.metadata.dynamic import USERS
from ottla.security.scram import MECHANISMS, Lookup, ScramCredential

log = logging.getLogger(__name__)


class ScramCredentials:
    def __init__(self) -> None:
        self._known: dict[str, dict[str, ScramCredential]] = {name: {} for name in MECHANISMS}

    def heard(self, entity_type: str, entity: str, settings: Mapping[str, str]) -> None:
        """The settings of a user, by the node's name, are these now."""
        if entity_type != USERS or "/" in entity:
            return
        user = desanitize(entity)
        if user is None:
            return
        for mechanism, known in self._known.items():
            text = settings.get(mechanism)
            known.pop(user, None)
            if text is None:
                continue
            try:
                known[user] = ScramCredential.of_text(text)
            except ValueError as problem:
                log.error("ignoring the %s credential of %s: %s", mechanism, user, problem)

    def of(self, mechanism: str) -> Lookup:
        """What finds a user's credential for that mechanism."""
        return self._known[mechanism].get
