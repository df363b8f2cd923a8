"""Traces of requests, as a collector of OpenTelemetry receives them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.judges.one_broker import one_broker


class Collector(ThreadingHTTPServer):
    """Keeps the spans that it receives."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/traces"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        collector = self.server
        assert isinstance(collector, Collector)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            collector.resources.append(attributes(of_resource.resource))
            collector.spans += [span for scope in of_resource.scope_spans for span in scope.spans]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def attributes(of: Any) -> dict[str, str]:
    return {each.key: str(getattr(each.value, each.value.WhichOneof("value"))) for each in of.attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_one_request_in_so_many_is_a_trace_of_its_phases(collector: Collector, tmp_path: Path) -> None:
    settings = {"ottla.tracing.endpoint": collector.endpoint, "ottla.tracing.every": "16"}
    with one_broker(tmp_path, settings) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "client.id": "shop", "linger.ms": 0})
        for _ in range(40):
            producer.produce("orders", b"v")
            assert producer.flush(30) == 0
    # A broker that stops sends what is left.
    roots = [span for span in collector.spans if not span.parent_span_id]
    traced = [span for span in roots if span.name == "PRODUCE"]
    assert len(traced) in (2, 3)
    assert {each["service.instance.id"] for each in collector.resources} == {"0"}
    for root in traced:
        found = attributes(root)
        assert found["messaging.system"] == "kafka"
        assert found["messaging.client.id"] == "shop"
        assert float(found["ottla.localTimeMs"]) > 0
        below = [span for span in collector.spans if span.parent_span_id == root.span_id]
        assert [span.name for span in below] == ["queue", "handle", "send"]
        assert {span.trace_id for span in below} == {root.trace_id}
        times = [root.start_time_unix_nano]
        for span in below:
            times += [span.start_time_unix_nano, span.end_time_unix_nano]
        assert times == sorted(times)
        assert times[-1] <= root.end_time_unix_nano


def test_without_a_collector_the_broker_serves_and_stops(tmp_path: Path) -> None:
    settings = {"ottla.tracing.endpoint": "http://127.0.0.1:9/v1/traces", "ottla.tracing.every": "16"}
    with one_broker(tmp_path, settings) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for _ in range(40):
            producer.produce("orders", b"v")
            assert producer.flush(30) == 0
    assert "stopped broker.id=0" in (tmp_path / "broker.log").read_text()
