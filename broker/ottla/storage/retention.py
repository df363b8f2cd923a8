"""Selects the segments that a log deletes (log.retention.*, KIP-107, deletion policies).

Called by `Log.delete_old_segments`. A deletion policy names segments of one log; `size` and `time` are the
built-in ones, and `ottla.deletion.policies` selects those of a topic. Invariants: only a prefix of the
segments is deleted, nothing at or beyond the high watermark, and an empty active segment stays.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from ottla.protocol.records import NO_TIMESTAMP
from ottla.storage.log_config import LogConfig
from ottla.storage.log_dir import parse_partition_directory
from ottla.storage.log_segment import LogSegment

logger = logging.getLogger(__name__)


class SegmentFacts(NamedTuple):
    base_offset: int
    size: int
    """Bytes."""
    largest_timestamp: int
    """Milliseconds: the records' max timestamp, or the file's modification time if they have none. -1 if the
    log's only policy is `size`."""


class LogFacts(NamedTuple):
    """One partition's log, as a deletion policy sees it."""

    topic: str
    partition: int
    segments: Sequence[SegmentFacts]
    """The oldest first; the last is the active one."""
    config: LogConfig
    """The topic's settings, with the broker's defaults: `config.retention_ms` is retention.ms."""
    now_ms: int


class DeletionPolicy(Protocol):
    """The interface of a policy; `configure(configs: Mapping[str, str])` and `close()` are optional."""

    def deletable(self, log: LogFacts) -> Iterable[int]:
        """The base offsets of the segments to delete. Called in a worker thread. An exception is logged, and
        no segment is deleted."""


class SizeRetention:
    """retention.bytes: deletes the oldest segments while the rest has at least that many bytes."""

    def deletable(self, log: LogFacts) -> Iterator[int]:
        if log.config.retention_bytes < 0:
            return
        excess = sum(segment.size for segment in log.segments) - log.config.retention_bytes
        for segment in log.segments:
            excess -= segment.size
            if excess < 0:
                return
            yield segment.base_offset


class TimeRetention:
    """retention.ms: deletes the oldest segments, up to the first with a younger record."""

    def deletable(self, log: LogFacts) -> Iterator[int]:
        if log.config.retention_ms < 0:
            return
        for segment in log.segments:
            if log.now_ms - segment.largest_timestamp <= log.config.retention_ms:
                return
            yield segment.base_offset


SIZE: Final = "size"
TIME: Final = "time"
BUILT_IN: Final[Mapping[str, DeletionPolicy]] = MappingProxyType(
    {SIZE: SizeRetention(), TIME: TimeRetention()}
)


def needs_timestamps(config: LogConfig) -> bool:
    """Whether a policy of the log uses the segments' timestamps, which may have to be read from the disk."""
    names = set(config.deletion_policies) - {SIZE}
    return config.deletes and bool(names - {TIME} or (TIME in names and config.retention_ms >= 0))


def log_facts(
    directory_name: str, segments: Sequence[LogSegment], config: LogConfig, now_ms: int
) -> LogFacts:
    """The facts of the log with these segments."""
    has_timestamps = needs_timestamps(config)
    topic, partition = parse_partition_directory(directory_name) or (directory_name, -1)
    return LogFacts(
        topic,
        partition,
        [
            SegmentFacts(s.base_offset, s.size, s.largest_timestamp() if has_timestamps else NO_TIMESTAMP)
            for s in segments
        ],
        config,
        now_ms,
    )


def deletable_within(
    log: LogFacts,
    policies: Mapping[str, DeletionPolicy],
    high_watermark: int,
    *,
    log_start_offset: int,
    log_end_offset: int,
) -> list[str]:
    """The reasons for which the oldest segments are deleted, one for each, all of them below the high
    watermark."""
    allowed = within_high_watermark(log.segments, high_watermark, log_end_offset)
    if not allowed:
        return []
    return deletable_segments(log, policies, log_start_offset=log_start_offset)[:allowed]


def deletable_segments(
    log: LogFacts, policies: Mapping[str, DeletionPolicy], *, log_start_offset: int
) -> list[str]:
    """The reasons for which the oldest segments are deleted, one for each: those below the log start offset,
    and the following ones up to the first that no policy names."""
    segments = log.segments
    below = 0
    while below + 1 < len(segments) and segments[below + 1].base_offset <= log_start_offset:
        below += 1
    reasons = [f"log start offset {log_start_offset} breach"] * below
    if not log.config.deletes:
        return reasons
    rest = log._replace(segments=tuple(segments[below:]))
    named = dict[int, str]()
    for name in dict.fromkeys(log.config.deletion_policies):
        reason = _reason(name, log.config)
        for base_offset in _named(policies, name, rest):
            named.setdefault(base_offset, reason)
    for segment in rest.segments:
        if segment.base_offset not in named:
            break
        reasons.append(named[segment.base_offset])
    return reasons


def _reason(policy: str, config: LogConfig) -> str:
    """What Kafka's log says of its two policies."""
    if policy == SIZE:
        return f"log retention size {config.retention_bytes} breach"
    if policy == TIME:
        return f"log retention time {config.retention_ms}ms breach"
    return f"deletion policy {policy}"


def within_high_watermark(segments: Sequence[SegmentFacts], high_watermark: int, log_end_offset: int) -> int:
    """How many of the oldest segments may be deleted at all, the active one included (it is rolled first)."""
    for at, segment in enumerate(segments):
        upper = segments[at + 1].base_offset if at + 1 < len(segments) else log_end_offset
        if high_watermark < upper or (at == len(segments) - 1 and segment.size == 0):
            return at
    return len(segments)


def _named(policies: Mapping[str, DeletionPolicy], name: str, log: LogFacts) -> set[int]:
    """The base offsets that one policy names; none if it fails, which does not affect other policies."""
    policy = policies.get(name)
    if policy is None:
        logger.error("%s-%d: this broker has no deletion policy %r", log.topic, log.partition, name)
        return set()
    try:
        named = set(policy.deletable(log))
    except Exception:
        logger.exception("deletion policy %s failed on %s-%d", name, log.topic, log.partition)
        return set()
    known = {segment.base_offset for segment in log.segments}
    if not named <= known:
        logger.error(
            "deletion policy %s named %s, where no segment of %s-%d begins",
            name,
            ", ".join(sorted(map(repr, named - known))[:10]),
            log.topic,
            log.partition,
        )
    return named
