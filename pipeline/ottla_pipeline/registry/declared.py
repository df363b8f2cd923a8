"""The registry's client as a job's configuration declares it. Called by the jobs on the driver."""

from __future__ import annotations

from pathlib import Path

from ottla.client.registry import RegistryClient
from ottla_pipeline.config.common import RegistryConfig


def client_of(registry: RegistryConfig) -> RegistryClient:
    """The client that a job's configuration declares. Raises ValueError for what it does not take, OSError
    for a file that cannot be read."""
    options: dict[str, str] = {}
    if registry.username is not None and registry.password_file is not None:
        password = Path(registry.password_file).read_text().rstrip()
        options["basic.auth.user.info"] = f"{registry.username}:{password}"
    if registry.ca is not None:
        options["ssl.ca.location"] = registry.ca
    return RegistryClient(registry.urls, options)
