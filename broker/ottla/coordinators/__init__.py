"""Groups (and later transactions): state machines whose memory is the log of an internal topic.

The pure core (`group`, `membership`, `offsets`, `inspection`, `records`, `replay`) takes the time as an
argument and returns effects; `coordinator` is the thin shell that holds futures, the timers and the log.
"""
