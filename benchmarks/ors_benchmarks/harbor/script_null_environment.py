"""An environment of Harbor that runs nothing, and in which every verifier has written the reward 1.

A job with it costs what Harbor itself costs: the floor of ``ors-server bench harbor``. Harbor imports this file, in its
own virtual environment.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from ors_containers.plugins.harbor import OrsEnvironment
from ors_containers.plugins.shared_runtime import import_runner

__all__ = ["NullEnvironment"]

_base: Any = import_runner("harbor.environments.base", "harbor")


class NullEnvironment(OrsEnvironment):
    """Answers every command with success, and takes and gives no file but the reward; it refuses what ours refuses."""

    @staticmethod
    def type() -> str:
        """Return the name of this kind of environment."""
        return "null"

    async def start(self, force_build: bool) -> None:
        """Do nothing."""

    async def stop(self, delete: bool) -> None:
        """Do nothing."""

    async def exec(self, command: str, *arguments: Any, **options: Any) -> Any:
        """Answer that the command has succeeded."""
        return _base.ExecResult(stdout="", stderr="", return_code=0)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Do nothing."""

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Do nothing."""

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Do nothing."""

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Write the reward where a verifier's folder is asked for."""
        if source_dir.rstrip("/").endswith("verifier"):
            await asyncio.to_thread(Path(target_dir, "reward.txt").write_text, "1\n")
