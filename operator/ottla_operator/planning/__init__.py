"""Pure functions from the desired and the observed state to the next steps, for `reconcile` on any platform.

They do no I/O, read no clock and keep no state: the time is passed in as `now_ms`, and what the next
reconciliation needs is observed again or is recorded in a resource's status.
"""
