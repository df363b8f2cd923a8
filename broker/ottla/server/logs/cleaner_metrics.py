"""What Kafka's log cleaner tells of itself, under its names.

Filled by `log_cleaner`, which has the rest of the facts (`LogCleaner.metrics`). The broker has no room for
metrics yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.storage.cleaner.messages import Done


def gauges(
    *,
    done: Sequence[Done],
    uncleanable: int,
    uncleanable_bytes: int,
    dirty_ratio_max: float,
    compaction_delay_ms_max: int,
    since_last_run_ms: int,
    dead_threads: int,
) -> dict[str, int]:
    """The gauges of kafka.log's LogCleaner and LogCleanerManager; `done` is what each thread cleaned last."""
    read = sum(each.counts.bytes_read for each in done)
    kept = sum(each.counts.bytes_kept for each in done)
    return {
        "uncleanable-partitions-count": uncleanable,
        "uncleanable-bytes": uncleanable_bytes,
        "max-dirty-percent": int(100 * dirty_ratio_max),
        "time-since-last-run-ms": since_last_run_ms,
        "cleaner-recopy-percent": int(100 * kept / max(read, 1)),
        "max-clean-time-secs": max((each.elapsed_ms // 1000 for each in done), default=0),
        "max-buffer-utilization-percent": max((int(100 * each.map_utilization) for each in done), default=0),
        "max-compaction-delay-secs": compaction_delay_ms_max // 1000,
        "DeadThreadCount": dead_threads,
    }
