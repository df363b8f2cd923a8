"""Traces of a sample of the requests for OpenTelemetry (OTLP over HTTP), off by default.

Called by the dispatcher for the requests that it measures. A trace is one request: a span for it, and below
it spans for its time in the queue, in the handler, and until its response is in the kernel. The exporter of
opentelemetry-sdk (extra `tracing`) sends them from a thread of its own, and drops them while the collector
does not answer. OTEL_EXPORTER_OTLP_HEADERS and the SDK's other variables hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.metadata.config import ConfigError
from ottla.server.dispatch.counters import PhaseTimes
from ottla.server.dispatch.dispatcher import Request
from ottla.server.dispatch.request_log import Sample, fields_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_NS_PER_MS: Final = 1_000_000
_TIMEOUT_S: Final = 3
"""Of a request to the collector, with its repetitions: a stop of the broker waits for so long at most."""
_PREFIX: Final = "ottla."


class RequestTraces:
    """Traces one request in `every`."""

    def __init__(self, endpoint: str, every: int, broker_id: int, wall_ms: Callable[[], int]) -> None:
        """`wall_ms`: the time of spans. Raises ConfigError without the packages."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace import SpanKind, set_span_in_context
        except ImportError as missing:
            problem = f"ottla.tracing.endpoint: {missing}; pip install 'ottla[tracing]'"
            raise ConfigError([problem]) from None
        resource = Resource.create({"service.name": "ottla-broker", "service.instance.id": str(broker_id)})
        self._provider: TracerProvider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_TIMEOUT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("ottla.server")
        self._below = set_span_in_context
        self._kind = SpanKind.SERVER
        self._sample = Sample(every)
        self._wall_ms = wall_ms

    def __call__(self, request: Request, times: PhaseTimes) -> None:
        if not self._sample.takes():
            return
        end_ns = self._wall_ms() * _NS_PER_MS
        begin_ns = end_ns - int(times.total * _NS_PER_MS)
        fields = fields_of(request, times)
        name = str(fields.pop("api"))
        span = self._tracer.start_span(
            name,
            kind=self._kind,
            start_time=begin_ns,
            attributes={
                "messaging.system": "kafka",
                "messaging.client.id": request.client_id or "",
                **{f"{_PREFIX}{key}": value for key, value in fields.items()},
            },
        )
        context = self._below(span)
        at_ns = begin_ns
        for part, ms in (
            ("queue", times.queue),
            ("handle", times.local + times.remote),
            ("send", times.response),
        ):
            child = self._tracer.start_span(part, context=context, start_time=at_ns)
            at_ns = min(end_ns, at_ns + int(ms * _NS_PER_MS))
            child.end(at_ns)
        span.end(end_ns)

    async def stop(self) -> None:
        """Send what is left, for a few seconds at most."""
        await asyncio.to_thread(self._provider.shutdown)
