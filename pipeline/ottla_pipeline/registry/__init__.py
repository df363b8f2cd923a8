"""The schema registry: Confluent's REST API, stored in a compacted topic of the cluster.

Jobs use it, or any other registry with this API, through `ottla.client.registry`.
"""
