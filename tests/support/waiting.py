"""Waits for conditions, with the time limit of tests."""

import asyncio
import time
from collections.abc import Callable

__all__ = ["PATIENCE", "until"]

#: Seconds after which any wait in a test counts as hung; `scripts/check-timings` refuses less than 20.
PATIENCE = 60.0


async def until(condition: Callable[[], bool], what: str = "", *, within: float = PATIENCE) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, what or "waited too long"
        await asyncio.sleep(0.005)
