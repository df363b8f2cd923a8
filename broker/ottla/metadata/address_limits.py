"""max.connections.per.ip.overrides: `HOST:COUNT,…`, a limit of connections for single addresses.

Called by `config` (is it right?) and by the server (what does it say?). No I/O: names are for the server to
resolve.
"""

from __future__ import annotations


def parse_address_limits(text: str) -> dict[str, int]:
    """Host or address to the connections it may have. Raises ValueError that says what is wrong."""
    limits: dict[str, int] = {}
    for entry in text.split(","):
        if not entry.strip():
            continue
        host, colon, count = entry.rpartition(":")
        try:
            limit = int(count)
        except ValueError:
            limit = -1
        if not colon or not host.strip() or limit < 0:
            raise ValueError(f"{entry.strip()}: must be HOST:COUNT")
        limits[host.strip().strip("[]")] = limit
    return limits
