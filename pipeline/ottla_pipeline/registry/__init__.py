"""The schema registry: Confluent's REST API over a compacted topic of the cluster.

The jobs ask it, or any other with this API, by `ottla.client.registry`.
"""
