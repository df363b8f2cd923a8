"""`ottla up`: runs the custom resources of a folder with local processes."""
