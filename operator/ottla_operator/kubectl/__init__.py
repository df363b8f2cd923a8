"""The kubectl plugin `kubectl ottla`: status, restarts, reassignments, pauses and logs of clusters."""
