"""Keys at a gateway: workers check them, except for what the gateway answers itself.

The gateway counts wrong keys by the addresses of clients, which workers do not know: a 401 of a worker is one. A
connection whose key was once let in is not kept out because of other clients at its address. Pages have a log-in of
their own: a request for one passes without a key, and a 401 to a log-in is a wrong key as well.
"""

from __future__ import annotations

from ors_server.cluster.gateway.proxy.answers import error_response
from ors_server.cluster.gateway.proxy.framing import Head
from ors_server.cluster.gateway.routing.page_routing import is_page
from ors_server.errors import OrsError
from ors_server.keys.authentication import OPEN_PATHS
from ors_server.keys.credentials import HEADERS, credential_of
from ors_server.keys.errors import NotAuthorized, TooManyGuesses
from ors_server.keys.keys import Keys
from ors_server.keys.login_throttle import LoginThrottle

__all__ = ["Guard", "Visitor", "credential_in"]

_PRIVATE = "/_ors/"
_LOG_IN = "/ui/login"


class Visitor:
    """The client of one connection."""

    __slots__ = ("address", "credential", "logs_in", "trusted")

    def __init__(self, address: str) -> None:
        self.address = address
        #: The key of the request that is answered now.
        self.credential = b""
        #: Whether that request is a log-in, whose key is in its body.
        self.logs_in = False
        #: The key that was last let in.
        self.trusted = b""


class Guard:
    """The check of one gateway's requests."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._throttle = LoginThrottle()

    def admit(self, head: Head, visitor: Visitor, path: str) -> bytes | None:
        """Note the key of a request; return the refusal where its address sent too many wrong ones."""
        # The answer of a path that wants no key does not vouch for the key that came with it.
        visitor.credential = credential = b"" if path in OPEN_PATHS else credential_in(head)
        visitor.logs_in = head.method == b"POST" and path == _LOG_IN
        if not self._throttle or not (credential or visitor.logs_in) or (credential and credential == visitor.trusted):
            return None
        pause = self._throttle.pause(visitor.address)
        return error_response(TooManyGuesses(pause)) if pause else None

    def admit_again(self, visitor: Visitor, credential: bytes) -> bool:
        """Note the key of a request whose path wants one; return False where ``admit`` has to look at it."""
        visitor.credential, visitor.logs_in = credential, False
        return not credential or credential == visitor.trusted or not self._throttle

    def refusal(self, visitor: Visitor, path: str) -> bytes | None:
        """Return the refusal of a request that the gateway would answer itself; None where it may."""
        self._keys.refresh()
        if not self._keys.wanted or path in OPEN_PATHS or path.startswith(_PRIVATE):
            return None
        if not visitor.credential and is_page(path):
            return None
        error: OrsError
        if not visitor.credential:
            error = NotAuthorized("This server wants a key, and the request has none")
        elif self._keys.find(visitor.credential) is not None:
            visitor.trusted = visitor.credential
            return None
        else:
            self._throttle.add(visitor.address)
            error = NotAuthorized("This server does not know the key of the request")
        return error_response(error)

    def note(self, visitor: Visitor, response: bytes) -> None:
        """Note whether a worker let the request in, by the begin of its response."""
        if not (visitor.credential or visitor.logs_in):
            return
        if response[9:12] != b"401":
            visitor.trusted = visitor.credential or visitor.trusted
        else:
            self._throttle.add(visitor.address)


def credential_in(head: Head) -> bytes:
    """Return the key that a request carries; empty where it carries none."""
    return credential_of((name, value) for name in HEADERS for value in head.headers.get(name, ()))
