"""A script: the benchmark's environments on the server of the SDK that is named.

    python -P echo_server.py ors_server|ors|openreward.environments PORT REPORT

One source for every candidate, so that what differs is the server. It runs in the candidate's virtual environment,
where this package is not installed, and must therefore import nothing of it; ``-P`` keeps the modules beside it from
standing in for libraries. ``REPORT`` is the file that gets the garbage collector's pauses when the process ends.

Each environment derives from ``Environment`` itself, never from another: the existing SDKs keep a class's task cache
where its subclasses find it.
"""

import asyncio
import atexit
import gc
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

# openreward asks the network for its newest version otherwise.
os.environ["OPENREWARD_DISABLE_UPDATE_CHECK"] = "1"

if TYPE_CHECKING:
    from ors_server import Environment, JSONObject, Server, Split, TextBlock, ToolOutput, tool
else:
    sdk = importlib.import_module(sys.argv[1])
    Environment, Server, Split = sdk.Environment, sdk.Server, sdk.Split
    TextBlock, ToolOutput, tool = sdk.TextBlock, sdk.ToolOutput, sdk.tool
    JSONObject = dict[str, Any]

#: Shorter pauses are not kept; nobody notices them.
SHORTEST_PAUSE = 0.001
#: Seconds that ``SlowSetup`` takes.
SETUP_SECONDS = 1.0

TASKS: list[JSONObject] = [{"target": "hello"}, {"target": "world"}]
MANY_TASKS: list[JSONObject] = []


class Text(BaseModel):
    """Text to send back."""

    text: str


class Size(BaseModel):
    """A number of characters."""

    characters: int


class Delay(BaseModel):
    """A time to wait."""

    seconds: float


def answer(text: str, reward: float = 0.0, finished: bool = False) -> ToolOutput:
    """A tool's output of one block."""
    return ToolOutput(blocks=[TextBlock(text=text)], reward=reward, finished=finished)


class Tools:
    """What the environments have in common; no environment itself."""

    task_spec: Any

    @classmethod
    def list_splits(cls) -> list[Split]:
        """One split."""
        return [Split(name="train", type="train")]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        """Two tasks."""
        return TASKS

    def get_prompt(self) -> list[TextBlock]:
        """Names the target, so that a client can tell whether it got the right task."""
        return [TextBlock(text=f"Say {self.task_spec['target']}")]

    @tool
    async def echo(self, params: Text) -> ToolOutput:
        """Finish the episode with a reward if the text is the target."""
        hit = params.text == self.task_spec["target"]
        return answer(params.text, float(hit), hit)

    @tool
    async def noop(self, params: Text) -> ToolOutput:
        """Send the text back at once."""
        return answer(f"noop:{params.text}")

    @tool
    async def big(self, params: Size) -> ToolOutput:
        """Send much text."""
        return answer("x" * params.characters)

    @tool
    async def slow(self, params: Delay) -> ToolOutput:
        """Wait without holding a thread."""
        await asyncio.sleep(params.seconds)
        return answer("slept")

    @tool
    def block(self, params: Delay) -> ToolOutput:
        """Wait as blocking code does."""
        time.sleep(params.seconds)
        return answer("slept")


class EchoEnvironment(Tools, Environment):
    """The environment of most measurements."""


class SlowSetup(Tools, Environment):
    """Its set-up waits."""

    async def setup(self) -> None:
        """Wait without holding a thread."""
        await asyncio.sleep(SETUP_SECONDS)


class RebuiltTasks(Tools, Environment):
    """100,000 tasks built anew whenever they are asked for, as an environment that reads a file does."""

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        """The tasks, copied."""
        # Made when they are first asked for: the collector of a process that has no use for them need not walk them.
        if not MANY_TASKS:
            for number in range(100_000):
                question = f"what is the answer to question number {number}?"
                MANY_TASKS.append({"id": number, "target": f"t{number}", "question": question})
        return [dict(task) for task in MANY_TASKS]


class Pauses:
    """Times how long the garbage collector stops the process."""

    def __init__(self) -> None:
        self._started = 0.0
        self._kept: list[tuple[float, float, int]] = []

    def __call__(self, phase: str, information: dict[str, int]) -> None:
        """Called by the collector at the beginning and at the end of each collection."""
        now = time.monotonic()
        if phase == "start":
            self._started = now
        elif now - self._started >= SHORTEST_PAUSE:
            self._kept.append((self._started, now - self._started, information["generation"]))

    def write(self, path: Path) -> None:
        """Write ``[[start by the monotonic clock, seconds, generation], …]``."""
        path.write_text(json.dumps(self._kept))


def end(*_: object) -> None:
    """End in order: uvicorn raises the signal again after its shutdown, and nothing would be written."""
    sys.exit(0)


def main() -> None:
    """Serve until SIGTERM."""
    port, report = int(sys.argv[2]), Path(sys.argv[3])
    pauses = Pauses()
    gc.callbacks.append(pauses)
    atexit.register(pauses.write, report)
    signal.signal(signal.SIGTERM, end)
    Server([EchoEnvironment, SlowSetup, RebuiltTasks]).run(host="127.0.0.1", port=port)


if __name__ == "__main__":
    main()
