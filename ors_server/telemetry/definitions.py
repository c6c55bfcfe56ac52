"""Every metric of ``/metrics``: its name, kind, labels and meaning.

The values of labels are bounded: names of environments and tools are those of the authors, and all others are an
enumeration here. A name that a client chose never becomes the value of a label: it counts as ``OTHER``.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["METRICS", "OTHER", "Metric"]

#: Value of a label for everything that has no value of its own. No tool can have this name.
OTHER = "(other)"


class Metric(NamedTuple):
    """One family of series. The name of a counter is without ``_total``."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    labels: tuple[str, ...] = ()

    @property
    def exposed_name(self) -> str:
        """The name by which Prometheus knows it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _define(name: str, kind: Literal["counter", "gauge", "histogram"], labels: tuple[str, ...], meaning: str) -> Metric:
    metric = METRICS[name] = Metric(name, kind, meaning, labels)
    return metric


#: All metrics by name, in the order in which they are exposed.
METRICS: dict[str, Metric] = {}

BUILD = _define("ors_build_info", "gauge", ("version", "python", "build_sha"), "Always 1; the labels have the versions")
LIMIT = _define("ors_limit", "gauge", ("limit",), "A limit of the settings: sessions, calls, sandbox_queue, sandboxes")

REQUESTS = _define(
    "ors_requests", "counter", ("route", "code"), "Requests that have ended; code 499: the client has disconnected"
)
REQUEST_SECONDS = _define(
    "ors_request_duration_seconds",
    "histogram",
    ("route",),
    "Time from the head of a request to the last byte of its response, streams included",
)
REQUESTS_IN_FLIGHT = _define("ors_requests_in_flight", "gauge", (), "Requests whose response has not ended")
CONNECTIONS = _define("ors_connections", "gauge", (), "Open connections")

SESSIONS = _define(
    "ors_sessions",
    "gauge",
    ("environment", "state"),
    "Sessions: unbound, creating, setting_up, ready, failed, ending",
)
SESSIONS_CREATED = _define("ors_sessions_created", "counter", ("environment",), "Sessions whose instance was begun")
SESSIONS_ENDED = _define(
    "ors_sessions_ended",
    "counter",
    ("environment", "reason"),
    "Sessions that have begun to end: deleted, expired, lost (the machine failed), stopped (the server was), unbuilt "
    "(the constructor or the task failed)",
)
SETUP_SECONDS = _define(
    "ors_session_setup_duration_seconds",
    "histogram",
    ("environment",),
    "Time from the first step of a constructor until the session is ready, or its set-up has failed",
)
SETUP_FAILURES = _define(
    "ors_session_setup_failures",
    "counter",
    ("environment", "reason"),
    "Set-ups that failed: environment (the author's code raised), infrastructure",
)

CALLS = _define(
    "ors_calls",
    "counter",
    ("environment", "tool", "outcome"),
    "Tool calls that have ended: ok, refused (no tool ran: unknown tool, wrong input, finished episode), error (the "
    "tool raised), infrastructure, timeout, cancelled (their session ended)",
)
CALLS_IN_FLIGHT = _define("ors_calls_in_flight", "gauge", (), "Tool calls whose code runs")
CALL_SECONDS = _define(
    "ors_call_duration_seconds",
    "histogram",
    ("environment", "tool"),
    "Time from the start of a call until its result is encoded",
)
CALL_ENVIRONMENT_SECONDS = _define(
    "ors_call_environment_seconds", "histogram", ("environment", "tool"), "The part of it in the author's tool"
)
CALL_SERVER_SECONDS = _define(
    "ors_call_server_seconds",
    "histogram",
    ("environment",),
    "The other part: validation, the wait for set-up, for another call of the tool and for a thread, encoding",
)

SANDBOX_START_SECONDS = _define(
    "ors_sandbox_start_duration_seconds",
    "histogram",
    ("start",),
    "Time from the request for a sandbox until it can be used: warm (from the pool), cold, container (docker-like)",
)
SANDBOX_START_FAILURES = _define(
    "ors_sandbox_start_failures",
    "counter",
    ("reason",),
    "Sandboxes that could not be had: no_room (the queue was full, or the wait too long), failed",
)
SANDBOX_QUEUE = _define("ors_sandbox_queue", "gauge", (), "Requests for sandboxes that wait for room")
SANDBOXES_WARM = _define("ors_sandboxes_warm", "gauge", (), "Sandboxes that are kept started beforehand")
SANDBOX_POOL = _define(
    "ors_sandbox_pool",
    "counter",
    ("event",),
    "Warm sandboxes: warm (handed out), cold (none was warm), dead (found dead), unused (stopped unused)",
)
SERVICE_SANDBOXES = _define("ors_service_sandboxes", "gauge", (), "Sandboxes of the sandbox service")

ROLLOUT_QUEUE = _define(
    "ors_rollout_queue_bytes", "gauge", (), "Rollouts that wait in memory to be stored: uploads and records"
)
ROLLOUT_FAILING = _define("ors_rollout_store_failing", "gauge", (), "1 while rollouts cannot be stored")
ROLLOUTS_DROPPED = _define(
    "ors_rollout_dropped",
    "counter",
    ("what",),
    "Events of sessions, and whole sessions, that are not recorded because too much waits to be stored",
)

LOOP_LAG = _define(
    "ors_event_loop_lag_seconds",
    "histogram",
    (),
    "How late the event loop runs a timer that is due four times a second",
)

WORKER_UP = _define(
    "ors_worker_up", "gauge", ("worker",), "1 where the worker's figures are part of this response, else 0"
)
GATEWAY_REQUESTS = _define(
    "ors_gateway_requests",
    "counter",
    ("answered_by",),
    "Requests of a gateway: answered by a worker, or by the gateway itself",
)
GATEWAY_ERRORS = _define(
    "ors_gateway_upstream_errors",
    "counter",
    ("reason",),
    "Requests that no worker answered: connect (none could be reached), lost (its connection broke)",
)
GATEWAY_CONNECTIONS = _define("ors_gateway_connections", "gauge", (), "Open connections of clients to a gateway")
GATEWAY_UPSTREAMS = _define(
    "ors_gateway_upstream_connections", "gauge", (), "Open connections of a gateway to its workers"
)
GATEWAY_WORKERS = _define(
    "ors_gateway_workers", "gauge", ("state",), "Workers as a gateway sees them: starting, serving, silent, dead"
)
