"""The slots that have been owners of ids which clients choose, over joins and leaves.

An id belongs to the slot of the highest weight (rendezvous hashing) among those that are in the view. A slot that joins
takes some ids from slots before it, and a slot that leaves gives its ids to others; sessions do not move. So a session
may live with any slot that was the owner of its id at some time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Container, Mapping

__all__ = ["Views", "weight"]


def weight(slot: int, name: str) -> bytes:
    """Return the weight of a slot for a name."""
    return hashlib.blake2b(f"{slot} {name}".encode(errors="surrogateescape"), digest_size=8).digest()


class Views:
    """The spans of time in which each slot was in the view; times are those of one monotonic clock."""

    def __init__(self, remembered: float) -> None:
        #: Seconds for which a slot that left is remembered.
        self._remembered = remembered
        #: Begin and end, by slot; the last span of a slot in the view has no end.
        self._spans: dict[int, list[tuple[float, float]]] = {}

    def update(self, joined: Mapping[int, float], now: float, leaving: Mapping[int, float] | None = None) -> None:
        """Take the slots that are in the view now, each with the time since when.

        Slots that are ``leaving`` were in the view since such a time, perhaps before this gateway was started.
        """
        for slot, since in (leaving or {}).items():
            if slot not in self._spans and since < now:
                self._spans[slot] = [(since, now)]
        for slot, spans in list(self._spans.items()):
            begin, end = spans[-1]
            if end == math.inf and slot not in joined:
                spans[-1] = (begin, now)
            while spans and spans[0][1] < now - self._remembered:
                spans.pop(0)
            if not spans:
                del self._spans[slot]
        for slot, since in joined.items():
            spans = self._spans.setdefault(slot, [])
            if not spans:
                spans.append((since, math.inf))
            elif spans[-1][1] != math.inf:
                spans.append((max(since, spans[-1][1]), math.inf))

    def owners(self, name: str, among: Container[int] | None = None) -> list[int]:
        """Return the owner of a name now, if there is one, and after it those of earlier times."""
        weighed = sorted(
            (slot for slot in self._spans if among is None or slot in among),
            key=lambda slot: weight(slot, name),
            reverse=True,
        )
        uncovered = [(-math.inf, math.inf)]
        owners: list[int] = []
        current = None
        for slot in weighed:
            covered = False
            for begin, end in self._spans[slot]:
                rest: list[tuple[float, float]] = []
                for start, stop in uncovered:
                    if begin < stop and start < end:
                        covered = True
                        rest += [(start, begin)] if start < begin else []
                        rest += [(end, stop)] if end < stop else []
                    else:
                        rest.append((start, stop))
                uncovered = rest
            if current is None and self._spans[slot][-1][1] == math.inf:
                current = slot
            elif covered:
                owners.append(slot)
        return owners if current is None else [current, *owners]
