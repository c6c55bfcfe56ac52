"""An environment whose tool runs a command in a sandbox of the machine's own programs.

``script_server`` serves it as a target.
"""

from __future__ import annotations

from typing import Any

from ors_containers.sandbox import Sandbox
from pydantic import BaseModel

from ors_server import Environment, TextBlock, ToolOutput, tool
from ors_server.sandboxes import sandbox_service


class Command(BaseModel):
    """A command for the sandbox's shell."""

    text: str


class SandboxEnvironment(Environment):
    """One task whose prompt names its target."""

    sandbox: Sandbox

    @classmethod
    def list_splits(cls) -> list[str]:
        """One split."""
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> list[Any]:
        """One task, with the target that the benchmarks' client expects."""
        return [{"target": "hello"}]

    async def setup(self) -> None:
        """Open a sandbox."""
        sandboxes = await sandbox_service()
        self.sandbox = await sandboxes.open(sandboxes.runtime.host_image())

    async def teardown(self) -> None:
        """Stop it."""
        await self.sandbox.stop()

    def get_prompt(self) -> list[TextBlock]:
        """Name the target."""
        return [TextBlock(text=f"Say {self.task_spec['target']}")]

    @tool
    async def bash(self, params: Command) -> ToolOutput:
        """Run a command."""
        result = await self.sandbox.run(params.text, timeout=60)
        return ToolOutput(blocks=[TextBlock(text=result.text)], reward=float(result.exit_status), finished=False)
