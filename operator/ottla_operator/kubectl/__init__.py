"""The kubectl plugin `kubectl ottla`: a cluster on one screen, rolls, pauses and logs, by way of kubectl."""
