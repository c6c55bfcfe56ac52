"""A server with many live sandboxes, to be killed: prints one line when all are up, then waits. Run by test_leases."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from ors_containers import BubblewrapRuntime, Limits


async def main(state: Path, count: int) -> None:
    runtime = BubblewrapRuntime(state)
    await runtime.start()
    sandboxes = [runtime.sandbox(runtime.host_image(), Limits(disk=4 * 2**20)) for _ in range(count)]
    await asyncio.gather(*(sandbox.start() for sandbox in sandboxes))
    # Something that goes on by itself in each, out of the shell's reach.
    commands = (sandbox.run("setsid sleep 1000 & echo up", timeout=60) for sandbox in sandboxes)
    results = await asyncio.gather(*commands)
    print(json.dumps([result.text for result in results]), flush=True)
    await asyncio.sleep(1000)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
