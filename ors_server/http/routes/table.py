"""The hot path: routes answered in front of FastAPI's dependency solving.

A handler reads an ``Exchange`` and answers it. The application calls it straight from the ASGI entry; where a user has
added middleware it is reached through FastAPI's routes instead, which also put it into the OpenAPI document (``app``).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ors_server.encoding import encode
from ors_server.errors import OrsError
from ors_server.hosting.author_exceptions import describe_error
from ors_server.http.exchange import ClientDisconnected, Exchange
from ors_server.settings import ReturnErrors

__all__ = ["Route", "answer"]

logger = logging.getLogger("ors_server.http.routes")


@dataclass(frozen=True, slots=True)
class Route:
    """One route, found by its path's last segment."""

    method: str
    #: Whether an environment's name may stand before it.
    per_environment: bool
    handler: Callable[[Exchange], Awaitable[None]]
    #: What stands before it where no environment's name does.
    prefix: str = ""


async def answer(route: Route, exchange: Exchange, return_errors: ReturnErrors) -> None:
    """Answer a request; every error becomes a response."""
    try:
        await route.handler(exchange)
    except ClientDisconnected:
        pass
    except OrsError as error:
        await exchange.error(error)
    except Exception as error:  # a fault of ours: the client gets a clean 500 and the log gets all of it
        logger.exception("request failed", extra={"path": exchange.scope["path"]})
        await exchange.json(encode({"detail": describe_error(error, return_errors)}), 500)
