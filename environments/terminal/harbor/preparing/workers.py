"""Preparation of many tasks at a time, with progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path

from ..folder import HarborTask
from ..jobs import results_of
from ..playing.verification import Containers
from ..record import Record, StageResult, content_digest, records_folder
from .addresses import read_addresses
from .stages import Preparation, prepare_task

__all__ = ["prepare_tasks"]


def prepare_tasks(
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
) -> AsyncGenerator[Record]:
    """Prepare tasks, ``jobs`` of them at a time; yield the record of each when it is done.

    ``addresses`` is the file of the operator's table, None for the shipped one. ``on_stage`` gets the task's name, the
    stage and its result. Raises ``DefinitionError`` for the table, and later ``FolderProblem`` for a folder that is
    gone.
    """
    from ors_containers.images.image_map import ImageMap

    records = records_folder(service.store.root)
    preparation = Preparation(
        service, ImageMap(service.store), variables, records, read_addresses(addresses), flag, without_solution
    )

    async def prepare(task: HarborTask) -> Record:
        key = await asyncio.to_thread(content_digest, task.folder)

        def report(stage: str, result: StageResult) -> None:
            if on_stage is not None:
                on_stage(task.name, stage, result)

        return await prepare_task(preparation, task, key, again=again, on_stage=report)

    return results_of(tasks, prepare, jobs=jobs)
