"""The hot path: routes that are answered before FastAPI's dependency solving.

A handler reads an ``Exchange`` and answers it. The application calls it straight from the ASGI entry. Where a user has
added middleware, FastAPI's routes call it instead (``documentation``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ors_server.errors import OrsError
from ors_server.hosting.author_exceptions import describe_error
from ors_server.http.exchange import ClientDisconnected, Exchange
from ors_server.http.routes.operations import OPERATIONS, Tag
from ors_server.settings import ReturnErrors
from ors_server.telemetry import tracing
from ors_server.telemetry.counts import RouteCounts
from ors_server.wire.encoding import encode
from ors_server.wire.request_ids import request_ids

if TYPE_CHECKING:
    from ors_server.telemetry.tracing import Tracing

__all__ = ["Handler", "Route", "answer", "routes_of"]

logger = logging.getLogger("ors_server.http.routes")

#: Handlers whose requests have no span: programs send them again and again.
_UNTRACED = frozenset(("health", "metrics", "ping", "ready"))

Handler = Callable[[Exchange], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Route:
    """One operation with its handler, found by the last segment of its path."""

    method: str
    #: Whether the name of an environment may stand before it.
    per_environment: bool
    handler: Handler
    #: The path before it where no environment's name stands there.
    prefix: str = ""
    #: None where its requests are not counted.
    counts: RouteCounts | None = None


def routes_of(handlers: object, *tags: Tag) -> dict[str, Route]:
    """Bind the operations of these tags to the methods of their names."""
    return {
        name: Route(operation.method, operation.per_environment, getattr(handlers, name), operation.prefix)
        for name, operation in OPERATIONS.items()
        if operation.tag in tags
    }


def answer(route: Route, exchange: Exchange, return_errors: ReturnErrors) -> Awaitable[None]:
    """Answer a request, and count it; every error becomes a response."""
    # Coroutines within coroutines would stay in memory as long as an event stream is open.
    request_ids.set(exchange.ids)
    if tracing.active is None or route.handler.__name__ in _UNTRACED:
        return _answer(route, exchange, return_errors)
    return _answer_traced(route, exchange, return_errors, tracing.active)


async def _answer_traced(route: Route, exchange: Exchange, return_errors: ReturnErrors, tracer: Tracing) -> None:
    name = route.handler.__name__
    attributes = {"http.request.method": route.method, "http.route": f"{route.prefix}/{name}"}
    if exchange.ids.session:
        attributes["ors.session.id"] = exchange.ids.session
    with tracer.request(f"{route.method} {route.prefix}/{name}", exchange.headers, attributes) as span:
        await _answer(route, exchange, return_errors)
        span.set_attribute("http.response.status_code", exchange.status)
        span.set_attribute("ors.request.id", exchange.ids.request)
        if exchange.status >= 500:
            tracing.fail(span, str(exchange.status))


async def _answer(route: Route, exchange: Exchange, return_errors: ReturnErrors) -> None:
    counts, begun = route.counts, 0.0
    if counts is not None:
        counts.active += 1
        begun = time.perf_counter()
    try:
        await route.handler(exchange)
    except ClientDisconnected:
        pass
    except OrsError as error:
        await exchange.error(error)
    except Exception as error:  # a fault of the server: the client gets a 500, the log the traceback
        logger.exception("request failed", extra={"path": exchange.scope["path"]})
        await exchange.json(encode({"detail": describe_error(error, return_errors)}), 500)
    finally:
        if counts is not None:
            counts.end(exchange.status, time.perf_counter() - begun)
