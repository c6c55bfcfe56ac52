"""The secret that the gateways and nodes of a cluster share.

``ORS_CLUSTER_KEY`` is the secret, ``ORS_CLUSTER_KEY_FILE`` a file with it. No process sends it: each use has a secret
of its own, derived from the key. A worker, which runs authors' code, gets only the digest of the token that it is to
accept.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import os
from pathlib import Path

from ors_server.keys.errors import ClusterError

__all__ = [
    "CLUSTER_HEADER",
    "KEY_FILE_VARIABLE",
    "KEY_VARIABLE",
    "ClusterKey",
    "accepts",
    "take_cluster_key",
    "take_secret",
]

KEY_VARIABLE, KEY_FILE_VARIABLE = "ORS_CLUSTER_KEY", "ORS_CLUSTER_KEY_FILE"
#: Header with the token of nodes and commands in requests to a gateway.
CLUSTER_HEADER = b"x-ors-cluster"
_SHORTEST = 16
_PR_SET_DUMPABLE = 4
_REMEDY = (
    f"Set {KEY_VARIABLE}, or {KEY_FILE_VARIABLE} to a file, to the same secret on all machines of the cluster, for "
    "example the output of `openssl rand -hex 32`."
)


class ClusterKey:
    """The secrets that are derived from a cluster's key."""

    def __init__(self, key: bytes) -> None:
        if len(key) < _SHORTEST:
            raise ClusterError(f"The cluster's key has fewer than {_SHORTEST} characters", _REMEDY)
        #: Token of a gateway in its requests to workers.
        self.gateway_token = _derive(key, b"gateway").hex()
        #: Token of nodes, and of commands, in their requests to gateways.
        self.node_token = _derive(key, b"node").hex()
        #: Key of the ids that gateways place.
        self.ids = _derive(key, b"ids")

    @property
    def verifier(self) -> str:
        """The digest by which a worker recognises a gateway."""
        return _digest(self.gateway_token.encode()).hex()


def accepts(verifier: bytes, token: bytes) -> bool:
    """Return whether a token has this digest, in constant time."""
    return hmac.compare_digest(_digest(token), verifier)


def take_cluster_key() -> ClusterKey:
    """Take the key out of this process's environment. Raises ``ClusterError``."""
    text = take_secret()
    if not text:
        raise ClusterError("There is no cluster key", _REMEDY)
    return ClusterKey(text.encode())


def take_secret() -> str:
    """Take the text of the key out of this process's environment; empty where there is none. Raises ``ClusterError``.

    Processes that are started later do not inherit it, and other processes of the user cannot read it in this one.
    """
    text, file = os.environ.pop(KEY_VARIABLE, ""), os.environ.pop(KEY_FILE_VARIABLE, "")
    # Without this, `ps e` and /proc/PID/environ show the variables that this process was started with.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    if not text and file:
        try:
            text = Path(file).read_text()
        except (OSError, UnicodeDecodeError) as error:
            cause = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ClusterError(f"Cannot read the cluster's key in {file}: {cause}", _REMEDY) from None
    return text.strip()


def _derive(key: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(purpose, key=_digest(key), digest_size=32, person=b"ors-cluster").digest()


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
