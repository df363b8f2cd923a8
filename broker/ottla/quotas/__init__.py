"""Quotas: rate limits of clients, of connections and of throttled replicas.

Pure: the time is passed in. `rates` measures as Kafka does, `clients` computes throttle times of clients
(KIP-13, KIP-55, KIP-219), `broker` throttles replicas (KIP-73) and has all quotas of one broker.
Their settings in the metadata store are in `ottla.metadata.client_quotas`.
"""
