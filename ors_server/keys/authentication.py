"""The check of each request's key.

A pair of address and key that was let in is found by one look into a dictionary. Any other key is
hashed and compared in constant time, unless too many wrong ones came from its address (``guesses``).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Mapping
from typing import Any

from ors_server.keys.credentials import credential_of_single, read_credential
from ors_server.keys.errors import NotAuthorized, TooManyGuesses
from ors_server.keys.key import ANYONE, Key
from ors_server.keys.keys import Keys
from ors_server.keys.login_throttle import LoginThrottle
from ors_server.keys.usage import Usage

__all__ = ["COOKIE", "FILES", "KEY", "OPEN_PATHS", "Authenticator", "key_of"]

#: Key in an ASGI scope of the request's ``Key``.
KEY = "ors_server.key"
#: Paths that want no key: programs that watch the server ask for them.
OPEN_PATHS = frozenset(("/health", "/ready", "/version"))
#: Name of the cookie of a log-in, which counts below this path only.
COOKIE = "ors_key"
_PAGES = "/ui"
#: Paths of data folders begin with it. Files are put to addresses that are signed in the place of a key, and may be of
#: any length: handlers read them piece by piece.
FILES = "/v1/files/"
#: Pairs of address and key that are remembered; all are forgotten when there are more.
_REMEMBERED = 65_536


class Authenticator:
    """The check of one server's requests. Used on its event loop only.

    Addresses are those of connections; ``behind_proxy`` they are what the proxy says (``X-Forwarded-For``), and
    ``behind_gateway`` they are unknown: the gateway counts wrong keys.
    """

    def __init__(self, keys: Keys, usage: Usage, *, behind_proxy: bool = False, behind_gateway: bool = False) -> None:
        self.keys = keys
        self._behind_proxy = behind_proxy
        self._behind_gateway = behind_gateway
        self._throttle = LoginThrottle()
        self._known: dict[tuple[str, bytes], Key] = {}
        self._usage = usage
        #: Operations of environments: ``/ui/tools`` is not a page but asks for the tools of an environment "ui".
        self.operations: Container[str] = ()
        keys.on_change.append(self._look_again)

    def authenticate(self, scope: Any, path: str, headers: Mapping[bytes, bytes]) -> Key:
        """Return the key of a request, ``ANYONE`` where none is wanted.

        ``headers`` are those of the scope by their names; of a repeated one the last.
        Raises ``NotAuthorized``, ``TooManyGuesses``, and ``KeyBusy`` above the key's rate of requests.
        """
        self.keys.refresh(time.monotonic())
        if not self.keys.wanted:
            return ANYONE
        sender = self._read(scope, headers)
        key = self._known.get(sender)
        if key is None:
            address, credential = sender
            if path in OPEN_PATHS:
                return ANYONE
            if not credential and self._is_page(path):
                return self._of_pages(scope)
            if not credential and scope.get("method") == "PUT" and path.startswith(FILES):
                uploader = self.keys.find_upload(path, scope["query_string"])
                if uploader is not None:
                    return uploader
            key = self.check(credential, address)
        if key.has_rate and path not in OPEN_PATHS:
            self._usage.take_turn(key)
        return key

    def check(self, credential: bytes, address: str) -> Key:
        """Return the key that an address sent. Raises ``NotAuthorized`` and ``TooManyGuesses``."""
        if not credential:
            raise NotAuthorized("This server wants a key, and the request has none")
        known = self._known.get((address, credential))
        if known is not None:
            return known
        pause = self._throttle.pause(address) if address and self._throttle else 0.0
        if pause:
            raise TooManyGuesses(pause)
        key = self.keys.find(credential)
        if key is None:
            if address:
                self._throttle.add(address)
            raise NotAuthorized("This server does not know the key of the request")
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[address, credential] = key
        return key

    def log_in(self, scope: Any, secret: str) -> Key:
        """Return the key that was typed into a form. Raises ``NotAuthorized`` and ``TooManyGuesses``.

        Answer with their status: gateways count wrong keys by it.
        """
        return self.check(secret.strip().encode(errors="replace"), self._address(scope, dict(scope["headers"])))

    def _read(self, scope: Any, headers: Mapping[bytes, bytes]) -> tuple[str, bytes]:
        """Return the address of a request's client, and the credential. Raises ``NotAuthorized``."""
        if len(headers) == len(scope["headers"]):  # none is repeated
            credential = credential_of_single(headers)
        else:
            credential, several = read_credential(scope["headers"])
            if several:
                raise NotAuthorized("The request has several keys in one header: send one")
        return self._address(scope, headers), credential

    def _address(self, scope: Any, headers: Mapping[bytes, bytes]) -> str:
        if self._behind_gateway:
            return ""
        if self._behind_proxy:
            return headers.get(b"x-forwarded-for", b"").rpartition(b",")[2].strip().decode("latin-1")
        client = scope.get("client")
        return "" if client is None else str(client[0])

    def _is_page(self, path: str) -> bool:
        return path == _PAGES or (
            path.startswith(_PAGES + "/") and path.removeprefix(_PAGES + "/") not in self.operations
        )

    def _of_pages(self, scope: Any) -> Key:
        for name, value in scope["headers"]:
            if name == b"cookie":
                for part in value.decode("latin-1").split(";"):
                    given, _, content = part.strip().partition("=")
                    key = self.keys.find_cookie(content.strip('"')) if given == COOKIE else None
                    if key is not None:
                        return key
        return ANYONE

    def _look_again(self, _: Collection[str]) -> None:
        # Clients of the keys that stay are remembered: wrong keys may have come from their addresses.
        current = ((pair, self.keys.current(key)) for pair, key in self._known.items())
        self._known = {pair: key for pair, key in current if key is not None}


def key_of(scope: Mapping[str, Any]) -> Key:
    """Return the key of a request that was let in; ``ANYONE`` where the server wants none."""
    return scope.get(KEY, ANYONE)
