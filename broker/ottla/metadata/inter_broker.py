"""inter.broker.protocol.version: the versions of requests between brokers (2.8 to 3.9).

Used by the validation of settings, the connections to other brokers, and the controller. A cluster is
upgraded in two rolling restarts: first new brokers with the old protocol version, then the new protocol
version. A version changes requests and the format of the /feature node only, so both restarts can be rolled
back.

    2.8-IV0  the oldest supported: Fetch 12, ListOffsets 6, LeaderAndIsr 4, UpdateMetadata 6
    2.8-IV1  topic ids in LeaderAndIsr 5 and UpdateMetadata 7
    3.0-IV1  ListOffsets 7
    3.1-IV0  Fetch 13, by topic ids
    3.2-IV0  LeaderAndIsr 6: leader recovery state after an unclean election (KIP-704)
    3.3-IV0  /feature in its version 2
    3.4-IV0  LeaderAndIsr 7, UpdateMetadata 8, StopReplica 4
    3.5-IV0  Fetch 14, ListOffsets 8
    3.5-IV1  Fetch 15: the follower's broker epoch (KIP-903)
    3.7-IV4  Fetch 16
    3.9-IV0  Fetch 17, ListOffsets 9

AlterPartition, ControlledShutdown and OffsetForLeaderEpoch are the same in all of them. Below 3.0-IV1 Kafka
applies message.format.version, and stores records in format 0 or 1 if it is below 0.11.0. Ottla always stores
format 2, so it rejects such a broker setting below 3.0-IV1; from 3.0-IV1 the setting is ignored, as in Kafka.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ottla.protocol import messages as m

VERSIONS: Final = (
    *("2.8-IV0", "2.8-IV1", "3.0-IV0", "3.0-IV1", "3.1-IV0", "3.2-IV0"),
    *("3.3-IV0", "3.3-IV1", "3.3-IV2", "3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2"),
    *("3.6-IV0", "3.6-IV1", "3.6-IV2", "3.7-IV0", "3.7-IV1", "3.7-IV2", "3.7-IV3", "3.7-IV4"),
    *("3.8-IV0", "3.9-IV0"),
)

_HIGHEST: Final[dict[int, tuple[tuple[str, int], ...]]] = {
    m.FetchRequest.api_key: (
        *(("2.8-IV0", 12), ("3.1-IV0", 13), ("3.5-IV0", 14), ("3.5-IV1", 15), ("3.7-IV4", 16)),
        ("3.9-IV0", 17),
    ),
    m.ListOffsetsRequest.api_key: (*(("2.8-IV0", 6), ("3.0-IV1", 7), ("3.5-IV0", 8), ("3.9-IV0", 9)),),
    m.LeaderAndIsrRequest.api_key: (("2.8-IV0", 4), ("2.8-IV1", 5), ("3.2-IV0", 6), ("3.4-IV0", 7)),
    m.UpdateMetadataRequest.api_key: (("2.8-IV0", 6), ("2.8-IV1", 7), ("3.4-IV0", 8)),
    m.StopReplicaRequest.api_key: (("2.8-IV0", 3), ("3.4-IV0", 4)),
}


@dataclass(frozen=True, slots=True)
class InterBrokerVersion:
    """One of VERSIONS; `of` parses it."""

    name: str

    @classmethod
    def of(cls, text: str) -> InterBrokerVersion:
        """ "3.5-IV1", or "3.5" or "3.5.2" for the last of 3.5. Raises ValueError, with a message."""
        wanted = ".".join(text.split(".")[:2])
        if wanted in VERSIONS:
            return cls(wanted)
        of_release = [name for name in VERSIONS if name.partition("-")[0] == wanted]
        if not of_release:
            raise ValueError(f"Version {text} is not a valid version (2.8 to 3.9 are supported)")
        return cls(of_release[-1])

    def is_at_least(self, name: str) -> bool:
        return VERSIONS.index(self.name) >= VERSIONS.index(name)

    def highest_of(self, api_key: int) -> int | None:
        """The highest version of a request; None if the setting does not limit it."""
        highest = None
        for since, version in _HIGHEST.get(api_key, ()):
            if self.is_at_least(since):
                highest = version
        return highest

    def limits(self) -> dict[int, int]:
        """The highest versions of all requests that the setting limits, by API key."""
        limits = {}
        for api_key in _HIGHEST:
            highest = self.highest_of(api_key)
            assert highest is not None, "2.8-IV0 has a version of each"
            limits[api_key] = highest
        return limits

    def format_problem(self, message_format: str) -> str | None:
        """The error of log.message.format.version, or None."""
        release = tuple(int(part) for part in re.findall(r"\d+", message_format.partition("-")[0]))
        if self.is_at_least("3.0-IV1") or release >= (0, 11):
            return None
        return (
            "must be 0.11.0 or later: it applies below inter.broker.protocol.version 3.0, and records are "
            "always stored in format 2"
        )

    @property
    def has_leader_recovery(self) -> bool:
        """Whether LeaderAndIsr has the leader recovery state (KIP-704)."""
        return self.is_at_least("3.2-IV0")

    @property
    def feature_node(self) -> int:
        """The version of /feature that a controller writes."""
        return 2 if self.is_at_least("3.3-IV0") else 1


LATEST: Final = InterBrokerVersion("3.9-IV0")
