"""The key that the headers of a request carry: the one place that reads it.

It is sent as ``X-API-Key`` or as ``Authorization: Bearer``; the first decides where both are sent, for a proxy may have
added the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["HEADERS", "bearer_token", "credential_of", "credential_of_single", "read_credential"]

#: Names of the headers that carry a key.
HEADERS = _OWN, _AUTHORIZATION = b"x-api-key", b"authorization"


def credential_of_single(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the key of headers of which none is repeated; empty where they carry none."""
    return headers.get(_OWN, b"").strip() or bearer_token(headers.get(_AUTHORIZATION, b"")) or b""


def credential_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the key that headers carry; empty where they carry none."""
    return read_credential(headers)[0]


def read_credential(headers: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, bool]:
    """Return the key that headers carry, and whether one of the two headers has several."""
    own = bearer = b""
    several = False
    for name, value in headers:
        if name == _OWN:
            several = several or bool(own)
            own = value.strip()
        elif name == _AUTHORIZATION:
            given = bearer_token(value)
            if given is not None:
                several = several or bool(bearer)
                bearer = given
    return own or bearer, several


def bearer_token(authorization: bytes) -> bytes | None:
    """Return the token of an ``Authorization`` header; None where it is of another scheme."""
    scheme, _, given = authorization.strip().partition(b" ")
    return given.strip() if scheme.lower() == b"bearer" else None
