"""Hooks for producers: each record says where and when it was produced, and what was acknowledged is counted.

For applications: `AuditedProducer` of `auditing.ottla_client`, of `auditing.confluent` and of
`auditing.kafka_python`. Each stands in for its library's own class, adds two headers to every record
(`events`) and publishes, now and then and at the end, how many records of each topic and time window the
brokers have acknowledged (the monitoring events of Kafka's first paper, section 4). The audit job holds
brokers, mirrors and lake against these (`ottla_pipeline.completeness`).

Light on purpose: nothing here needs Spark, and each adapter imports its own library only. One core counts
(`counting`, no clock, no I/O); the adapters are thin shells over it (`reporting` is what they share).
"""
