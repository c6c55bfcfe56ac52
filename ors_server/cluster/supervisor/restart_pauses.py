"""Pauses before an ended process is started again, each longer than the last, and a limit on their number."""

from __future__ import annotations

import time
from collections import deque

__all__ = ["RestartBudget"]

#: Restarts within so many seconds that are granted.
RESTARTS, WINDOW = 5, 300.0
#: Seconds of the first and of the longest pause.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0


class RestartBudget:
    """The restarts of one slot."""

    def __init__(self) -> None:
        self._restarts = deque[float]()

    def pause(self) -> float | None:
        """Count a restart; return the seconds to wait before it, or None where there were too many."""
        now = time.monotonic()
        while self._restarts and self._restarts[0] < now - WINDOW:
            self._restarts.popleft()
        if len(self._restarts) >= RESTARTS:
            return None
        self._restarts.append(now)
        return min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (len(self._restarts) - 1))
