"""Log compaction (cleanup.policy=compact): keeps the last record of every key (Kafka's LogCleaner).

`planning` selects a log and the range to clean. `cleaner` rewrites its segments in a worker process, with
`batch_filter` and `offset_map`.
`LocalLog.replace_segments` replaces the segments by the rewritten ones. `ottla.server.logs.log_cleaner` runs
it all, outside of the broker's event loop.

Invariants: the active segment is never cleaned, nor are uncommitted or undecided records; offsets never
change; after a crash between any two file operations, opening the log finds the old segments or the new ones.
"""
