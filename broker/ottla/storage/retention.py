"""Which segments a log may delete (log.retention.*, KIP-107, deletion policies).

Called by `Log.delete_old_segments`. A deletion policy names segments of one log; `size` and `time` are two of
them, and `ottla.deletion.policies` chooses a topic's. Invariants: only a prefix of the segments is deleted,
nothing at or beyond the high watermark, and an empty active segment stays.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from ottla.storage.log_config import LogConfig

logger = logging.getLogger(__name__)


class SegmentFacts(NamedTuple):
    base_offset: int
    size: int
    """Bytes."""
    largest_timestamp: int
    """Milliseconds: of the records, or the file's time of change where they have none. -1 if the log has no
    policy but `size`."""


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
    """`configure(configs: Mapping[str, str])` and `close()` are optional, as of other policies."""

    def deletable(self, log: LogFacts) -> Iterable[int]:
        """The base offsets of the segments that may go. Called in a worker thread. An exception is logged and
        counts as no segment."""


class SizeRetention:
    """retention.bytes: the oldest segments, while at least that much is left without them."""

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
    """retention.ms: the oldest segments, up to the first with a younger record."""

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
    """Whether a policy of the log asks for its segments' times, which may have to be read from the disk."""
    names = set(config.deletion_policies) - {SIZE}
    return config.deletes and bool(names - {TIME} or (TIME in names and config.retention_ms >= 0))


def deletable_segments(
    log: LogFacts, policies: Mapping[str, DeletionPolicy], *, log_start_offset: int
) -> int:
    """How many of the oldest segments go: those below the log start offset, and then those that at least one
    policy names, up to the first that none does.
    """
    segments = log.segments
    below = 0
    while below + 1 < len(segments) and segments[below + 1].base_offset <= log_start_offset:
        below += 1
    if not log.config.deletes:
        return below
    rest = log._replace(segments=tuple(segments[below:]))
    named = set[int]().union(
        *(_named(policies, name, rest) for name in dict.fromkeys(log.config.deletion_policies))
    )
    gone = below
    while gone < len(segments) and segments[gone].base_offset in named:
        gone += 1
    return gone


def within_high_watermark(segments: Sequence[SegmentFacts], high_watermark: int, log_end_offset: int) -> int:
    """How many of the oldest segments may go at all, the active one included, which is rolled first."""
    for at, segment in enumerate(segments):
        upper = segments[at + 1].base_offset if at + 1 < len(segments) else log_end_offset
        if high_watermark < upper or (at == len(segments) - 1 and segment.size == 0):
            return at
    return len(segments)


def _named(policies: Mapping[str, DeletionPolicy], name: str, log: LogFacts) -> set[int]:
    """The base offsets that one policy names. One that fails names none, and stops nothing else."""
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
