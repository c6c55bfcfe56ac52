"""Servers for tests that `live_server` does not cover: a customised server, and an application under plain uvicorn."""

import asyncio
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import uvicorn

from tests.server.protocol.live import Connection, LiveServer
from tests.support.events import Reply, parse_events
from tests.support.http_client import AsgiApplication
from tests.support.paths import ROOT
from tests.support.servers import running
from tests.support.waiting import PATIENCE


@dataclass(frozen=True)
class Address:
    """Address of an application of this process."""

    port: int

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
            yield Address(sock.getsockname()[1])
        finally:
            server.should_exit = True
            await asyncio.wait_for(serving, PATIENCE)


@contextmanager
def odd_server(kind: str, *, unread_log: bool = False, **settings: object) -> Generator[LiveServer]:
    """Start `odd_server.py`; keywords are settings. With `unread_log` no process reads its standard error, a pipe."""
    variables = {"ORS_PORT": "0"} | {f"ORS_{name.upper()}": str(value) for name, value in settings.items()}
    command = [sys.executable, "-m", "tests.server.protocol.odd_server", kind]
    with (
        tempfile.TemporaryDirectory() as folder,
        running(command, Path(folder), cwd=ROOT, variables=variables, unread_log=unread_log) as server,
    ):
        try:
            yield LiveServer(server, server.url.removeprefix("http://").rpartition(":")[0])
        finally:
            server.process.kill()  # these tests do not check whether it ends by itself


async def call(connection: Connection, sid: str, name: str, **input: object) -> Reply:
    """Call a tool over a connection and read the whole response."""
    await connection.request("POST", "/call", {"name": name, "input": input}, sid)
    response = await connection.response()
    assert response.status == 200, response
    return Reply(parse_events(response.body))


async def open_session(server: Address | LiveServer, sid: str) -> None:
    """Open a session on the first task of `train`."""
    async with server.connect() as connection:
        await connection.request("POST", "/create", {"split": "train", "index": 0}, sid)
        response = await connection.response()
        assert response.status == 200, response
