"""Harbor tasks of this machine's programs, prepared and played."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .conftest import Service
from .parts import harbor_folder, harbor_workers, settings, task_folders
from .play import Episode, environment_of

__all__ = ["ON_HOST", "TESTS", "played", "prepared"]

TESTS = """#!/bin/bash
reward=0
grep -qx 42 /app/answer.txt && reward=1
echo $reward >/logs/verifier/reward.txt
"""
ON_HOST: Mapping[str, str] = {"environment/Dockerfile": "FROM host\nWORKDIR /app\n", "tests/test.sh": TESTS}


async def prepared(service: Service, *folders: Path, **options: Any) -> tuple[list[Any], list[str]]:
    """Prepare folders; return their records by name, and the stages that were run."""
    run: list[str] = []
    tasks = [harbor_folder.read_harbor_task(folder) for folder in folders]

    def on_stage(name: str, stage: str, result: Any) -> None:
        run.append(f"{stage} {result.outcome}")

    work = harbor_workers.prepare_tasks(service, tasks, {}, jobs=2, on_stage=on_stage, **options)
    return sorted([record async for record in work], key=lambda record: record.name), run


async def played(service: Service, folder: Path, *commands: str, **changes: Any) -> Any:
    """Play the task of a folder, and return the last result."""
    made = settings.TerminalSettings(tasks=str(folder), **changes)
    found = task_folders.FolderSource([folder], made).find(folder.name)
    async with Episode(environment_of(service, found, made)({"id": folder.name})) as episode:
        for command in commands:
            await episode.bash(command)
        return await episode.done()
