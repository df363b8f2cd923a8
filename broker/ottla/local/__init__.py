"""Processes on this machine: the embedded ZooKeeper, brokers, a whole cluster."""

from ottla.extras import require

require("broker")
