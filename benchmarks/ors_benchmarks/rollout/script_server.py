"""A script: an environment on the server of the SDK that is named, its methods timed and, if asked, delayed.

    python -P rollout_server.py ors_server|ors|openreward.environments TARGET THINK TIMES PORT REPORT

``TARGET`` is ``echo``, which is defined here once for every SDK, or, for ours, whatever ``ors-server serve`` takes.
``THINK`` is how many seconds longer each tool takes: an asynchronous one waits, any other blocks its thread. ``TIMES``
is the file that gets what the environment's own code took when the process ends, ``{method: [calls, seconds]}``;
``REPORT`` is left alone. It runs in the SDK's virtual environment, where this package is not installed, and must
therefore import nothing of it; ``-P`` keeps the modules beside it from standing in for libraries.
"""

import asyncio
import atexit
import functools
import importlib
import inspect
import json
import os
import signal
import sys
import time
from collections.abc import Callable
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

#: The methods of an environment that are timed besides its tools.
METHODS = ("setup", "teardown", "get_prompt", "get_messages")
WORDS = ("hello", "world", "reward", "standard", "open", "server", "session", "episode")


class EchoText(BaseModel):
    """Input of the echo tool."""

    text: str


class EchoEnvironment(Environment):
    """Reward 1, and the end, for echoing the task's word."""

    task_spec: Any

    @classmethod
    def list_splits(cls) -> list[Split]:
        """One split."""
        return [Split(name="train", type="train")]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        """A task a word."""
        return [{"id": f"echo-{number}", "target": word} for number, word in enumerate(WORDS)]

    def get_prompt(self) -> list[TextBlock]:
        """Names the word."""
        return [TextBlock(text=f"Call the echo tool with the text {self.task_spec['target']} to finish the task.")]

    @tool
    async def echo(self, params: EchoText) -> ToolOutput:
        """Submit a text. The reward is 1, and the episode ends, if it is the task's word."""
        hit = params.text == self.task_spec["target"]
        return ToolOutput(
            blocks=[TextBlock(text="That is the word." if hit else f"{params.text} is not the word.")],
            reward=float(hit),
            finished=hit,
        )


class Clock:
    """Keeps what the methods of environments take. Appending is atomic: synchronous tools run on several threads."""

    def __init__(self, think: float) -> None:
        self._think = think
        self._taken: dict[str, list[float]] = {}

    def watch(self, cls: type) -> None:
        """Time the tools and the methods that a class defines, toolsets included, and delay its tools."""
        for owner in (cls, *getattr(cls, "toolsets", ())):
            for name in dir(owner):
                function = inspect.getattr_static(owner, name, None)
                own = any(name in base.__dict__ for base in owner.__mro__ if base.__name__ != "Environment")
                # A toolset may belong to several environments, and a method be inherited: each is timed once.
                if not inspect.isfunction(function) or not own or hasattr(function, "watched"):
                    continue
                if getattr(function, "_env_tool", False):
                    setattr(owner, name, self._timed("tools", function, self._think))
                elif name in METHODS:
                    setattr(owner, name, self._timed(name, function, 0.0))

    def _timed(self, name: str, function: Callable[..., Any], think: float) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def waiting(*arguments: Any, **keywords: Any) -> Any:
                started = time.perf_counter()
                try:
                    if think:
                        await asyncio.sleep(think)
                    return await function(*arguments, **keywords)
                finally:
                    self._add(name, time.perf_counter() - started)

            waiting.watched = True  # pyright: ignore[reportAttributeAccessIssue]
            return waiting

        @functools.wraps(function)
        def blocking(*arguments: Any, **keywords: Any) -> Any:
            started = time.perf_counter()
            try:
                if think:
                    time.sleep(think)
                return function(*arguments, **keywords)
            finally:
                self._add(name, time.perf_counter() - started)

        blocking.watched = True  # pyright: ignore[reportAttributeAccessIssue]
        return blocking

    def _add(self, name: str, seconds: float) -> None:
        self._taken.setdefault(name, []).append(seconds)

    def write(self, path: Path) -> None:
        """Write how often each was called, and the sum of their seconds."""
        path.write_text(json.dumps({name: [len(taken), sum(taken)] for name, taken in self._taken.items()}))


def classes(target: str) -> list[type]:
    """The environments of a target."""
    if target == "echo":
        return [EchoEnvironment]
    from ors_server.hosting.targets import load_target

    return load_target(target)


def end(*_: object) -> None:
    """End in order: uvicorn raises the signal again after its shutdown, and nothing would be written."""
    sys.exit(0)


def main() -> None:
    """Serve until SIGTERM."""
    target, think, times, port = sys.argv[2], float(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5])
    clock = Clock(think)
    served = classes(target)
    for cls in served:
        clock.watch(cls)
    atexit.register(clock.write, times)
    signal.signal(signal.SIGTERM, end)
    Server(served).run(host="127.0.0.1", port=port)


if __name__ == "__main__":
    main()
