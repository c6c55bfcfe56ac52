"""A process that asks an ``Admission`` with a shared table for room, by commands on its standard input.

``start`` admits a start, ``end`` ends the oldest one, ``fail`` ends it as a failure, ``totals`` prints the sums, and
``hang`` stops the process while it holds the table's lock. The arguments are the table, the bytes of memory that are
free, those of a reservation, and a reservation's lifetime.
"""

import asyncio
import os
import signal
import sys
from collections import deque
from contextlib import AsyncExitStack
from pathlib import Path

from ors_containers import Limits, Overloaded
from ors_containers.scheduling.admission import Admission
from ors_containers.scheduling.reservations import Reservations

from tests.server.sandbox_service.fake import GIB, FakeMachine


class _Failed(Exception):
    pass


async def _run(table: Path, free: int, reserve: int, lifetime: float) -> None:
    machine = FakeMachine()
    machine.memory = round(64 * GIB * 0.05) + free
    reservations = Reservations(table, lifetime=lifetime)
    admission = Admission(machine, queue=0, reserve=reserve, reservations=reservations)
    starts = deque[AsyncExitStack]()
    print("ready", flush=True)
    for line in sys.stdin:  # blocks: nothing else runs here
        match line.strip():
            case "start":
                stack = AsyncExitStack()
                try:
                    await stack.enter_async_context(admission.starts(Limits()))
                    starts.append(stack)
                    print("admitted", flush=True)
                except Overloaded as error:
                    print(f"refused {error}", flush=True)
            case "end":
                await starts.popleft().aclose()
                print("ended", flush=True)
            case "fail":
                stack = starts.popleft()
                await stack.__aexit__(_Failed, _Failed(), None)
                print("ended", flush=True)
            case "hang":
                with reservations.exclusive():
                    print("hangs", flush=True)
                    os.kill(os.getpid(), signal.SIGSTOP)
            case _:
                totals = reservations.totals()
                print(totals.memory, totals.pids, totals.starting, totals.active, flush=True)


if __name__ == "__main__":
    asyncio.run(_run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
