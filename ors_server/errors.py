"""The root of all errors of ors-server, and the errors of more than one room.

Each room has its own in its ``errors`` module, or beside what raises them.

A client gets ``{"detail": …}`` with the error's status; ``detail`` is the cause and, where there is one, the remedy.
In an event stream the same text is the data of an ``error`` event. The detail texts that real clients compare
(protocol: "Invalid split", "Active environment not found", …) begin with exactly those words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

__all__ = [
    "DefinitionError",
    "InfrastructureError",
    "InfrastructureFailure",
    "InvalidBody",
    "MachineBusy",
    "OrsError",
    "RequestError",
    "Retryable",
    "ServerBusy",
]


class OrsError(Exception):
    """Root of the tree: ``cause`` is the fault, ``remedy`` the way to correct it (may be empty)."""

    status: ClassVar[int] = 500

    def __init__(self, cause: str, remedy: str = "") -> None:
        self.cause = cause
        self.remedy = remedy
        super().__init__(self.text)

    @property
    def text(self) -> str:
        """Cause and remedy in one line; unlike ``str()``, it never runs an author's code."""
        return self.cause if not self.remedy else f"{self.cause.rstrip('.')}. {self.remedy}"

    @property
    def detail(self) -> Any:
        """The ``detail`` of the JSON error body."""
        return self.text

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        """Response headers that this error needs."""
        return ()


class DefinitionError(OrsError, ValueError):
    """An environment class cannot be hosted; raised when the server is built, never later."""


class RequestError(OrsError):
    """The request cannot be served; a retry of the same request fails again."""

    status = 400


class InvalidBody(RequestError):
    """The body is not JSON or does not fit its model; ``detail`` is the list of errors in FastAPI's form."""

    status = 422

    def __init__(self, errors: list[dict[str, Any]]) -> None:
        super().__init__("The request body is not valid")
        self.errors = errors

    @property
    def detail(self) -> Any:
        return self.errors


class Retryable(OrsError):
    """Nothing was started, and a later request may succeed. Real clients retry (``X-Backend-State: starting``)."""

    status = 503

    def __init__(self, cause: str, remedy: str = "", retry_after: float = 2.0) -> None:
        super().__init__(cause, remedy)
        #: Seconds after which a retry makes sense.
        self.retry_after = retry_after

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        return (("X-Backend-State", "starting"), ("Retry-After", str(max(1, math.ceil(self.retry_after)))))


class ServerBusy(Retryable):
    """A limit on sessions or running calls is reached."""

    def __init__(self, what: str, limit: int, variable: str) -> None:
        super().__init__(f"The limit of {limit} {what} is reached", f"Retry, or raise {variable} on the server.")


class MachineBusy(Retryable):
    """The machine has no room for another sandbox, and the queue for one is full."""

    def as_failure(self) -> InfrastructureFailure:
        """Return the failure that this becomes where waiting has ended or the request cannot be repeated."""
        return InfrastructureFailure(self.cause, self.remedy)


class InfrastructureFailure(OrsError):
    """The machine failed, not the agent: a sandbox that did not start, a full disk, a grader that could not run.

    Environment authors raise it, and the server never turns it into a reward. On the wire it is an ``error`` event
    ``InfrastructureError: <cause>. <remedy>``, and every later request of the session gets 410 (protocol 0.1).
    """

    status = 503

    @property
    def detail(self) -> Any:
        return f"InfrastructureError: {self.text}"


#: The former name of the class, which is still the word on the wire.
InfrastructureError = InfrastructureFailure
