"""Errors of servers with several processes."""

from __future__ import annotations

from ors_server.errors import OrsError, Retryable

__all__ = [
    "ControlError",
    "EnvironmentNotServed",
    "NoWorker",
    "NoWorkerLeft",
    "PoolsError",
    "RayFailed",
    "WorkerFailed",
]


class ControlError(OrsError):
    """The supervisor of a server with several workers cannot be reached, or refuses a command."""


class WorkerFailed(OrsError):
    """A worker of a server with several ended before it served; its own log has the reason."""

    def __init__(self, slot: int, status: int) -> None:
        super().__init__(
            f"Worker {slot} ended with status {status} before it served",
            "Its messages are above; without --workers the server fails in the same way.",
        )


class EnvironmentNotServed(OrsError):
    """The worker of a hosted environment ended before it served; ``cause`` is the error that it told."""

    def __init__(self, name: str, status: int, cause: str, remedy: str) -> None:
        told = f": {cause}" if cause else ""
        if remedy:
            super().__init__(f"{name} cannot be served{told}", remedy)
        else:
            super().__init__(f"{name} ended with status {status} before it served{told}", "Its messages are above.")


class PoolsError(OrsError):
    """A file of pools cannot be used."""


class RayFailed(OrsError):
    """Nodes cannot be started on Ray."""


class NoWorkerLeft(OrsError):
    """All workers of a server with several ended too often; started again they would end again."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"No worker is left: {reason}", "Their messages are above.")


class NoWorker(Retryable):
    """No worker of a server with several can take the request now."""

    def __init__(self) -> None:
        super().__init__("No worker can take this request now", "Retry; on the server `ors-server workers` shows why.")
