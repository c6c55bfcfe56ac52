"""Limits on tool calls that run at once: over all sessions of a server, and within one session."""

from __future__ import annotations

from typing import Protocol

from ors_server.errors import ServerBusy
from ors_server.keys.errors import KeyBusy
from ors_server.keys.key import Key
from ors_server.keys.usage import Kind, Usage

__all__ = ["CallSlots", "LimitedSlots", "Slots"]


class Slots(Protocol):
    """Slots of running calls, as a ledger takes and frees them."""

    def acquire(self, running_in_session: int) -> None:
        """Take a slot for a session in which so many calls run already. Raises ``ServerBusy``."""
        ...

    def release(self) -> None:
        """Free the slot of a call whose code has ended."""
        ...


class CallSlots:
    """Slots of running calls. Used on the event loop only."""

    def __init__(self, *, total: int, per_session: int) -> None:
        self._total = total
        self._per_session = per_session
        #: Calls of all sessions whose code runs.
        self.taken = 0

    def acquire(self, running_in_session: int) -> None:
        """Take a slot for a session in which so many calls run already. Raises ``ServerBusy``."""
        if running_in_session >= self._per_session:
            raise ServerBusy("calls running at once in one session", self._per_session, "ORS_MAX_SESSION_CALLS")
        if self.taken >= self._total:
            raise ServerBusy("calls running at once", self._total, "ORS_MAX_CALLS")
        self.taken += 1

    def release(self) -> None:
        """Free the slot of a call whose code has ended."""
        self.taken -= 1


class LimitedSlots:
    """The slots of a key whose calls have a limit of their own."""

    def __init__(self, slots: CallSlots, usage: Usage, key: Key) -> None:
        self._slots = slots
        self._usage = usage
        self._key = key

    def acquire(self, running_in_session: int) -> None:
        """Take a slot for a session in which so many calls run already. Raises ``ServerBusy`` and ``KeyBusy``."""
        self._slots.acquire(running_in_session)
        try:
            self._usage.begin(self._key, Kind.CALLS)
        except KeyBusy:
            self._slots.release()
            raise

    def release(self) -> None:
        """Free the slot of a call whose code has ended."""
        self._slots.release()
        self._usage.end(self._key, Kind.CALLS)
