"""The keys of a running server, read again when their file changes.

    keys = Keys(keys_file(settings))
    key = keys.find("ors_…")            # None for an unknown secret
    text = keys.cookie(key, 8 * 3600)   # a log-in that ``find_cookie`` recognises, until the key is revoked

Invariants: a server that wanted a key once wants one until it ends; a key is found as soon as it is in the file, and no
longer found ``LOOK_EVERY`` seconds after it has left the file. Where the file is damaged while the server runs, the
keys that were read last stay.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from urllib.parse import parse_qs, quote, urlencode

from ors_server.keys.errors import KeysError
from ors_server.keys.file import Stamp, read_keys, stamp_of
from ors_server.keys.key import Key, digest_of, make_secret

__all__ = ["LOOK_EVERY", "SECRET_VARIABLE", "Keys", "hide_secret", "make_inner_keys"]

logger = logging.getLogger("ors_server.keys")

#: Seconds between looks at the file.
LOOK_EVERY = 0.05
#: The same where no request comes.
_WATCH_EVERY = 1.0
#: Variable with one more key, for places that have secrets and no files: the secret itself, or ``sha256:<digits>``.
SECRET_VARIABLE = "ORS_SERVER_KEY"  # noqa: S105 - a name
#: Variable with the digests of the keys by which hosted environments enter the server, a JSON object by the names of
#: the environments; they make no server want keys.
_INNER_VARIABLE = "ORS_INNER_KEYS"
#: Name of the key of ``SECRET_VARIABLE``; beginning of the names of the inner ones, which no other key can have.
_OF_VARIABLE, _INNER = "server", "hosted:"
_SHORTEST = 16
_HASHED = "sha256:"
#: Compared with where no key is found, so that it takes the same time.
_NO_DIGEST = bytes(32)


class Keys:
    """The keys of one server. Raises ``KeysError`` where its file cannot be used at the start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Whether clients have to send a key.
        self.wanted = False
        #: Called with the names of keys that are no longer valid, and, with none, when keys were added.
        self.on_change: list[Callable[[Collection[str]], None]] = []
        self._by_digest: dict[bytes, Key] = {}
        self._fixed = _key_of_variable()
        self._inner = _inner_keys()
        self._stamp: Stamp | None = None
        #: When the file is due to be looked at again, by the monotonic clock.
        self._due = 0.0
        #: Why the file could not be read the last time; the log has it.
        self._failure = ""
        self._read()

    def __len__(self) -> int:
        return len(self._by_digest) - len(self._inner)

    def find(self, secret: str | bytes) -> Key | None:
        """Return the key of a secret; None for an unknown one. Its time depends on no secret."""
        self.refresh()
        digest = digest_of(secret.encode(errors="replace") if isinstance(secret, str) else secret)
        key = self._by_digest.get(digest)
        if key is None:  # it may have been added since the last look
            self._due = 0.0
            self.refresh()
            key = self._by_digest.get(digest)
        known = hmac.compare_digest(digest, _NO_DIGEST if key is None else key.digest)
        return key if known else None

    def named(self, name: str) -> Key | None:
        """Return the key of a name; None where there is none."""
        return next((key for key in self._by_digest.values() if key.name == name), None)

    def current(self, key: Key) -> Key | None:
        """Return a key as it is in the file now, with other limits perhaps; None where it has left the file."""
        return self._by_digest.get(key.digest)

    def refresh(self, now: float | None = None) -> None:
        """Read the file again if it has changed; looks at most every ``LOOK_EVERY`` seconds."""
        now = time.monotonic() if now is None else now
        if now < self._due:
            return
        self._due = now + LOOK_EVERY
        try:
            if stamp_of(self.path) != self._stamp:
                self._read()
                self._failure = ""
        except (KeysError, OSError) as error:
            text = error.text if isinstance(error, KeysError) else f"{self.path}: {error.strerror}"
            if text != self._failure:
                logger.error("the keys stay as they were", extra={"reason": text})
            self._failure = text

    async def watch(self) -> None:
        """Look at the file again and again, so that sessions of a revoked key end on a server without requests."""
        while True:
            await asyncio.sleep(_WATCH_EVERY)
            self.refresh()

    def _read(self) -> None:
        # The stamp is taken first: a file that is replaced in between is read once more.
        self._stamp = stamp_of(self.path)
        keys = read_keys(self.path)
        found = {key.digest: key for key in (*(keys or ()), *self._fixed, *self._inner)}
        gone = {key.name for digest, key in self._by_digest.items() if digest not in found}
        closing = not self.wanted and (keys is not None or bool(self._fixed))
        self.wanted = self.wanted or closing
        self._by_digest = found
        if closing:
            gone.add("")  # what clients without a key made belongs to no client any more
        for changed in self.on_change:
            changed(gone)

    # --- log-ins -----------------------------------------------------------------------------

    def cookie(self, key: Key, seconds: float) -> str:
        """Return the value of a cookie by which ``find_cookie`` finds this key for so many seconds."""
        text = f"{key.name}:{int(time.time() + seconds)}"
        return f"{text}:{_sign(key, 'cookie', text)}"

    def find_cookie(self, value: str) -> Key | None:
        """Return the key that a cookie was made for; None where it is forged, has expired or the key was revoked."""
        self.refresh()
        text, _, signature = value.rpartition(":")
        name, _, expires = text.rpartition(":")
        key = self.named(name)
        return key if key is not None and _is_signed(key, "cookie", text, signature, expires) else None

    # --- uploads -----------------------------------------------------------------------------

    def upload_query(self, key: Key, path: str, seconds: float) -> str:
        """Return the query by which ``find_upload`` finds this key for so many seconds; ``path`` is not quoted."""
        expires = str(int(time.time() + seconds))
        signature = _sign(key, "upload", f"{expires}:{path}")
        return urlencode({"key": key.name, "expires": expires, "signature": signature})

    def find_upload(self, path: str, query: bytes) -> Key | None:
        """Return the key of a query that was made for this path; None where it is another one, or has expired."""
        self.refresh()
        given = {name: values[0] for name, values in parse_qs(query.decode("latin-1")).items()}
        key, expires = self.named(given.get("key", "")), given.get("expires", "")
        signature = given.get("signature", "")
        return key if key is not None and _is_signed(key, "upload", f"{expires}:{path}", signature, expires) else None

    # --- pages -------------------------------------------------------------------------------

    def csrf_token(self, key: Key, cookie: str) -> str:
        """Return the token that forms of the pages carry: another site does not know it."""
        return _sign(key, "csrf", cookie)


def hide_secret() -> None:
    """Replace the secret in ``ORS_SERVER_KEY`` by its digest: processes that start later need no more.

    Raises ``KeysError`` for a secret that could be guessed.
    """
    text = os.environ.get(SECRET_VARIABLE, "").strip()
    if not text or text.startswith(_HASHED):
        return
    if len(text) < _SHORTEST or not text.isascii() or not text.isprintable() or " " in text:
        raise KeysError(
            f"The key in {SECRET_VARIABLE} is shorter than {_SHORTEST} characters, or has characters that a header"
            " cannot have",
            "Set it to the output of `openssl rand -hex 32`.",
        )
    os.environ[SECRET_VARIABLE] = _HASHED + digest_of(text.encode()).hex()


def make_inner_keys(environments: Iterable[str]) -> dict[str, str]:
    """Return a new key for each hosted environment; this process and those it starts accept them."""
    secrets = {name: make_secret() for name in environments}
    digests = {name: digest_of(secret.encode()).hex() for name, secret in secrets.items()}
    os.environ[_INNER_VARIABLE] = json.dumps(digests)
    return secrets


def _inner_keys() -> tuple[Key, ...]:
    digests: dict[str, str] = json.loads(os.environ.get(_INNER_VARIABLE, "{}"))
    return tuple(
        Key(_INNER + quote(name, safe=""), bytes.fromhex(digest), environment=name) for name, digest in digests.items()
    )


def _key_of_variable() -> tuple[Key, ...]:
    hide_secret()
    text = os.environ.get(SECRET_VARIABLE, "").strip()
    if not text:
        return ()
    try:
        digest = bytes.fromhex(text.removeprefix(_HASHED))
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise KeysError(f"{SECRET_VARIABLE} is not a key", f"Set it to a key, or to {_HASHED} and its SHA-256.")
    return (Key(_OF_VARIABLE, digest),)


def _sign(key: Key, purpose: str, text: str) -> str:
    return hmac.new(key.digest, f"ors-{purpose}\0{text}".encode(errors="replace"), hashlib.sha256).hexdigest()


def _is_signed(key: Key, purpose: str, text: str, signature: str, expires: str) -> bool:
    """Return whether a client's text has the key's signature, and the time when it expires is to come."""
    if not (expires.isascii() and expires.isdecimal()) or len(expires) > 12:
        return False
    signed = hmac.compare_digest(_sign(key, purpose, text).encode(), signature.encode(errors="replace"))
    return signed and int(expires) > time.time()
