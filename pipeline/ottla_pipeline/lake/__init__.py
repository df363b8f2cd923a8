"""What the lake is made of: its configuration, its rows, and the two sinks with their promises.

Called by the jobs `lake`, `lake-compact`, `replay` and `backfill`, which hold no logic themselves.
"""
