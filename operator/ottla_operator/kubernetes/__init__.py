"""The operator on Kubernetes: the platform interfaces over the API server, the controller and its command."""
