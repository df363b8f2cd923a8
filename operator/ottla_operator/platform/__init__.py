"""What the operator controls, behind `interfaces`: brokers, drivers, the Admin API, resources and Secrets.

Implementations: `local` (brokers as processes, over `ottla.local`), `local_drivers`, `local_security` and
`kafka` (over `ottla.client.admin`). Those of Kubernetes are in `ottla_operator.kubernetes`.
"""
