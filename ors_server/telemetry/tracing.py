"""OpenTelemetry traces: spans of requests, set-ups, calls and starts of sandboxes.

They are off unless ``ORS_TRACES`` is on, and its SDK is not imported then. The ``OTEL_*`` variables of the
standard say where spans go and which are sampled. A client's ``traceparent`` is the parent of its request; the spans of
an environment's own code are children of the call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ors_containers.distribution import install_command

from ors_server.telemetry.errors import TracesUnavailable
from ors_server.wire.version import VERSION
from ors_server.worker import identity

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

__all__ = ["Tracing", "active", "fail", "sandbox_span", "start_tracing", "stop_tracing"]

#: Seconds that the last spans may take at the end of the server.
_PATIENCE = 5.0
_PARENTS = ("traceparent", "tracestate")


class Tracing:
    """The spans of one process."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self.provider = provider
        self._tracer = provider.get_tracer("ors_server", VERSION)
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def request(self, name: str, headers: Mapping[bytes, bytes], attributes: Mapping[str, str]) -> Generator[Span]:
        """Trace the block as a request with these headers."""
        from opentelemetry.trace import SpanKind

        carrier = {name: headers[name.encode()].decode("latin-1") for name in _PARENTS if name.encode() in headers}
        parent = self._propagator.extract(carrier)
        with self._tracer.start_as_current_span(name, parent, SpanKind.SERVER, attributes) as span:
            yield span

    @contextmanager
    def span(self, name: str, attributes: Mapping[str, str]) -> Generator[Span]:
        """Trace the block."""
        with self._tracer.start_as_current_span(name, attributes=attributes) as span:
            yield span

    def begin(self, name: str, attributes: Mapping[str, str]) -> Span:
        """Begin a span that outlives this task, and whose children are those of this task."""
        from opentelemetry import context, trace

        span = self._tracer.start_span(name, attributes=attributes)
        context.attach(trace.set_span_in_context(span))
        return span


#: The tracing of this process; None where it is off.
active: Tracing | None = None


def fail(span: Span, reason: str) -> None:
    """Mark a span as failed."""
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, reason))


@contextmanager
def sandbox_span(image: str) -> Generator[None]:
    """Trace the block as the start of a sandbox of an image, where tracing is on."""
    if active is None:
        yield
    else:
        with active.span("sandbox start", {"ors.image": image}):
            yield


def start_tracing() -> None:
    """Begin to trace this process, with the provider that its program has set, else one for OTLP.

    Raises ``TracesUnavailable``.
    """
    global active
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        remedy = f"Install it: {install_command('traces')}."
        raise TracesUnavailable(f"Traces need OpenTelemetry: {error}", remedy) from None
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider(resource=Resource.create(_resource()), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
    active = Tracing(provider)


def _resource() -> dict[str, Any]:
    found: dict[str, Any] = {"service.version": VERSION}
    if "OTEL_SERVICE_NAME" not in os.environ and "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        found["service.name"] = "ors-server"
    worker = identity()
    if worker is not None:
        found["ors.worker"] = worker.slot
    return found


def stop_tracing() -> None:
    """Send the last spans, at most for a few seconds, and trace no more."""
    global active
    tracing, active = active, None
    if tracing is not None:
        # A thread: a collector that does not answer must not keep the process from ending.
        sending = threading.Thread(target=tracing.provider.force_flush, name="ors-traces", daemon=True)
        sending.start()
        sending.join(_PATIENCE)
