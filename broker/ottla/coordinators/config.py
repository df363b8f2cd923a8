"""The settings of both coordinators, under Kafka's names with `_` for `.`.

Created by the server from its broker configuration, read by every module of this package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TypeVar

MS_PER_MINUTE = 60_000


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Settings of the group coordinator. The defaults are those of Kafka 3.9."""

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


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """Settings of the transaction coordinator; times are in ms. The defaults are those of Kafka 3.9."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    request_timeout_ms: int = 30_000


C = TypeVar("C", GroupConfig, TransactionConfig)


def read_config(kind: type[C], get_int: Callable[[str], int]) -> C:
    """Read every setting: `read_config(GroupConfig, broker_config.get_int)`."""
    return kind(**{item.name: get_int(item.name.replace("_", ".")) for item in fields(kind)})
