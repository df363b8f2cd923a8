"""Hooks for clients: records say where and when they were produced; what was acknowledged, and what
applications processed, is counted.

For applications: `AuditedProducer` of `auditing.ottla_client`, of `auditing.confluent` and of
`auditing.kafka_python`. Each stands in for its library's own class, adds two headers to every record
(`events`) and publishes, now and then and at the end, how many records of each topic and time window the
brokers have acknowledged (the monitoring events of Kafka's first paper, section 4). The audit job holds
brokers, mirrors and lake against these (`ottla_pipeline.completeness`). `AuditedConsumer` of
`auditing.ottla_consumer` publishes how many of these records, and which, an application has processed
(`receiving`); applications are tiers of the audit like the others.

Light on purpose: nothing here needs Spark, and each adapter imports its own library only. One core counts
(`counting`, no clock, no I/O); the adapters are thin shells over it (`reporting` is what they share).
"""
