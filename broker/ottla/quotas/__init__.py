"""Quotas: how fast a client may send and receive, and how fast replicas may be moved.

Pure: the time is passed in. `rates` measures as Kafka does, `clients` decides how long a client is to wait
(KIP-13, KIP-55, KIP-219), `replication` whether a replica is to wait (KIP-73), `broker` keeps all of one
broker. What is stored in the metadata store is `ottla.metadata.client_quotas`' matter.
"""
