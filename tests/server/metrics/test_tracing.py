"""Spans of OpenTelemetry: their tree, their ids, a client's trace, and the way to a collector."""

import re
import subprocess
import sys
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from ors_clients import AsyncClient

from ors_server import Server, ToolOutput, tool
from ors_server.telemetry import tracing
from tests.server.protocol.conftest import Serve
from tests.support.environments import Bare, Echo, said
from tests.support.servers import served

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Prepared(Bare):
    async def setup(self) -> None:
        with tracing.sandbox_span("an-image"):
            pass

    @tool
    async def crash(self) -> ToolOutput:
        raise ValueError("broken")

    @tool
    def block(self) -> ToolOutput:
        return said()


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Trace this process into memory."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "active", tracing.Tracing(provider))
    return exporter


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    return next(span for span in spans.get_finished_spans() if span.name == name)


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


async def test_the_spans_of_an_episode(serve: Serve, spans: InMemorySpanExporter) -> None:
    client = serve(Prepared)
    sid = await client.open(traceparent=PARENT)
    await client.get("/prompt", sid)
    await client.post("/ping", sid=sid)
    reply = await client.call(sid, "block")
    await client.call(sid, "crash")

    create, setup, sandbox = (named(spans, name) for name in ("POST /create", "session set-up", "sandbox start"))
    assert parent_of(create) == int("b7ad6b7169203331", 16)
    assert create.context is not None
    assert create.context.trace_id == int("0af7651916cd43dd8448eb211c80319c", 16)
    assert (parent_of(setup), parent_of(sandbox)) == (id_of(create), id_of(setup))
    assert (sandbox.attributes or {})["ors.image"] == "an-image"
    calls = [span for span in spans.get_finished_spans() if span.name == "call"]
    assert [(span.attributes or {})["ors.call.outcome"] for span in calls] == ["ok", "error"]
    assert [span.status.is_ok for span in calls] == [True, False]
    assert calls[0].attributes is not None
    assert calls[0].attributes["ors.session.id"] == sid
    assert calls[0].attributes["ors.call.id"] == reply.task_id
    assert calls[0].attributes["ors.tool"] == "block"
    assert parent_of(calls[0]) in [id_of(span) for span in spans.get_finished_spans() if span.name == "POST /call"]
    assert "POST /ping" not in [span.name for span in spans.get_finished_spans()]


async def test_a_set_up_that_fails(serve: Serve, spans: InMemorySpanExporter) -> None:
    class Unbuildable(Echo):
        def __init__(self, task_spec: Any = {}, secrets: Any = {}) -> None:  # noqa: B006
            raise ValueError("no")

    client = serve(Unbuildable)
    assert (await client.create("a")).is_error
    assert not named(spans, "session set-up").status.is_ok
    assert not named(spans, "POST /create").status.is_ok


@pytest.mark.parametrize("parent", ["", "x", "00-0-0-0", "\xff" * 1000, f"{PARENT}-"])
async def test_a_parent_that_cannot_be_read_is_ignored(serve: Serve, spans: InMemorySpanExporter, parent: str) -> None:
    client = serve(Echo)
    response = await client.http.get("/splits", headers=[(b"traceparent", parent.encode("latin-1"))])
    assert response.status_code == 200
    assert named(spans, "GET /splits").parent is None


async def test_our_client_continues_the_trace_of_its_program(spans: InMemorySpanExporter) -> None:
    server = Server([Echo])
    active = tracing.active
    assert active is not None
    async with AsyncClient("http://server", transport=httpx_of(server)) as client:
        with active.span("rollout", {}) as rollout:
            await client.environment("echo").splits()
    sent = [span for span in spans.get_finished_spans() if span.name == "GET /splits"]
    assert sent
    assert all(span.context and span.context.trace_id == rollout.get_span_context().trace_id for span in sent)
    await server.sessions.close()


def httpx_of(server: Server) -> Any:
    from ors_clients.transport.asgi import ApplicationTransport

    return ApplicationTransport(server.app)


def test_serving_imports_no_sdk_of_opentelemetry() -> None:
    code = "import sys, ors_server.server; sys.exit(any(name.startswith('opentelemetry.sdk') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


class Collector(BaseHTTPRequestHandler):
    """A collector that keeps what it gets."""

    received: list[bytes]

    def do_POST(self) -> None:
        self.received.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


@pytest.fixture
def collector() -> Generator[tuple[str, list[bytes]]]:
    received: list[bytes] = []
    server = HTTPServer(("127.0.0.1", 0), type("Kept", (Collector,), {"received": received}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    thread.join()
    server.server_close()


def test_spans_reach_a_collector(tmp_path: Path, collector: tuple[str, list[bytes]]) -> None:
    url, received = collector
    variables = {"ORS_TRACES": "yes", "OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_RESOURCE_ATTRIBUTES": "a=b"}
    with served(tmp_path, "echo", **variables) as address:
        response = httpx.get(f"{address}/splits", headers={"traceparent": PARENT}, trust_env=False)
        assert response.status_code == 200
    # The last spans are sent when the server ends.
    exported = [ExportTraceServiceRequest.FromString(body) for body in received]
    resources = [resource for request in exported for resource in request.resource_spans]
    attributes = {each.key: each.value.string_value for each in resources[0].resource.attributes}
    assert (attributes["service.name"], attributes["a"]) == ("ors-server", "b")
    found = [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
    assert [span.name for span in found] == ["GET /splits"]
    assert found[0].trace_id.hex() in PARENT
    assert re.fullmatch("[0-9a-f]{16}", found[0].span_id.hex())
