"""The configuration of one partition's log: Kafka's topic configs, typed (Kafka's LogConfig).

Created from validated strings (topic overrides over the broker's defaults); read by everything in this
package. Field names are the config names with `_` for `.`; sizes are bytes and times milliseconds. Defaults
are those of Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from ottla.protocol.compression import CODEC_BY_NAME, Codec
from ottla.protocol.records import TimestampType

INT64_MAX = 2**63 - 1
DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class LogConfig:
    cleanup_policy: str = "delete"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_type: str = "producer"
    compression_zstd_level: int = 3
    delete_retention_ms: int = DAY_MS
    file_delete_delay_ms: int = 60_000
    flush_messages: int = INT64_MAX
    flush_ms: int = INT64_MAX
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = INT64_MAX
    max_message_bytes: int = 1_048_588
    message_downconversion_enable: bool = True
    message_timestamp_after_max_ms: int = INT64_MAX
    message_timestamp_before_max_ms: int = INT64_MAX
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    ottla_deletion_policies: str = "size,time"
    preallocate: bool = False
    retention_bytes: int = -1
    retention_ms: int = 7 * DAY_MS
    segment_bytes: int = 1024 * 1024 * 1024
    segment_index_bytes: int = 10 * 1024 * 1024
    segment_jitter_ms: int = 0
    segment_ms: int = 7 * DAY_MS
    unclean_leader_election_enable: bool = False

    @classmethod
    def from_mapping(cls, props: Mapping[str, str], defaults: Mapping[str, str] | None = None) -> LogConfig:
        """`props` (topic config names to validated strings) over `defaults`; other names are ignored."""
        merged = {**(defaults or {}), **props}
        values: dict[str, object] = {}
        for field in fields(cls):
            text = merged.get(field.name.replace("_", "."))
            if text is not None:
                values[field.name] = _parse(str(field.type), text)
        # Deprecated (KIP-937); applies where its successors are not set.
        difference = merged.get("message.timestamp.difference.max.ms")
        if difference is not None:
            for name in ("message_timestamp_before_max_ms", "message_timestamp_after_max_ms"):
                if values.get(name, INT64_MAX) == INT64_MAX:
                    values[name] = int(difference)
        return cls(**values)  # type: ignore[arg-type]

    @property
    def deletes(self) -> bool:
        """Whether the deletion policies apply (cleanup.policy names `delete`)."""
        return "delete" in self._policies

    @property
    def deletion_policies(self) -> list[str]:
        """The names of the deletion policies; a segment is deleted if one of them selects it."""
        return [name.strip() for name in self.ottla_deletion_policies.split(",") if name.strip()]

    @property
    def compacts(self) -> bool:
        """Whether every record needs a key (cleanup.policy names `compact`)."""
        return "compact" in self._policies

    @property
    def max_segment_ms(self) -> int:
        """The age at which a segment is rolled; for compacted logs at most max.compaction.lag.ms."""
        if self.compacts and self.max_compaction_lag_ms > 0:
            return min(self.max_compaction_lag_ms, self.segment_ms)
        return self.segment_ms

    @property
    def timestamp_type(self) -> TimestampType:
        if self.message_timestamp_type == "LogAppendTime":
            return TimestampType.LOG_APPEND_TIME
        return TimestampType.CREATE_TIME

    @property
    def target_codec(self) -> Codec | None:
        """The codec in which batches are stored; None keeps the producer's."""
        return None if self.compression_type == "producer" else CODEC_BY_NAME[self.compression_type]

    def compression_level(self, codec: Codec) -> int | None:
        match codec:
            case Codec.GZIP:
                return self.compression_gzip_level
            case Codec.LZ4:
                return self.compression_lz4_level
            case Codec.ZSTD:
                return self.compression_zstd_level
        return None

    @property
    def _policies(self) -> list[str]:
        return [policy.strip() for policy in self.cleanup_policy.split(",")]


def _parse(kind: str, text: str) -> object:
    match kind:
        case "int":
            return int(text)
        case "float":
            return float(text)
        case "bool":
            return text.strip().lower() == "true"
    return text
