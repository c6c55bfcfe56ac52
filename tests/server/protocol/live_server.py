"""A server for the tests that need real sockets: ``python -m tests.server.protocol.live_server [MIDDLEWARE ...]``.

It prints its address once it listens. ``cors`` and ``function`` are middleware as a user adds it to the application.
"""

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import Request, Response
from fastapi.middleware.cors import CORSMiddleware
from pydantic import BaseModel

from ors_server import JSONObject, Server, TextBlock, ToolOutput, tool
from tests.support.environments import Bare, said


class Step(BaseModel):
    """Input: a text, a size, and a duration in milliseconds."""

    text: str = ""
    size: int = 1
    milliseconds: int = 0


class Wire(Bare):
    """Tools that count their runs, take a given time, return large outputs, fail and hang."""

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec, secrets)
        self.runs = 0

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JSONObject]:
        return [{"setup": 0}, {"setup": 1500}]

    async def setup(self) -> None:
        milliseconds: Any = self.task_spec.get("setup", 0)
        await asyncio.sleep(milliseconds / 1000)

    def teardown(self) -> None:
        print("teardown", flush=True)

    @tool(concurrent=True)
    async def step(self, params: Step) -> ToolOutput:
        self.runs += 1
        run = self.runs
        await asyncio.sleep(params.milliseconds / 1000)
        return ToolOutput(blocks=[TextBlock(text=params.text * params.size)], metadata={"run": run})

    @tool(concurrent=True)
    def block(self, params: Step) -> ToolOutput:
        threading.Event().wait(params.milliseconds / 1000)
        return ToolOutput(blocks=[])

    @tool(concurrent=True)
    async def count(self) -> ToolOutput:
        return said(str(self.runs))

    @tool(concurrent=True)
    async def fail(self, params: Step) -> ToolOutput:
        raise ValueError("x" * params.size)

    @tool(concurrent=True)
    def stuck(self) -> ToolOutput:
        threading.Event().wait()
        return ToolOutput(blocks=[])


async def stamp(request: Request, following: Callable[[Request], Awaitable[Response]]) -> Response:
    """Middleware that is a function."""
    response = await following(request)
    response.headers["x-stamp"] = "function"
    return response


def main() -> None:
    server = Server([Wire])
    if "cors" in sys.argv:
        server.app.add_middleware(CORSMiddleware, allow_origins=["http://page"], allow_methods=["*"])
    if "function" in sys.argv:
        server.app.middleware("http")(stamp)
    server.serve(on_ready=lambda url: print(url, flush=True))
    sys.exit(0)


if __name__ == "__main__":
    main()
