"""The low-level client for code without an event loop; see `ottla.client.blocking`.

Invariant: requests of one thread to one broker are sent in the order of the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from ottla.client import request_client as asynchronous
from ottla.client.core.types import Node
from ottla.client.errors import IllegalStateError
from ottla.client.loop_thread import EventLoopThread, blocking
from ottla.client.metrics import Metric
from ottla.client.request_client import ANY_BROKER
from ottla.protocol.types import Message

T = TypeVar("T")


class RequestClient:
    """The calls of `ottla.client.RequestClient`, each of which blocks until it is done. Thread-safe."""

    def __init__(self, settings: Mapping[str, object] | None = None, /, **keywords: object) -> None:
        """Kafka's dotted keys in a mapping, or keywords with underscores. Raises ConfigError."""
        self._client = asynchronous.RequestClient(settings, **keywords)
        self.config = self._client.config
        self._thread: EventLoopThread | None = None

    # --- life ---

    def start(self) -> None:
        """Connect to one of bootstrap.servers and read the cluster's brokers, within default.api.timeout.ms.
        Raises ClientError."""
        if self._thread is not None:
            raise IllegalStateError("the request client is started already")
        self._thread = thread = EventLoopThread(f"ottla-requests-{self.config.client_id}")
        try:
            thread.run(self._client.start())
        except BaseException:
            self._thread = None
            thread.stop()
            raise

    def stop(self) -> None:
        """Close all connections; requests in flight fail with NetworkError. A second call does nothing."""
        thread = self._thread
        if thread is not None:
            thread.check_not_current()
            self._thread = None
            try:
                thread.run(self._client.stop())
            finally:
                thread.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _running(self) -> EventLoopThread:
        if self._thread is None:
            raise IllegalStateError("the request client is not started")
        return self._thread

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._thread is None:
            work.close()
        return self._running().run(work)

    # --- requests ---

    def send(
        self,
        message: Message,
        broker_id: int = ANY_BROKER,
        *,
        version: int | None = None,
        timeout_ms: int | None = None,
    ) -> Future[Any]:
        """Send a request without waiting; the future resolves to the response, or raises what `request`
        raises. Any number of requests may be in flight; `concurrent.futures.as_completed` returns the futures
        as responses arrive. Raises IllegalStateError."""
        thread = self._running()
        return asyncio.run_coroutine_threadsafe(
            self._client.request(message, broker_id, version=version, timeout_ms=timeout_ms), thread.loop
        )

    request = blocking(asynchronous.RequestClient.request)
    versions = blocking(asynchronous.RequestClient.versions)

    # --- the cluster ---

    @property
    def brokers(self) -> dict[int, Node]:
        """The brokers of the last metadata, by id."""
        return self._client.brokers

    @property
    def controller(self) -> int:
        """The controller's id in the last metadata; -1 while there is none."""
        return self._client.controller

    @property
    def cluster_id(self) -> str | None:
        """The cluster's id."""
        return self._client.cluster_id

    refresh_metadata = blocking(asynchronous.RequestClient.refresh_metadata)
    leader = blocking(asynchronous.RequestClient.leader)
    coordinator = blocking(asynchronous.RequestClient.coordinator)

    # --- metrics ---

    def metrics(self) -> dict[str, float]:
        """Metrics of the whole client by Kafka's names."""
        return self._client.metrics()

    def measurements(self) -> list[Metric]:
        """All metrics, those of each broker included; none while the client is not started."""
        return self._client.measurements()
