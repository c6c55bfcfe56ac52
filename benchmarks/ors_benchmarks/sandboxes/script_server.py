"""A script: this server with one environment, whose tool runs a command in a sandbox.

    python sandbox_server.py RUNTIME PORT REPORT

``RUNTIME`` isolates the sandboxes. ``REPORT`` is left alone; ``ServerProcess`` names a file there for every server.
"""

from __future__ import annotations

import signal
import sys
from typing import Any

from ors_containers.sandbox import Sandbox
from pydantic import BaseModel

from ors_benchmarks.server.client import TARGETS
from ors_server import Environment, Server, Settings, TextBlock, ToolOutput, tool
from ors_server.sandboxes import sandbox_service


class Command(BaseModel):
    """A command for the sandbox's shell."""

    text: str


class EchoEnvironment(Environment):
    """Has the name and the tasks that the benchmarks' client knows."""

    sandbox: Sandbox

    @classmethod
    def list_splits(cls) -> list[str]:
        """One split."""
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> list[Any]:
        """Two tasks."""
        return [{"target": target} for target in TARGETS]

    async def setup(self) -> None:
        """Open a sandbox of the machine's own programs."""
        sandboxes = await sandbox_service()
        self.sandbox = await sandboxes.open(sandboxes.runtime.host_image())

    async def teardown(self) -> None:
        """Stop it."""
        await self.sandbox.stop()

    def get_prompt(self) -> list[TextBlock]:
        """Names the target."""
        return [TextBlock(text=f"Say {self.task_spec['target']}")]

    @tool
    async def bash(self, params: Command) -> ToolOutput:
        """Run a command."""
        result = await self.sandbox.run(params.text, timeout=60)
        return ToolOutput(blocks=[TextBlock(text=result.text)], reward=float(result.exit_status), finished=False)


def end(*_: object) -> None:
    """End in order: uvicorn raises the signal again after its shutdown."""
    sys.exit(0)


def main() -> None:
    """Serve until SIGTERM."""
    signal.signal(signal.SIGTERM, end)
    settings = Settings(sandbox_runtime=sys.argv[1])
    Server([EchoEnvironment], settings=settings).run(host="127.0.0.1", port=int(sys.argv[2]))


if __name__ == "__main__":
    main()
