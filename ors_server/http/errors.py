"""Errors of requests and of the address that a server listens on."""

from __future__ import annotations

from collections.abc import Sequence

from ors_server.errors import OrsError, RequestError

__all__ = [
    "AmbiguousSession",
    "BodyTooLarge",
    "InvalidIdempotencyKey",
    "MissingSession",
    "NoOrganisation",
    "NoSandboxService",
    "PortInUse",
]


class PortInUse(OrsError, OSError):
    """Another process already listens on the address."""


class MissingSession(RequestError):
    """A session request came without its ``X-Session-ID`` header."""

    def __init__(self) -> None:
        super().__init__("X-Session-ID header is required")


class AmbiguousSession(RequestError):
    """A session request came with several ``X-Session-ID`` headers."""

    def __init__(self) -> None:
        super().__init__("Several X-Session-ID headers", "Send one")


class NoOrganisation(RequestError):
    """A client asked for the organisation of its key; ``orwd whoami`` then asks for the user."""

    status = 404

    def __init__(self, namespace: str) -> None:
        super().__init__("This server has no organisations", f"Its one namespace is {namespace!r}, of the type user")


class NoSandboxService(OrsError):
    """A client asked for a sandbox of OpenReward's sandbox service."""

    status = 501

    def __init__(self) -> None:
        super().__init__(
            "This server has no sandbox service, so environments that open sandboxes through the openreward client"
            " cannot run on it",
            "Start it with --sandbox-service yes, or with `ors-server host`",
        )

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        # openreward's client retries every status above 499; without the header it would wait between attempts.
        return (("Retry-After", "0"),)


class InvalidIdempotencyKey(RequestError):
    """An ``Idempotency-Key`` is too long (characters)."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"The Idempotency-Key is longer than {limit} characters", "Use a UUID")


class BodyTooLarge(RequestError):
    """The request body is over the limit (bytes)."""

    status = 413

    def __init__(self, limit: int) -> None:
        super().__init__(f"The request body is larger than {limit} bytes", "Raise ORS_MAX_BODY on the server")
