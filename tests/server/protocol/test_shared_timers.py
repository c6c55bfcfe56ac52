"""Timers that many waits share."""

import asyncio
import time

from ors_server.sessions.shared_timers import SharedTimers, shared_timers


async def test_waits_end_at_most_a_sixteenth_early() -> None:
    timers = SharedTimers()
    loop = asyncio.get_running_loop()
    ended: list[float] = []

    async def wait(seconds: float) -> None:
        waiter: asyncio.Future[None] = loop.create_future()
        begun = time.monotonic()
        timers.add(waiter, seconds)
        await waiter
        ended.append((time.monotonic() - begun) / seconds)

    await asyncio.gather(*(wait(0.32) for _ in range(100)), wait(0.16), wait(0.64))
    assert len(ended) == 102
    assert min(ended) > 15 / 16 - 0.01


async def test_waits_of_the_same_length_share_their_timers() -> None:
    timers = SharedTimers()
    loop = asyncio.get_running_loop()
    waiters: list[asyncio.Future[None]] = [loop.create_future() for _ in range(1000)]
    due = {timers.add(waiter, 3600) for waiter in waiters}
    assert len(due) <= 2
    assert all(3600 * 15 / 16 <= at - loop.time() + 1 <= 3601 for at in due)


async def test_a_waiter_that_was_removed_stays_as_it_is() -> None:
    timers = shared_timers()
    assert shared_timers() is timers
    loop = asyncio.get_running_loop()
    removed: asyncio.Future[None] = loop.create_future()
    other: asyncio.Future[None] = loop.create_future()
    due = timers.add(removed, 0.05)
    timers.add(other, 0.05)
    timers.remove(removed, due)
    timers.remove(removed, due)
    await other
    assert not removed.done()
    at_once: asyncio.Future[None] = loop.create_future()
    timers.add(at_once, 0)
    await at_once
