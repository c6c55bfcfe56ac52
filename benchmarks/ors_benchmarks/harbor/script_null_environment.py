"""An environment of Harbor that runs nothing, and in which every verifier has written the reward 1.

A job with it costs what Harbor itself costs: the floor of ``ors-server bench harbor``. Harbor imports this file, in its
own virtual environment.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from ors_containers.plugins.shared_runtime import import_runner

__all__ = ["NullEnvironment"]

_base: Any = import_runner("harbor.environments.base", "harbor")
_capabilities: Any = import_runner("harbor.environments.capabilities", "harbor")


class NullEnvironment(_base.BaseEnvironment):
    """Answers every command with success, and takes and gives no file but the reward."""

    @staticmethod
    def type() -> str:
        """Return the name of this kind of environment."""
        return "null"

    @property
    def capabilities(self) -> Any:
        """Nothing is refused: nothing is run."""
        return _capabilities.EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> Any:
        """Nothing is refused: nothing is limited."""
        return _capabilities.EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    def _validate_definition(self) -> None:
        pass

    async def start(self, force_build: bool) -> None:
        """Do nothing."""

    async def stop(self, delete: bool) -> None:
        """Do nothing."""

    async def exec(self, command: str, **options: Any) -> Any:
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
