"""What applying a change would do: the operator's own reconciliation over a model of the observed cluster.

`model` is the cluster in virtual time, `rehearse` runs the operator over it, `impact` says what clients and
partitions feel, `text` prints it. Used by `kubectl ottla plan` and `ottla up --plan`. Nothing here reaches
anything outside.
"""
