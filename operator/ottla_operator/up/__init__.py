"""`ottla up`: the custom resources of a folder, run by local processes."""
