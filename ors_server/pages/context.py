"""The parts of a server that its pages show."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from ors_server.hosting.catalogue import Catalogue
from ors_server.hosting.task_source import names_in
from ors_server.keys.authentication import KEY, Authenticator
from ors_server.keys.key import ANYONE, Key
from ors_server.rollouts.store import RolloutStore
from ors_server.sandbox_service.registry import SandboxSessions
from ors_server.sessions.registry import Sessions
from ors_server.settings import Settings

__all__ = ["PagesContext", "RolloutContext", "ServerContext", "ViewRoute", "visitor_of"]

#: A method, a path and its handler.
ViewRoute = tuple[str, str, Callable[[Request], Awaitable[Response]]]


@dataclass(frozen=True, slots=True)
class RolloutContext:
    """The stored rollouts, as a server shows them or without one."""

    settings: Settings
    store: RolloutStore

    def private_fields(self, environment: str) -> Iterable[str]:
        """Return the names of the fields of an environment's tasks that no reader sees."""
        del environment  # none is hosted, and clients have stored public tasks
        return ()


@dataclass(frozen=True, slots=True)
class PagesContext:
    """The parts of a server of sandboxes."""

    settings: Settings
    #: The sandboxes that clients open; None where they are not served.
    sandboxes: SandboxSessions | None
    #: The slot of this worker; None for a server of one process.
    worker_slot: int | None
    authenticator: Authenticator


@dataclass(frozen=True, slots=True)
class ServerContext(PagesContext):
    """The parts of a server of environments."""

    sessions: Sessions
    store: RolloutStore

    @property
    def catalogue(self) -> Catalogue:
        """The hosted environments."""
        return self.sessions.catalogue

    def private_fields(self, environment: str) -> Iterable[str]:
        """Return the names of the fields that an environment of this server declares private."""
        hosted = self.catalogue.find(environment)
        return () if hosted is None else names_in(hosted.cls, "private_task_fields")


def visitor_of(request: Request) -> Key:
    """Return the key of the request; ``ANYONE`` on a server without keys."""
    key = request.scope.get(KEY)
    return key if isinstance(key, Key) else ANYONE
