"""Session ids that say where their session lives: a slot of the server, and the incarnation of its worker.

A placed id is a UUID of version 8, so that clients which parse it accept it. Of its 122 free bits 20 are the slot, 22
the incarnation, 48 random and 32 a keyed hash of the others. The last 80 cannot be guessed without the key, so the id
is a secret of its client as any session id. A worker that is started again in its slot has another incarnation: the ids
of the worker before it are recognised, and their sessions are known to be lost.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import uuid
from typing import NamedTuple

__all__ = ["INCARNATIONS", "KEY_VARIABLE", "SLOTS", "Place", "PlacedIds"]

#: Variable with the key of a server's ids, in hexadecimal digits, of the processes that a supervisor starts.
KEY_VARIABLE = "ORS_GATEWAY_KEY"
_SLOT, _INCARNATION, _RANDOM, _MAC = 20, 22, 48, 32
#: Number of different slots and incarnations.
SLOTS = 1 << _SLOT
INCARNATIONS = 1 << _INCARNATION
_TEXT = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


class Place(NamedTuple):
    """The place of a session."""

    slot: int
    incarnation: int


class PlacedIds:
    """Make and verify the ids of one server or cluster; ``key`` is a secret of at most 64 bytes."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def make(self, place: Place) -> str:
        """Return a new id."""
        payload = (place.slot << _INCARNATION | place.incarnation) << _RANDOM | secrets.randbits(_RANDOM)
        bits = payload << _MAC | self._mac(payload)
        # A UUID has its version after 48 bits and its variant after 60 of the free bits.
        high, middle, low = bits >> 74, bits >> 62 & 0xFFF, bits & (1 << 62) - 1
        return str(uuid.UUID(int=high << 80 | 0x8 << 76 | middle << 64 | 0b10 << 62 | low))

    def read(self, sid: str) -> Place | None:
        """Return the place of an id that was made with the same key; None for any other id."""
        if not _TEXT.fullmatch(sid):
            return None
        number = int(sid.replace("-", ""), 16)
        bits = (number >> 80) << 74 | (number >> 64 & 0xFFF) << 62 | number & (1 << 62) - 1
        payload = bits >> _MAC
        if bits & (1 << _MAC) - 1 != self._mac(payload):
            return None
        place = payload >> _RANDOM
        return Place(place >> _INCARNATION, place & INCARNATIONS - 1)

    def _mac(self, payload: int) -> int:
        data = payload.to_bytes((_SLOT + _INCARNATION + _RANDOM + 7) // 8, "big")
        digest = hashlib.blake2s(data, key=self._key[:32], digest_size=_MAC // 8).digest()
        return int.from_bytes(digest, "big")
