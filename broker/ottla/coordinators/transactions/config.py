"""The coordinator's settings, under Kafka's names with `_` for `.`. Times are in ms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """Defaults are Kafka 3.9's."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    request_timeout_ms: int = 30_000

    @classmethod
    def read(cls, get_int: Callable[[str], int]) -> TransactionConfig:
        """Look every setting up: `TransactionConfig.read(broker_config.get_int)`."""
        return cls(**{item.name: get_int(item.name.replace("_", ".")) for item in fields(cls)})
