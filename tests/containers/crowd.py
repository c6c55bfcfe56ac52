"""A server with many live sandboxes, to be killed: prints one line when all have started, then waits.

test_leases and test_apptainer run it with a state directory, the number of sandboxes, the lifetime in seconds of a
process in each, and the class of the runtime.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from ors_containers import ApptainerRuntime, BubblewrapRuntime, Limits
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime


async def main(state: Path, count: int, seconds: str, kind: type[NamespaceRuntime]) -> None:
    runtime = kind(state)
    await runtime.start()
    sandboxes = [runtime.sandbox(runtime.host_image(), Limits(disk=4 * 2**20)) for _ in range(count)]
    await asyncio.gather(*(sandbox.start() for sandbox in sandboxes))
    # A process in each sandbox that runs detached from the shell.
    commands = (sandbox.run(f"setsid sleep {seconds} & echo up", timeout=60) for sandbox in sandboxes)
    results = await asyncio.gather(*commands)
    examination = asyncio.create_task(sandboxes[0].examine(["/bin/sleep", seconds], timeout=2000, keep_processes=True))
    print(json.dumps([result.text for result in results]), flush=True)
    await examination


if __name__ == "__main__":
    kind = ApptainerRuntime if sys.argv[4:] == ["apptainer"] else BubblewrapRuntime
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], kind))
