"""The windows job's parts: counts by window, and joins of two streams, as declared.

`config` is the declaration, `source` makes rows of Kafka's records, `plan` is the streaming plan, by the
functions of `ottla_pipeline.streams`, `ledger` reads what a batch was made of, `late` finds what a batch did
not count, `results` shapes what goes out, and `batch` puts them together once for each batch.
"""
