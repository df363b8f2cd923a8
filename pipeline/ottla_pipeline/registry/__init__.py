"""The schema registry: Confluent's REST API over a compacted topic of the cluster; the jobs' client of it.

`client` is what the jobs use; it speaks to any registry with this API and imports nothing else of this room.
"""
