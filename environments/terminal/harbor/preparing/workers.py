"""Preparation of many tasks at a time, with progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from ..folder import HarborTask
from ..playing.verification import Containers
from ..record import Record, StageResult, content_digest, records_folder
from .addresses import read_addresses
from .stages import Preparation, prepare_task

__all__ = ["prepare_tasks"]


async def prepare_tasks(
    service: Containers,
    tasks: Sequence[HarborTask],
    variables: Mapping[str, str],
    *,
    jobs: int,
    flag: bool = False,
    without_solution: bool = False,
    again: bool = False,
    addresses: Path | None = None,
    on_stage: Callable[[str, str, StageResult], None] | None = None,
) -> AsyncIterator[Record]:
    """Prepare tasks, ``jobs`` of them at a time; yield the record of each when it is done.

    ``addresses`` is the file of the operator's table, None for the shipped one. ``on_stage`` gets the task's name, the
    stage and its result. Raises ``FolderProblem`` for a folder that is gone, and ``DefinitionError`` for the table.
    """
    from ors_containers.images.image_map import ImageMap

    records = records_folder(service.store.root)
    preparation = Preparation(
        service, ImageMap(service.store), variables, records, read_addresses(addresses), flag, without_solution
    )
    room = asyncio.Semaphore(jobs)

    async def one(task: HarborTask) -> Record:
        async with room:
            key = await asyncio.to_thread(content_digest, task.folder)

            def report(stage: str, result: StageResult) -> None:
                if on_stage is not None:
                    on_stage(task.name, stage, result)

            return await prepare_task(preparation, task, key, again=again, on_stage=report)

    running = [asyncio.create_task(one(task)) for task in tasks]
    try:
        for done in asyncio.as_completed(running):
            yield await done
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
