"""A script: the benchmarks' environments, or those of a target, on the server of the SDK that is named.

    python -P script_server.py SDK [OPTIONS] PORT REPORT

``SDK`` is ors_server, ors or openreward.environments. The environments are written once for every SDK, so that what
differs is the server. The script runs in the SDK's virtual environment, where this package is not installed, and must
not import it; ``-P`` keeps the modules beside it from hiding libraries. ``REPORT`` is the file that gets the
garbage collector's pauses when the process ends.

Each environment derives from ``Environment`` itself, never from another: the existing SDKs keep a class's task cache
where its subclasses find it.
"""

import argparse
import asyncio
import atexit
import functools
import gc
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

#: Shorter pauses of the collector are not reported.
SHORTEST_PAUSE = 0.0001
#: Seconds that the set-up of ``SlowSetup`` takes.
SETUP_SECONDS = 1.0
#: Methods of an environment that are timed besides its tools.
METHODS = ("setup", "teardown", "get_prompt", "get_messages")

WORDS = ("hello", "world", "reward", "standard", "open", "server", "session", "episode")
TASKS: list[JSONObject] = [{"id": f"echo-{number}", "target": word} for number, word in enumerate(WORDS)]
MANY_TASKS: list[JSONObject] = []


class EchoText(BaseModel):
    """Input of the echo tool."""

    text: str


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
    """Return a tool's output of one block."""
    return ToolOutput(blocks=[TextBlock(text=text)], reward=reward, finished=finished)


class Echo:
    """Reward 1, and the end, for echoing the task's word. Not an environment itself."""

    task_spec: Any

    @classmethod
    def list_splits(cls) -> list[Split]:
        """One split."""
        return [Split(name="train", type="train")]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        """Return a task a word."""
        return TASKS

    def get_prompt(self) -> list[TextBlock]:
        """Name the word, so that a client can check whether it got the right task."""
        return [TextBlock(text=f"Call the echo tool with the text {self.task_spec['target']} to finish the task.")]

    @tool
    async def echo(self, params: EchoText) -> ToolOutput:
        """Submit a text. The reward is 1, and the episode ends, if it is the task's word."""
        hit = params.text == self.task_spec["target"]
        return answer("That is the word." if hit else f"{params.text} is not the word.", float(hit), hit)


class Tools(Echo):
    """Tools that take time, threads or memory."""

    @tool
    async def noop(self, params: Text) -> ToolOutput:
        """Send the text back at once."""
        return answer(f"noop:{params.text}")

    @tool
    async def big(self, params: Size) -> ToolOutput:
        """Send a long text."""
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


class EchoEnvironment(Echo, Environment):
    """The environment of rollouts: a model sees one tool."""


class LoadEnvironment(Tools, Environment):
    """The environment of most measurements."""


class SlowSetup(Tools, Environment):
    """An environment whose set-up waits."""

    async def setup(self) -> None:
        """Wait without holding a thread."""
        await asyncio.sleep(SETUP_SECONDS)


class RebuiltTasks(Tools, Environment):
    """100,000 tasks rebuilt at each listing, as by an environment that reads a file."""

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        """Return the tasks, copied."""
        # Made at the first call: in a process that never calls it the collector need not walk them.
        if not MANY_TASKS:
            for number in range(100_000):
                question = f"what is the answer to question number {number}?"
                MANY_TASKS.append({"id": number, "target": f"t{number}", "question": question})
        return [dict(task) for task in MANY_TASKS]


class Pauses:
    """Time how long the garbage collector stops the process."""

    def __init__(self) -> None:
        self._started = 0.0
        self._kept: list[tuple[float, float, int]] = []

    def __call__(self, phase: str, information: dict[str, int]) -> None:
        """Take the beginning or the end of a collection; called by the collector."""
        now = time.monotonic()
        if phase == "start":
            self._started = now
        elif now - self._started >= SHORTEST_PAUSE:
            self._kept.append((self._started, now - self._started, information["generation"]))

    def write(self, path: Path) -> None:
        """Write ``[[start by the monotonic clock, seconds, generation], …]``."""
        path.write_text(json.dumps(self._kept))


class Clock:
    """Time the methods of environments. Appending is atomic: synchronous tools run on several threads."""

    def __init__(self, think: float) -> None:
        self._think = think
        self._taken: dict[str, list[tuple[float, float]]] = {}

    def watch(self, cls: type) -> None:
        """Time the tools and the methods that a class defines, toolsets included, and delay its tools."""
        for owner in (cls, *getattr(cls, "toolsets", ())):
            for name in dir(owner):
                function = inspect.getattr_static(owner, name, None)
                own = any(name in base.__dict__ for base in owner.__mro__ if base.__name__ != "Environment")
                # Several environments may share a toolset or inherit a method: each is timed once.
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
                stretches = Stretches(function(*arguments, **keywords))
                try:
                    if think:
                        await asyncio.sleep(think)
                    return await stretches
                finally:
                    stretches.coroutine.close()
                    self._add(name, time.perf_counter() - started, stretches.cpu)

            waiting.watched = True  # pyright: ignore[reportAttributeAccessIssue]
            return waiting

        @functools.wraps(function)
        def blocking(*arguments: Any, **keywords: Any) -> Any:
            started, used = time.perf_counter(), time.thread_time()
            try:
                if think:
                    time.sleep(think)
                return function(*arguments, **keywords)
            finally:
                self._add(name, time.perf_counter() - started, time.thread_time() - used)

        blocking.watched = True  # pyright: ignore[reportAttributeAccessIssue]
        return blocking

    def _add(self, name: str, seconds: float, cpu: float) -> None:
        self._taken.setdefault(name, []).append((seconds, cpu))

    def write(self, path: Path) -> None:
        """Write calls, seconds and processor time of each method: ``{method: [calls, seconds, seconds]}``."""
        path.write_text(
            json.dumps({name: [len(taken), *map(sum, zip(*taken, strict=True))] for name, taken in self._taken.items()})
        )


class Stretches:
    """Await a coroutine, adding up the processor time of the stretches in which it has the event loop."""

    def __init__(self, coroutine: Any) -> None:
        self.coroutine = coroutine
        self.cpu = 0.0

    def __await__(self) -> Any:
        """As the coroutine's."""
        go_on = functools.partial(self.coroutine.send, None)
        while True:
            begun = time.thread_time()
            try:
                awaited = go_on()
            except StopIteration as end:
                return end.value
            finally:
                self.cpu += time.thread_time() - begun
            try:
                yield awaited
            except BaseException as error:  # noqa: BLE001 - a cancellation or a failure: the coroutine's own
                go_on = functools.partial(self.coroutine.throw, error)
            else:
                go_on = functools.partial(self.coroutine.send, None)


def classes(target: str) -> list[type]:
    """Return the environments of a target."""
    if target in ("load", "echo"):
        return [EchoEnvironment] if target == "echo" else [LoadEnvironment, SlowSetup, RebuiltTasks]
    from ors_server.hosting.loading.targets import load_target

    return load_target(target)


def options_of_ours(settings: dict[str, Any]) -> dict[str, Any]:
    """Arguments of our ``Server``; none for the other SDKs."""
    if not settings:
        return {}
    from ors_server import Settings

    return {"settings": Settings(**settings)}


def end(*_: object) -> None:
    """End in order: uvicorn raises the signal again after its shutdown, and nothing would be written."""
    sys.exit(0)


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sdk")
    parser.add_argument("--target", default="load", help="load, echo or, for ours, a target of `ors-server serve`")
    parser.add_argument("--times", type=Path, help="file for the time spent in the environments' methods")
    parser.add_argument("--think", type=float, default=0.0, help="seconds that each tool takes longer, with --times")
    parser.add_argument("--settings", type=json.loads, default={}, help="settings of ours, as a JSON object")
    parser.add_argument("port", type=int)
    parser.add_argument("report", type=Path)
    arguments = parser.parse_args()
    pauses = Pauses()
    gc.callbacks.append(pauses)
    atexit.register(pauses.write, arguments.report)
    served = classes(arguments.target)
    if arguments.times is not None:
        clock = Clock(arguments.think)
        for cls in served:
            clock.watch(cls)
        atexit.register(clock.write, arguments.times)
    signal.signal(signal.SIGTERM, end)
    Server(served, **options_of_ours(arguments.settings)).run(host="127.0.0.1", port=arguments.port)


if __name__ == "__main__":
    main()
