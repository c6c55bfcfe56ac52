"""The kinds of answers to a request: a worker's, or one of the gateway's own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from ors_server.cluster.gateway.members.workers import Worker
from ors_server.cluster.gateway.proxy.framing import Head
from ors_server.cluster.gateway.routing.session_lookup import Search

__all__ = ["Later", "Own", "Private", "Route", "WithBody"]


@dataclass(frozen=True, slots=True)
class Own:
    """A response of the gateway's own."""

    data: bytes


@dataclass(frozen=True, slots=True)
class WithBody:
    """A choice that needs the request's body, of at most ``limit`` bytes."""

    choose: Callable[[bytes], Own | Worker | Search]
    limit: int


@dataclass(frozen=True, slots=True)
class Later:
    """A response of the gateway's own that has to be waited for."""

    respond: Callable[[], Coroutine[Any, Any, bytes]]


Route = Own | Worker | Search | WithBody | Later


class Private(Protocol):
    """The answers to requests below ``/_ors/``, which are not for clients."""

    def route(self, head: Head, path: str) -> Own | WithBody:
        """Return the response. Raises ``OrsError``."""
        ...
