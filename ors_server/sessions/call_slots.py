"""Limits on tool calls that run at once: over all sessions of a server, and within one session."""

from __future__ import annotations

from ors_server.errors import ServerBusy

__all__ = ["CallSlots"]


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
