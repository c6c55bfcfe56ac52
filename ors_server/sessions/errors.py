"""Errors of sessions and of their calls."""

from __future__ import annotations

from ors_server.errors import InfrastructureFailure, OrsError, RequestError, Retryable

__all__ = [
    "LOST_WITH_WORKER",
    "EnvironmentConflict",
    "IdempotencyConflict",
    "InvalidSecrets",
    "OutputTooLarge",
    "ResultsFull",
    "ScoringUnsupported",
    "SessionExists",
    "SessionGone",
    "SessionStarting",
    "ShuttingDown",
    "UnknownSession",
]


class InvalidSecrets(RequestError):
    """The ``X-Secrets`` header or the body's ``secrets`` cannot be read. The text never quotes them."""


class SessionExists(RequestError):
    """``/create`` came with an id in use and another task than the first time."""

    def __init__(self) -> None:
        super().__init__(
            "Session already exists",
            "It was created with another task or other secrets; open a new session with a new id",
        )


class UnknownSession(RequestError):
    """No session of this id was created on this server."""

    status = 404

    def __init__(self) -> None:
        super().__init__("Active environment not found")


class ScoringUnsupported(RequestError):
    """``/score_group`` on an environment that does not implement it."""

    status = 404

    def __init__(self, name: str) -> None:
        super().__init__(f"Environment {name!r} does not implement score_group")


class EnvironmentConflict(RequestError):
    """The path names another environment than the one the session was created with."""

    status = 409

    def __init__(self, named: str, own: str) -> None:
        super().__init__(
            f"This session belongs to environment {own!r}, not {named!r}",
            f"Use /{own}/… or the bare path, or create the session with env_name {named!r}",
        )


class IdempotencyConflict(RequestError):
    """The same ``Idempotency-Key`` came with another tool or other input."""

    status = 409

    def __init__(self, key: str) -> None:
        super().__init__(
            f"Idempotency-Key {key!r} was used for another call of this session", "Use a new key for each call"
        )


#: The reason for a session whose worker has ended, in a server with several.
LOST_WITH_WORKER = "Session lost: InfrastructureError: the worker that held it ended. Start a new session"


class SessionGone(RequestError):
    """The session existed and has ended; its id is remembered for this answer."""

    status = 410


class OutputTooLarge(OrsError):
    """A tool's output exceeds ``ORS_MAX_OUTPUT``: an ``error`` event, and the episode goes on."""


class SessionStarting(Retryable):
    """The set-up has not ended yet."""

    def __init__(self, cause: str = "Environment still starting.") -> None:
        super().__init__(cause)


class ResultsFull(Retryable):
    """Results that were not fetched fill the memory and cannot go to disk."""

    def __init__(self, size: int, folder: str, reason: str) -> None:
        super().__init__(
            f"{size // 2**20} MiB of results wait for their clients in memory, and cannot go to disk: {reason}",
            f"Retry, or make room in {folder} on the server.",
        )


class ShuttingDown(InfrastructureFailure):
    """The server is being stopped, and takes no new sessions and sandboxes."""

    def __init__(self) -> None:
        super().__init__("The server is shutting down", "Retry on another one, or when it is back.")
