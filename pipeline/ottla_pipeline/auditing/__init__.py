"""Audit hooks for Kafka clients: records carry their producer and time; acknowledged and processed records
are counted.

For applications: `AuditedProducer` of `auditing.ottla_client`, `auditing.confluent` and
`auditing.kafka_python` replaces the producer class of its library. It adds two headers to every record
(`events`) and publishes, periodically and at its end, how many records of each topic and time window the
brokers have acknowledged (the monitoring events of Kafka's first paper, section 4). The audit job compares
brokers, mirrors and lakes with these counts (`ottla_pipeline.completeness`). `AuditedConsumer` of
`auditing.ottla_consumer` publishes which of these records an application has processed; applications are
tiers of the audit like the others.

The package has few dependencies: nothing needs Spark, and each adapter imports its own library only.
`producer_counts` and `consumer_counts` count, without a clock or I/O; the adapters are thin; `reporting`
is shared by those that use threads.
"""
