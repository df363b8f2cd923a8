"""What a broker tells Prometheus of itself, under the names that Kafka's dashboards ask for.

`counters` are plain ints that the hot path raises; everything else is read off the rooms at each scrape.
`broker`, `cluster` and `groups` say which families there are, `exposition` writes them down in slices, so
that no scrape holds up the loop. The names are those that Strimzi's rules make of Kafka's JMX beans, and
kafka_exporter's for topics and groups; a test holds the list of both dashboards' queries.
"""
