"""The broker's metrics for Prometheus, under the names that Kafka's dashboards use.

The hot path increments plain ints (`ottla.server.dispatch.counters`); all other values are read from the
components at each scrape. `broker`, `cluster` and `groups` have the families, `exposition` writes them in
slices, so that a scrape does not block the loop. The names are those that Strimzi's rules make of Kafka's JMX
beans, and kafka_exporter's for topics and groups; a test has the queries of both dashboards.
"""
