"""What the console knows of a cluster, and how it finds out: clients by principal, background collection.

snapshot     the state of a cluster as the last collection found it, in parts; immutable
brokers      the brokers of a snapshot with rates and disks; pure
rates        two collections -> rates, and their history; pure
problems     errors of clients -> what failed, which right is missing, what to do; pure
collecting   one collection: requests of an admin client -> the parts of a snapshot
collector    the background task that repeats it, bounded in its share of time
log_reader   records of partitions at offsets, and a new record
schema_decoder  values by a schema registry
credentials  what a person is authenticated by: a password, a delegation token
bearer       the same: tokens of an OpenID provider, which identity_provider talks to
resources    a BrokerCluster and what belongs to it: conditions, progress, Events
jobs         jobs of the pipeline by their status ports
kubernetes_api  where resources are on Kubernetes: an API server
up_state     where resources are with `ottla up`: its data folder
access       a cluster as one principal sees it: an admin client and a collector, shared by sessions
"""
