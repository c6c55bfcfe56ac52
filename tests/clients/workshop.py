"""One environment in three versions: for our server, for `openreward`'s and for `ors-sdk`'s, each on its own server.

    python -m tests.clients.workshop own|openreward|ors-sdk

Prints the server's address. The environment records its events in the file that a variable names.
"""

# Annotations must stay objects: both SDKs look at those of tools, and these refer to a local name.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUntypedFunctionDecorator=false, reportUntypedBaseClass=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportIncompatibleMethodOverride=false, reportInvalidTypeForm=false
import asyncio
import contextlib
import importlib
import os
import sys
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tests.support.servers import Running, launched, serve_sdk

#: Variable with the file for the environment's events.
JOURNAL = "WORKSHOP_JOURNAL"
MODULES = {"own": "ors_server", "openreward": "openreward.environments", "ors-sdk": "ors"}
#: A transparent pixel.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
#: Full of white space where a result is split.
LINES = "".join(f"        line {number} \u3000\n" for number in range(4000))


@dataclass(frozen=True)
class Site:
    """One of the three servers."""

    kind: str
    running: Running
    journal: Path

    @property
    def url(self) -> str:
        return self.running.url

    def noted(self, event: str) -> Counter[str]:
        """Return how often an event was recorded, by its subject."""
        pairs = (line.split(" ", 1) for line in self.journal.read_text().split("\n")[:-1])
        return Counter(subject for name, subject in pairs if name == event)

    async def until(self, event: str, subject: str) -> None:
        """Wait until an event has been recorded."""
        async with asyncio.timeout(60):
            while not self.noted(event)[subject]:  # noqa: ASYNC110 - noted by another process
                await asyncio.sleep(0.01)


@contextlib.contextmanager
def sites(folder: Path) -> Generator[dict[str, Site]]:
    """Start all three at the same time."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor() as threads:

        def start(kind: str) -> Site:
            journal = folder / f"{kind}.journal"
            journal.touch()
            variables = {JOURNAL: str(journal), "ORS_STREAM_AFTER": "0.02", "OPENREWARD_DISABLE_UPDATE_CHECK": "1"}
            running = stack.enter_context(launched("clients.workshop", folder / kind, kind, variables=variables))
            return Site(kind, running, journal)

        yield dict(zip(MODULES, threads.map(start, MODULES), strict=True))


def note(event: str, subject: object) -> None:
    """Write one line. One `write` of a short line to a file opened for appending is atomic."""
    with Path(os.environ[JOURNAL]).open("a") as file:
        file.write(f"{event} {subject}\n")


class Work(BaseModel):
    """A piece of work, and its duration."""

    text: str = ""
    milliseconds: int = 0


class Grade(BaseModel):
    reward: float


def workshop(kind: str) -> type[Any]:
    """Return the environment, of one SDK's classes."""
    sdk: Any = importlib.import_module(MODULES[kind])
    tool: Any = sdk.tool if kind == "ors-sdk" else sdk.tool(concurrent=True)

    def said(text: str, **more: Any) -> Any:
        return sdk.ToolOutput(blocks=[sdk.TextBlock(text=text)], **more)

    class Workshop(sdk.Environment):
        def __init__(self, task_spec: Any = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
            super().__init__(task_spec)
            self.subject = task_spec.get("subject", "nobody")
            self.secret = secrets.get("key", "none")
            self.runs: Counter[str] = Counter()
            note("constructed", self.subject)

        @classmethod
        def list_splits(cls) -> Any:
            return ["train", "test"]

        @classmethod
        def list_tasks(cls, split: str) -> Any:
            return [{"subject": f"{split}-{number}"} for number in range(5)]

        async def setup(self) -> None:
            await asyncio.sleep(self.task_spec.get("setup", 0))
            if self.task_spec.get("broken"):
                raise ValueError(f"cannot set up with {self.secret}")

        async def teardown(self) -> None:
            note("torn-down", self.subject)

        def get_prompt(self) -> Any:
            return [sdk.TextBlock(text=f" Work on {self.subject}."), sdk.ImageBlock(data=PNG, mimeType="image/png")]

        @tool
        async def work(self, params: Work) -> sdk.ToolOutput:
            """Work for a while."""
            self.runs[params.text] += 1
            note("worked", f"{self.subject}/{params.text}")
            await asyncio.sleep(params.milliseconds / 1000)
            metadata = {"run": self.runs[params.text]}
            return said(f" {params.text}\n", reward=0.5, metadata=metadata)

        @tool
        async def lines(self) -> sdk.ToolOutput:
            return said(LINES)

        @tool
        async def look(self) -> sdk.ToolOutput:
            blocks = [sdk.TextBlock(text="a"), sdk.ImageBlock(data=PNG, mimeType="image/png"), sdk.TextBlock(text="b")]
            return sdk.ToolOutput(blocks=blocks)

        @tool
        async def fail(self) -> sdk.ToolOutput:
            raise ValueError(f"broken tool, {self.secret}")

        @tool
        async def whisper(self) -> sdk.ToolOutput:
            return said(self.secret)

        @tool
        async def finish(self, params: Grade) -> sdk.ToolOutput:
            return said("done", reward=params.reward, finished=True)

    return Workshop


def main() -> None:
    kind = sys.argv[1]
    hosted = [workshop(kind)]
    if kind == "own":
        from ors_server import Server

        Server(hosted).serve(on_ready=lambda url: print(url, flush=True))
        return
    sdk: Any = importlib.import_module(MODULES[kind])
    serve_sdk(sdk.Server(hosted).app)


if __name__ == "__main__":
    main()
