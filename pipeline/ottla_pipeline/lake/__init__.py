"""The lake: its configuration, its rows, and its two sinks (Delta, Parquet) with their guarantees.

Called by the jobs `lake`, `lake-compact`, `replay` and `backfill`.
"""
