"""Jobs of which some run at a time, with each result as soon as it is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import TypeVar

__all__ = ["results_of"]

T = TypeVar("T")
R = TypeVar("R")


async def results_of(items: Iterable[T], work: Callable[[T], Awaitable[R]], *, jobs: int) -> AsyncGenerator[R]:
    """Do the work of every item, ``jobs`` at a time; yield each result when it is there.

    Raises what the work of an item raises; then, and when the iterator is closed, the others are cancelled.
    """
    room = asyncio.Semaphore(jobs)

    async def one(item: T) -> R:
        async with room:
            return await work(item)

    running = [asyncio.create_task(one(item)) for item in items]
    try:
        for done in asyncio.as_completed(running):
            yield await done
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
