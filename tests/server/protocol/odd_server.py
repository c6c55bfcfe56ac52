"""A server of its own process, customised as a user might: `python -m tests.server.protocol.odd_server KIND`."""

import sys
import threading
from collections.abc import Awaitable, Callable

from fastapi import Request, Response
from fastapi.middleware.cors import CORSMiddleware

from ors_server import Server, ToolOutput, tool
from tests.server.protocol.live_server import Step, Wire


class Odd(Wire):
    """`Wire` with a tool that fills the log."""

    @tool(concurrent=True)
    async def fail(self, params: Step) -> ToolOutput:
        raise ValueError("x" * params.size)

    @tool(concurrent=True)
    def stuck(self) -> ToolOutput:
        threading.Event().wait()
        return ToolOutput(blocks=[])


def odd(kind: str) -> Server:
    """Return the server of this kind."""
    server = Server([Odd])
    if kind in ("cors", "both"):
        server.app.add_middleware(CORSMiddleware, allow_origins=["http://page"], allow_methods=["*"])
    if kind == "both":

        @server.app.middleware("http")
        async def stamp(  # pyright: ignore[reportUnusedFunction]
            request: Request, following: Callable[[Request], Awaitable[Response]]
        ) -> Response:
            response = await following(request)
            response.headers["x-stamp"] = "function"
            return response

    return server


if __name__ == "__main__":
    odd(sys.argv[1]).serve(on_ready=lambda url: print(url, flush=True))
    sys.exit(0)
