"""A server in its own process, and a client connection with control of every byte."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from tests.support.events import Reply, parse_events
from tests.support.paths import ROOT
from tests.support.servers import Running, running
from tests.support.waiting import PATIENCE

_COMMAND = [sys.executable, "-m", "tests.server.protocol.live_server"]


@dataclass(frozen=True)
class LiveServer:
    """A running server."""

    running: Running
    host: str

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The server's process."""
        return self.running.process

    @property
    def port(self) -> int:
        """The server's port."""
        return self.running.port

    @property
    def url(self) -> str:
        """The server's URL."""
        return self.running.url

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator["Connection"]:
        """Open a connection."""
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=2**20)
        connection = Connection(reader, writer)
        try:
            yield connection
        finally:
            await connection.cut()

    def stop(self) -> tuple[int, list[str]]:
        """Stop the server. Return its exit status and its output since the start."""
        status = self.running.stop(signal.SIGTERM)
        return status, self.running.output.read_text().splitlines()[1:]


@contextmanager
def live_server(
    *middleware: Literal["cors", "function"],
    file_limit: int | None = None,
    unread_log: bool = False,
    as_worker: bool = False,
    **settings: object,
) -> Generator[LiveServer]:
    """Start ``live_server.py``; keywords are settings, passed as ``ORS_*`` variables.

    ``file_limit`` is its initial soft limit on open files. With ``unread_log`` its standard error is a pipe that
    is never read. With ``as_worker`` it is a worker of a server with several, whose supervisor outlives it.
    """
    command = [*_COMMAND, *middleware]
    pipe = os.pipe() if as_worker else ()
    if pipe:
        identity = {"slot": 0, "incarnation": 0, "restarted": False, "folder": "/tmp", "descriptor": pipe[1]}
        settings["worker"] = json.dumps(identity)
    if file_limit is not None:
        command = ["sh", "-c", f'ulimit -S -n {file_limit}; exec "$@"', "sh", *command]
    stderr = subprocess.PIPE if unread_log else None
    variables = _variables(settings)
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            running(command, Path(folder), cwd=ROOT, variables=variables, stderr=stderr, pass_fds=pipe) as server,
        ):
            yield LiveServer(server, server.url.removeprefix("http://").rpartition(":")[0])
    finally:
        for descriptor in pipe:
            os.close(descriptor)


def failure_of_live_server(**settings: object) -> str:
    """Return the standard error of a server that cannot start."""
    done = subprocess.run(
        _COMMAND,
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("ORS_")} | _variables(settings),
        capture_output=True,
        text=True,
        timeout=PATIENCE * 2,
        check=False,
    )
    assert done.returncode != 0, done.stdout
    return done.stderr


def _variables(settings: Mapping[str, object]) -> dict[str, str]:
    given = {f"ORS_{name.upper()}": str(value) for name, value in settings.items()}
    return {"ORS_PORT": "0", "ORS_LOG_LEVEL": "error", **given}


@dataclass(frozen=True)
class RawResponse:
    """One response as received."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def detail(self) -> str:
        """The error's detail."""
        return str(json.loads(self.body)["detail"])


class Connection:
    """One connection; every wait is bounded."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Send bytes."""
        self._writer.write(data)
        await asyncio.wait_for(self._writer.drain(), PATIENCE)

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        sid: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a whole request."""
        await self.send(request_bytes(method, path, body, sid, headers))

    async def until(self, marker: bytes) -> bytes:
        """Read up to and including ``marker``."""
        return await asyncio.wait_for(self._reader.readuntil(marker), PATIENCE)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read a response's status and headers."""
        lines = (await self.until(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines[1:] if line)}
        return int(lines[0].split(" ")[1]), headers

    async def response(self) -> RawResponse:
        """Read a whole response."""
        status, headers = await self.head()
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(await self.until(b"\r\n"), 16):
                body += await asyncio.wait_for(self._reader.readexactly(size), PATIENCE)
                await self.until(b"\r\n")
            await self.until(b"\r\n")
            return RawResponse(status, headers, body)
        body = await asyncio.wait_for(self._reader.readexactly(int(headers["content-length"])), PATIENCE)
        return RawResponse(status, headers, body)

    async def ended(self, within: float = PATIENCE) -> bool:
        """Return whether the server closes the connection within this many seconds."""
        try:
            return await asyncio.wait_for(self._reader.read(1), within) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    async def cut(self) -> None:
        """Close the connection abruptly, as when the client dies."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):  # the server was first to close
            await self._writer.wait_closed()


def request_bytes(
    method: str, path: str, body: object = None, sid: str | None = None, headers: Mapping[str, str] | None = None
) -> bytes:
    """Return an HTTP/1.1 request."""
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: server", f"Content-Length: {len(content)}"]
    if sid is not None:
        lines.append(f"X-Session-ID: {sid}")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


class Connectable(Protocol):
    """Any server that these connections reach."""

    def connect(self) -> AbstractAsyncContextManager[Connection]: ...


async def call(connection: Connection, sid: str, name: str, **input: object) -> Reply:
    """Call a tool over a connection and read the whole response."""
    await connection.request("POST", "/call", {"name": name, "input": input}, sid)
    response = await connection.response()
    assert response.status == 200, response
    return Reply(parse_events(response.body))


async def open_session(server: Connectable, sid: str) -> None:
    """Open a session on the first task of `train`."""
    async with server.connect() as connection:
        await connection.request("POST", "/create", {"split": "train", "index": 0}, sid)
        response = await connection.response()
        assert response.status == 200, response
