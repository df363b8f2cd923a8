"""Pure functions from (desired, observed) to the next steps, for `reconcile` on any platform.

No I/O, no clock, no memory: time comes in as `now_ms`, and everything that the next run needs is observed
again or stands in a resource's status.
"""
