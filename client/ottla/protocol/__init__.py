"""Bytes to messages and back: the wire protocol of Kafka 3.9, record batches, and error codes. No I/O.

`messages` is the table of messages; other packages call `codec` and `frames`. `records` is separate, since
all other code passes record batches on without decoding them.
"""
