"""Log compaction (cleanup.policy=compact): of every key's records only the last is kept.

`policy` chooses a log and how far it may be cleaned, `worker` rewrites its segments in a process of its own
(`rewrite`, `filtering`, `transactions` and `offset_map` are what it works with, `job` what it is told and
tells), `swap` puts what it wrote in the place of what it read. `server.log_cleaner` runs it all, and keeps
the broker's event loop out of it.

Invariants: the active segment is never cleaned, nor what is not committed or not decided; offsets never
change; after a crash between any two file operations, opening the log finds the old segments or the new ones.
"""
