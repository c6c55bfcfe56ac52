"""Errors of keys and of the secret of a cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ors_server.errors import OrsError, RequestError, Retryable

__all__ = ["ClusterError", "KeyBusy", "KeysError", "NotAuthorized", "TooManyGuesses"]


class KeysError(OrsError):
    """The keys of a server cannot be read or changed, or it has none and would be open to others."""


class NotAuthorized(RequestError):
    """A request without a key, or with one that this server does not know."""

    status = 401

    def __init__(self, cause: str) -> None:
        super().__init__(
            cause,
            "Send one as X-API-Key or as Authorization: Bearer; clients read it from ORS_API_KEY or OPENREWARD_API_KEY."
            " `ors-server keys add NAME` on the server makes one",
        )

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        return (("WWW-Authenticate", "Bearer"),)


class TooManyGuesses(RequestError):
    """Too many wrong keys came from an address. No key from there is looked at now."""

    status = 429

    def __init__(self, seconds: float) -> None:
        super().__init__("Too many wrong keys came from this address", "Retry later, with a key of this server")
        self._seconds = seconds

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        return (("Retry-After", str(math.ceil(self._seconds))),)


class KeyBusy(Retryable):
    """A limit of the client's key is reached: not a 429, at which some clients do not retry."""

    def __init__(self, name: str, limit: str, seconds: float = 2.0) -> None:
        super().__init__(
            f"The limit of key {name!r} is reached: {limit}",
            "Retry; the operator of the server sets its limits.",
            seconds,
        )


class ClusterError(OrsError):
    """A gateway or a node of a cluster cannot take part in it."""
