"""What a client's network counts: requests and their times, by API and by broker; connections.

Recorded in by `network`, once a request; read by the clients' `metrics`, which know Kafka's name for each.
"""

from __future__ import annotations

from ottla.client.core.stats import Figures, Stat, Window, happened, timed


class RequestStats:
    """Times in seconds come in; as in Kafka, figures of time are milliseconds."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self.opened = Stat(window)
        self.closed = Stat(window)
        self._apis: dict[int, Stat] = {}
        self._throttled: dict[int, Stat] = {}
        self._nodes: dict[int, tuple[Stat, Stat]] = {}

    def sent(self, node_id: int, now: float) -> None:
        self._node(node_id)[0].record(1, now)

    def answered(self, node_id: int, api_key: int, took_s: float, throttle_ms: int, now: float) -> None:
        took_ms = took_s * 1000
        self._node(node_id)[1].record(took_ms, now)
        self.of(api_key).record(took_ms, now)
        self.throttled(api_key).record(throttle_ms, now)

    def _node(self, node_id: int) -> tuple[Stat, Stat]:
        stats = self._nodes.get(node_id)
        if stats is None:
            stats = self._nodes[node_id] = Stat(self._window), Stat(self._window)
        return stats

    def of(self, api_key: int) -> Stat:
        """How long answers of an API took, in milliseconds."""
        stat = self._apis.get(api_key)
        if stat is None:
            stat = self._apis[api_key] = Stat(self._window)
        return stat

    def throttled(self, api_key: int) -> Stat:
        """For how many milliseconds brokers held this client back after an answer, mostly 0."""
        stat = self._throttled.get(api_key)
        if stat is None:
            stat = self._throttled[api_key] = Stat(self._window)
        return stat

    def figures(self, now: float) -> Figures:
        """Those of the whole client."""
        nodes = list(self._nodes.values())
        return {
            **happened("connection-creation", self.opened, now=now),
            **happened("connection-close", self.closed, now=now),
            **happened("request", *(sent for sent, _ in nodes), now=now),
            **happened("response", *(answered for _, answered in nodes), now=now),
        }

    def by_node(self, now: float) -> dict[str, Figures]:
        return {
            f"node-{node_id}": {
                **happened("request", sent, now=now),
                **happened("response", answered, now=now),
                **timed("request-latency", answered, now),
            }
            for node_id, (sent, answered) in list(self._nodes.items())
        }
