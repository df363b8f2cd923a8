"""The audit's comparison: what audited producers say to have sent, against what each tier holds.

For the audit job. `columns` and `tiers` are Spark's part: each batch of a tier becomes a few rows of counts
and bitmaps. `seen`, `ledger` and `verdicts` are plain Python over those: they hold what was counted, and say
of each window whether it is complete, without Spark, brokers or a clock. `pages` is the report.
"""
