"""The operator in a simulated cluster: `Reconciler` and `KafkaAdmin` as they ship, over `ottla.simulation`.

Brokers, network, disks and ZooKeeper are those of the simulation; `platform` starts and stops brokers as a
kubelet does, `resources` is the API server. The operator is a process that is killed between any two awaits
and started again (`operator`). `scenarios` are the runs; `python -m ottla_operator.simulation` runs them.
"""
