"""The audit: compares the records that producers report as acknowledged with the records that each tier
holds.

For the audit jobs. `tiers` is the Spark part: it reduces each batch of a tier to a few rows of counts and
bitmaps. `number_bitmap`, `ledger` and `verdicts` are plain Python over these rows, without Spark, brokers
or a clock. `auditor` connects both, and `report` renders the result. `broker_reader` and `comparison`
belong to the job `compare`, which compares event ids instead.
"""
