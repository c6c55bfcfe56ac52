"""A script: one client of an ORS server under load, which measures itself.

    python -P script_driver.py CANDIDATE URL SESSIONS SECONDS STARTED

Opens so many sessions, calls a tool in each of them over and over for so many seconds, and prints its figures as JSON.
With 0 sessions it makes one call and prints how long that took since STARTED (by the monotonic clock), imports and all.
It runs in the candidate's own virtual environment, where this package is not installed, and does not import it.

CPU time is this process's own, of all its threads: what the client takes from the trainer it runs in.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
import asyncio
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

os.environ["OPENREWARD_DISABLE_UPDATE_CHECK"] = "1"

ENVIRONMENT = "loadenvironment"
#: Seconds of calls before the measurement, at least: it begins when every session has had an answer.
WARM_UP = 0.5
#: Seconds between two looks at the calls.
TICK = 0.05
#: Sessions opened at a time.
AT_ONCE = 64


class Tally:
    """Correct answers while it counts, and failures at any time."""

    def __init__(self) -> None:
        self.counting = False
        self.stopped = False
        self.calls = 0
        #: Sessions that have had their first answer.
        self.warm = 0
        self.failures: Counter[str] = Counter()

    def answered(self, sent: str, got: str) -> None:
        """Count an answer."""
        if got != "noop:" + sent:
            self.failures["a wrong answer"] += 1
        elif self.counting:
            self.calls += 1


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


# --- asynchronous clients ------------------------------------------------------------------------


def ours(url: str, stack: AsyncExitStack) -> tuple[Any, Any]:
    """``AsyncClient`` with its defaults."""
    from ors_clients.client.async_client import AsyncClient

    client = AsyncClient(url)
    stack.push_async_callback(client.close)
    return client.environment(ENVIRONMENT), _our_call


def over_httpx(url: str, stack: AsyncExitStack) -> tuple[Any, Any]:
    """``AsyncClient`` over httpx."""
    import httpx
    from ors_clients.client.async_client import AsyncClient
    from ors_clients.transport.bounded_httpx import BoundedAsyncClient
    from ors_clients.transport.httpx_transport import HttpxTransport

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    client = AsyncClient(url, transport=HttpxTransport(url, lambda: BoundedAsyncClient(limits=limits)))
    stack.push_async_callback(client.close)
    return client.environment(ENVIRONMENT), _our_call


async def _our_call(session: Any, text: str) -> str:
    return (await session.call("noop", {"text": text})).text


def openreward(url: str, stack: AsyncExitStack) -> tuple[Any, Any]:
    """``AsyncOpenReward`` with its defaults."""
    from openreward import AsyncOpenReward

    async def call(session: Any, text: str) -> str:
        return (await session.call_tool("noop", {"text": text})).blocks[0].text

    return AsyncOpenReward(api_key="").environments.get(ENVIRONMENT, base_url=url), call


async def run(make: Callable[[str, AsyncExitStack], tuple[Any, Any]], url: str, count: int, seconds: float) -> Any:
    """Figures of an asynchronous client."""
    tally = Tally()
    async with AsyncExitStack() as stack:
        environment, call = make(url, stack)
        if not count:
            async with environment.session(split="train", index=0) as session:
                tally.answered("first", await call(session, "first"))
                return first_call(tally)
        # The first session allocates what all share; it is not counted as memory of a session.
        async with environment.session(split="train", index=0) as session:
            await call(session, "warm")
        before, turn = resident(), asyncio.Semaphore(AT_ONCE)

        async def open_one(number: int) -> Any:
            async with turn:
                return await stack.enter_async_context(environment.session(split="train", index=number % 2))

        sessions = await asyncio.gather(*map(open_one, range(count)))

        async def worker(session: Any, name: int) -> None:
            number = 0
            while not tally.stopped:
                number += 1
                text = f"{name}-{number}"
                try:
                    tally.answered(text, await call(session, text))
                except Exception as error:  # noqa: BLE001 - whatever a client raises is a failure to report
                    tally.failures[type(error).__name__] += 1
                tally.warm += number == 1

        workers = [asyncio.create_task(worker(session, name)) for name, session in enumerate(sessions)]
        await asyncio.sleep(WARM_UP)
        while tally.warm < count:  # noqa: ASYNC110 - an event for each answer would be measured too
            await asyncio.sleep(TICK)
        window = Window(tally)
        await asyncio.sleep(seconds)
        while tally.calls < count and not tally.failures:  # noqa: ASYNC110 - a call of each, on average
            await asyncio.sleep(TICK)
        figures = window.close(count, before)
        await asyncio.gather(*workers)
        return figures


# --- synchronous clients -------------------------------------------------------------------------


def run_sync(candidate: str, url: str, count: int, seconds: float) -> Any:
    """Figures of a synchronous client, with a thread a session."""
    tally = Tally()
    with ExitStack() as stack:
        if candidate == "ours-sync":
            from ors_clients.client.sync_client import Client

            environment: Any = stack.enter_context(Client(url)).environment(ENVIRONMENT)

            def call(session: Any, text: str) -> str:
                return session.call("noop", {"text": text}).text
        else:
            from openreward import OpenReward

            environment = OpenReward(api_key="").environments.get(ENVIRONMENT, base_url=url)

            def call(session: Any, text: str) -> str:
                return session.call_tool("noop", {"text": text}).blocks[0].text

        with environment.session(split="train", index=0) as session:
            tally.answered("first", call(session, "first"))
            if not count:
                return first_call(tally)
        before = resident()
        sessions = [stack.enter_context(environment.session(split="train", index=n % 2)) for n in range(count)]

        def worker(session: Any, name: int) -> None:
            number = 0
            while not tally.stopped:
                number += 1
                text = f"{name}-{number}"
                try:
                    tally.answered(text, call(session, text))
                except Exception as error:  # noqa: BLE001 - as above
                    tally.failures[type(error).__name__] += 1
                tally.warm += number == 1

        threads = [threading.Thread(target=worker, args=pair) for pair in zip(sessions, range(count), strict=True)]
        for thread in threads:
            thread.start()
        time.sleep(WARM_UP)
        while tally.warm < count:
            time.sleep(TICK)
        window = Window(tally)
        time.sleep(seconds)
        while tally.calls < count and not tally.failures:
            time.sleep(TICK)
        figures = window.close(count, before)
        for thread in threads:
            thread.join()
        return figures


# --- figures -------------------------------------------------------------------------------------


class Window:
    """A stretch of time in which calls count, from construction to ``close``."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        tally.counting = True

    def close(self, sessions: int, before: int) -> Any:
        """Stop counting and return the figures; calls under way may end."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        tally = self._tally
        tally.counting, tally.stopped = False, True
        calls = max(1, tally.calls)
        return {
            "failures": tally.failures,
            "figures": {
                f"cpu_{sessions}": cpu / calls * 1e6,
                f"rate_{sessions}": tally.calls / wall,
                f"memory_{sessions}": (resident() - before) / 1024 / sessions,
            },
        }


def first_call(tally: Tally) -> Any:
    """Figures of the first call, from the process's start."""
    wall = time.monotonic() - float(sys.argv[5])
    figures = {"start_wall": wall * 1e3, "start_cpu": time.process_time() * 1e3, "start_memory": resident() / 2**20}
    return {"failures": tally.failures, "figures": figures}


ASYNCHRONOUS = {"ours": ours, "ours-httpx": over_httpx, "openreward": openreward}


def main() -> None:
    """Measure, and print the figures."""
    candidate, url, count, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    if candidate in ASYNCHRONOUS:
        measured = asyncio.run(run(ASYNCHRONOUS[candidate], url, count, seconds))
    else:
        measured = run_sync(candidate, url, count, seconds)
    print(json.dumps(measured), flush=True)  # noqa: T201 - its only answer


if __name__ == "__main__":
    main()
