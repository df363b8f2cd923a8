"""What every family of admin requests stands on."""

from __future__ import annotations

from ottla.client.routing import Brokers


class Family:
    """Some methods of `AdminClient`, over its way to the brokers."""

    _brokers: Brokers
