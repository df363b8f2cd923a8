"""The group coordinator, and in `transactions` the transaction coordinator.

Both are state machines whose state is in the log of an internal topic. The pure modules (`group`,
`membership`, `rebalance`, `offsets`, `records`, `replay`) take the time as an argument and return effects;
`coordinator` applies them: it holds the futures of responses, the timers and the log.
"""
