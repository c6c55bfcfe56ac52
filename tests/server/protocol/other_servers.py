"""Servers for the tests that `live_server` does not reach: one that a user has changed, and an application under a
uvicorn that is not ours."""

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
    """Where an application of this process listens."""

    port: int

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Connection]:
        """A new connection."""
        connection = Connection(*await asyncio.open_connection("127.0.0.1", self.port))
        try:
            yield connection
        finally:
            await connection.cut()


@asynccontextmanager
async def under_plain_uvicorn(
    app: AsgiApplication, http: Literal["h11", "httptools"] = "httptools"
) -> AsyncGenerator[Address]:
    """An application in this process as `uvicorn module:app` serves it: with none of our own protocol class."""
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
    """Start `odd_server.py`; keywords are settings. With `unread_log` its standard error is a pipe nobody reads."""
    variables = {"ORS_PORT": "0"} | {f"ORS_{name.upper()}": str(value) for name, value in settings.items()}
    command = [sys.executable, "-m", "tests.server.protocol.odd_server", kind]
    with (
        tempfile.TemporaryDirectory() as folder,
        running(command, Path(folder), cwd=ROOT, variables=variables, unread_log=unread_log) as server,
    ):
        try:
            yield LiveServer(server, server.url.removeprefix("http://").rpartition(":")[0])
        finally:
            server.process.kill()  # whether it would end by itself is not asked here


async def call(connection: Connection, sid: str, name: str, **input: object) -> Reply:
    """Call a tool over a connection and read all of the answer."""
    await connection.request("POST", "/call", {"name": name, "input": input}, sid)
    response = await connection.response()
    assert response.status == 200, response
    return Reply(parse_events(response.body))


async def open_session(server: Address | LiveServer, sid: str) -> None:
    """A session on the first task of `train`."""
    async with server.connect() as connection:
        await connection.request("POST", "/create", {"split": "train", "index": 0}, sid)
        response = await connection.response()
        assert response.status == 200, response
