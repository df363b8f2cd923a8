"""Kubernetes: the operator's ports over the API server, the controller that runs passes, and its command."""
