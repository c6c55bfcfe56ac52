"""The docker-like profile as candidates: containers in this process, and through the sandbox service of a server."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ors_containers.container import Container
from ors_containers.errors import SandboxError

from ors_benchmarks.harness.candidates import OURS as OUR_SERVER
from ors_benchmarks.harness.candidates import NotHere
from ors_benchmarks.harness.checks import Refused, WrongAnswer, read_events, read_json
from ors_benchmarks.harness.http11 import Address, Connection, Failure
from ors_benchmarks.harness.processes import ServerProcess, StartFailed
from ors_benchmarks.sandboxes.candidates import PATIENCE, Box, Candidate, Ours, without_ids

__all__ = ["DockerLike", "Service", "ServiceBox"]

_RUNTIME = "bubblewrap"
_CREATION = {"environment": "bench", "image": "host", "machine_size": "1:2", "block_network": True}


class _ContainerBox(Box):
    """A container of ``ors_containers``."""

    def __init__(self, container: Container) -> None:
        self._container = container

    async def run(self, command: str) -> bytes:
        try:
            result = await self._container.run(command, timeout=PATIENCE)
        except SandboxError as error:
            raise Failure(without_ids(error)) from error
        return _checked(result.exit_status, result.timed_out, result.output)

    async def stop(self) -> None:
        await self._container.close()


class DockerLike(Candidate):
    """Docker-like containers, without a server between."""

    name = "docker-like"
    title = "docker-like"
    program = _RUNTIME
    keeps_shell = False

    def __init__(self) -> None:
        self._strict = Ours(_RUNTIME)

    def version(self) -> str:
        return self._strict.version()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[DockerLike]:
        async with self._strict.open():
            await _try(self)
            yield self

    async def start(self) -> Box:
        try:
            return _ContainerBox(await self._strict.runtime.open_container(self._strict.image))
        except SandboxError as error:
            raise Failure(without_ids(error)) from error


class ServiceBox(Box):
    """A sandbox of the service, and the connection that it was created on."""

    def __init__(self, connection: Connection, host: str, sid: str) -> None:
        self._connection = connection
        self._host = host
        self._sid = sid

    async def run(self, command: str) -> bytes:
        body = {"cmd": command, "timeout_s": PATIENCE, "max_bytes": 50_000, "shell": "/bin/bash"}
        _, result = _result(await _post(self._connection, self._host, "/run", body, self._sid))
        try:
            return _checked(result["return_code"], result["timed_out"], base64.b64decode(result["output"]))
        except (KeyError, TypeError, ValueError):
            raise WrongAnswer(f"a command answered {str(result)[:60]}") from None

    async def stop(self) -> None:
        try:
            answer = await _post(self._connection, self._host, "/delete_session", {}, self._sid)
            if read_json(answer) != {"sid": self._sid}:
                raise WrongAnswer("a deletion answered with another id")
        finally:
            self._connection.close()


class Service(Candidate):
    """The sandbox service of a server in a process of its own, over one connection for each sandbox."""

    name = "service"
    title = "sandbox service, HTTP"
    program = _RUNTIME
    keeps_shell = False
    #: The server's address, while it is open.
    _address: Address

    def __init__(self) -> None:
        self._strict = Ours(_RUNTIME)
        self._version = ""

    def version(self) -> str:
        return self._version

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Service]:
        async with self._strict.open():
            self._version = self._strict.version()
        with tempfile.TemporaryDirectory(prefix="ors-bench-") as folder:
            settings = {"sandbox_runtime": _RUNTIME, "sandbox_service": True, "data_dir": folder}
            command = OUR_SERVER.command(sys.executable, "--target", "echo", "--settings", json.dumps(settings))
            try:
                server = await asyncio.to_thread(ServerProcess.start, command, Path(folder), None, name=self.name)
            except StartFailed as error:
                raise NotHere(str(error)) from error
            self._address = server.address
            try:
                await _try(self)
                yield self
            finally:
                await asyncio.to_thread(server.stop)

    async def start(self) -> Box:
        connection = await Connection.to(self._address)
        host = f"{self._address.host}:{self._address.port}"
        try:
            task_id, result = _result(await _post(connection, host, "/create_sandbox", _CREATION))
            if result != {"sid": task_id}:
                raise WrongAnswer(f"a creation answered {str(result)[:60]}")
        except BaseException:  # a cancellation too; the server's end removes what it created
            connection.close()
            raise
        return ServiceBox(connection, host, task_id)


async def _try(candidate: Candidate) -> None:
    """Start one sandbox, run a command and stop it. Raises ``NotHere``."""
    try:
        box = await candidate.start()
        try:
            await box.check()
        finally:
            await box.stop()
    except Failure as failure:
        raise NotHere(f"{candidate.title} does not start a sandbox here: {failure}") from failure


async def _post(connection: Connection, host: str, path: str, body: dict[str, Any], sid: str = "") -> bytes:
    content = json.dumps(body).encode()
    session = f"X-Session-ID: {sid}\r\n" if sid else ""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\n{session}Content-Type: application/json\r\n"
        f"Accept: text/event-stream\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    try:
        async with asyncio.timeout(PATIENCE):
            response = await connection.exchange(head.encode() + content)
    except TimeoutError:
        raise Failure(f"{path} did not end") from None
    if response.status != 200:
        raise Refused(f"status {response.status}: {response.body[:80]!r}")
    return response.body


def _result(body: bytes) -> tuple[str, Any]:
    """Return the ``task_id`` and the result of an event stream. Raises ``WrongAnswer``."""
    events = read_events(body)
    if len(events) < 2 or events[0][0] != "task_id" or events[-1][0] != "end":
        raise WrongAnswer(f"no result: {body[-80:]!r}")
    return events[0][1].decode(), read_json(b"".join(data for _, data in events[1:]))


def _checked(exit_status: int, timed_out: bool, output: bytes) -> bytes:
    if exit_status or timed_out:
        raise WrongAnswer(f"a command ended with {exit_status}: {output[:60]!r}")
    return output
