"""Judging of a container: its processes are ended, and the verifier runs over a copy of what it has written.

Invariant: what it has written exists only as long as it is judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from ors_containers.container import Container, FrozenFiles
from ors_containers.layers.leaving_out import LeftOut

from ..folder import HarborTask
from ..record import Record
from .shell_state import remove_shell_state
from .verification import Containers, Verification, run_verifier

__all__ = ["OnFrozen", "frozen", "judge_container"]

#: Gets the files that an ended container has written, with all that its verifier does not see.
OnFrozen = Callable[[FrozenFiles], Awaitable[None]]


@asynccontextmanager
async def frozen(
    service: Containers, container: Container, left_out: LeftOut, on_frozen: OnFrozen | None = None
) -> AsyncGenerator[Path]:
    """End a container; within the block there is a layer of what it has written, without what is left out.

    ``on_frozen`` gets all of it before that. Raises ``RuntimeUnavailable`` where a container's files cannot be kept,
    ``StoreFailed`` and ``OSError``.
    """
    async with service.store.layers.folder() as folder, await container.freeze(folder) as files:
        await asyncio.to_thread(remove_shell_state, files.layer)
        if on_frozen is not None:
            await on_frozen(files)
        await service.store.layers.owners.leave_out(files.layer, left_out, container.image.layers)
        yield files.layer


async def judge_container(
    service: Containers, task: HarborTask, record: Record, variables: Mapping[str, str], container: Container
) -> Verification:
    """End a container and run the verifier over its files. Raises what ``frozen`` and ``run_verifier`` raise."""
    async with frozen(service, container, record.left_out) as changes:
        return await run_verifier(service, task, record, variables, changes)
