"""Backup and restore of a cluster's metadata: the format, the cluster, object stores, and the commands."""
