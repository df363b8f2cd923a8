"""The parts of the windows job: aggregates by window, and joins of two streams, as configured.

`config` is the configuration, `source` decodes Kafka's records to rows, `plan` is the streaming plan, with
the functions of `ottla_pipeline.streams`, `offset_log` reads the offsets and watermarks of a batch, `late`
finds the records that a batch did not count, `results` formats the results, and `batch` combines them for
each batch.
"""
