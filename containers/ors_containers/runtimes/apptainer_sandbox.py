"""One sandbox of the Apptainer runtime: a sandbox like bubblewrap's whose process 1 Apptainer has started.

The launcher prepares the root and runs ``apptainer exec`` in it (``apptainer_launch``); from then on there is a process
1 with namespaces of its own, which is all that shells, files, examinations and the end of a sandbox need.

Invariant: no program of the image runs before the container has been settled.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from ors_containers.errors import StartFailed
from ors_containers.runtimes.namespace_sandbox import BubblewrapSandbox

__all__ = ["ApptainerSandbox"]

#: Where Apptainer finds the programs it runs itself.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ApptainerSandbox(BubblewrapSandbox):
    """A sandbox of ``ApptainerRuntime``."""

    async def _start_holder(self) -> tuple[int, int]:
        await self._launch(
            "apptainer",
            b"\n",  # the holder's, the first thing that runs in the container
            groups=[],  # Apptainer's own threads and memory are not the agent's: only what enters later joins
            program=self._shared.program,
            path=_PATH,
            one_id=self._mapping.one_id,
            user=self.image.user,
            group=self.image.group,
        )
        holder, master = await asyncio.to_thread(_find_holder, self._monitor_process)
        descriptor = os.pidfd_open(holder)
        try:
            targets = [target for _, target in self.image.binds]
            await self._client.request(
                "settle", (descriptor,), holder=holder, one_id=self._mapping.one_id, targets=targets
            )
        finally:
            os.close(descriptor)
        return holder, master


def _find_holder(monitor: int) -> tuple[int, int]:
    """Process 1 of the container below ``monitor``, and Apptainer's master, whose child it is."""
    for master in _children(monitor):
        for process in _children(master):
            if _is_first(process):
                return process, master
    raise StartFailed("Apptainer has started no container with process ids of its own")


def _children(process: int) -> list[int]:
    """Those of each thread: the one that started a child is its parent."""
    return [
        int(word)
        for thread in Path(f"/proc/{process}/task").iterdir()
        for word in (thread / "children").read_text().split()
    ]


def _is_first(process: int) -> bool:
    """Whether it is process 1 where it lives, two pid namespaces below the server's."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            numbers = line.split()[1:]
            return len(numbers) > 2 and numbers[-1] == "1"
    return False
