"""The client without I/O: state machines; time, randomness and responses come in, requests go out.

Called by the asyncio shell (`network_loop`, `producer`, `consumer`). Nothing here imports asyncio, opens a
socket or reads a clock. Times are seconds of one monotonic clock, unless a name says otherwise.
"""
