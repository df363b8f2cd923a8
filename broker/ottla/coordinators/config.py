"""The coordinator's settings, under Kafka's names with `_` for `.` and `-`.

Made once by the server from its broker configuration, read by every module of this room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

MS_PER_MINUTE = 60_000


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Defaults are Kafka 3.9's."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4_096
    offsets_commit_required_acks: int = -1
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    offsets_topic_num_partitions: int = 50
    offsets_topic_compression_codec: int = 0

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * MS_PER_MINUTE

    @classmethod
    def read(cls, get_int: Callable[[str], int]) -> GroupConfig:
        """Look every setting up: `GroupConfig.read(broker_config.get_int)`."""
        return cls(**{item.name: get_int(item.name.replace("_", ".")) for item in fields(cls)})
