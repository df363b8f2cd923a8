"""The transaction coordinator: transactions across partitions (KIP-98), and fencing of producers.

The pure modules (`transaction`, `transitions`, `records`, `requests`) take the time as an argument
and return effects; `coordinator` applies them: it writes `__transaction_state`, completes responses, and has
markers sent.
"""
