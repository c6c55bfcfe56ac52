"""An application of this process under plain uvicorn."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import uvicorn
from uvicorn.server import ServerState

from tests.server.protocol.live import Connection
from tests.support.http_client import AsgiApplication
from tests.support.waiting import PATIENCE, until


@dataclass(frozen=True)
class Address:
    """Address of an application of this process."""

    port: int
    state: ServerState

    async def idle(self) -> None:
        """Wait until uvicorn has noticed that every connection is closed, and has no request in progress."""
        await until(lambda: not self.state.connections and not self.state.tasks)

    async def disconnected(self) -> None:
        """Wait until uvicorn has noticed that every connection is closed."""
        await until(lambda: not self.state.connections)

    @property
    def url(self) -> str:
        """The URL."""
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Connection]:
        """Open a connection."""
        connection = Connection(*await asyncio.open_connection("127.0.0.1", self.port))
        try:
            yield connection
        finally:
            await connection.cut()


@asynccontextmanager
async def under_plain_uvicorn(
    app: AsgiApplication, http: Literal["h11", "httptools"] = "httptools"
) -> AsyncGenerator[Address]:
    """Serve an application in this process as `uvicorn module:app` does, without our protocol class."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, http=http, ws="none", log_config=None, access_log=False)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        try:
            async with asyncio.timeout(PATIENCE):
                while not server.started:
                    assert not serving.done(), serving.exception()
                    await asyncio.sleep(0.005)
            yield Address(sock.getsockname()[1], server.server_state)
        finally:
            server.should_exit = True
            await asyncio.wait_for(serving, PATIENCE)
