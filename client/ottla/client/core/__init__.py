"""The rules of the client, without I/O: state machines that get time, randomness and responses and return
requests.

Called by `network_loop`, `producer` and `consumer`. Nothing here imports asyncio, opens a socket or reads a
clock. Times are seconds of one monotonic clock, unless a name says otherwise.
"""
