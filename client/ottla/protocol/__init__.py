"""Bytes to messages and back: the wire protocol of Kafka 3.9, record batches, and error codes. No I/O.

`messages` is the table, `codec` and `frames` are what the rest of Ottla calls; `records` is apart from them,
since batches travel through everything else unopened.
"""
