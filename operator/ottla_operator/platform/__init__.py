"""The ports to the outside: what runs the brokers (`port.Platform`) and their Admin API (`port.Kafka`).

Adapters: `local` (processes, over `ottla.local`) and `kafka` (over `ottla.client.admin`); Kubernetes later.
"""
