"""Transactions across partitions (KIP-98): who may write under a transactional id, and how it ends.

The pure core (`transaction`, `transitions`, `records`, `replay`, `inspection`) takes the time as an argument
and returns effects; `coordinator` is the thin shell that writes `__transaction_state`, answers, and has
markers sent.
"""
