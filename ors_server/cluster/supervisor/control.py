"""The socket by which commands on the same machine ask a supervisor: one line of JSON each way.

Only the user of the supervisor, and root, can connect to it. It is found by the server's port, and by its address where
several servers have the same port. A supervisor that was killed leaves the file of its socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import stat
import tempfile
from pathlib import Path
from typing import Any, Self

from ors_server.cluster.errors import ControlError
from ors_server.cluster.supervisor.slots import Slot
from ors_server.cluster.supervisor.supervisor import Supervisor

__all__ = ["Control", "ask", "control_folder", "has_left_gateways", "row_of"]

_PATIENCE = 10.0


def control_folder() -> Path:
    """Return the folder of the sockets of this user's supervisors."""
    return Path(tempfile.gettempdir(), f"ors-server-{os.getuid()}")


def _name(host: str, port: int) -> str:
    with contextlib.suppress(OSError):  # a name that is not known has no server
        host = str(socket.getaddrinfo(host, port)[0][4][0])
    return f"{host}-{port}.sock"


def _find(port: int, host: str | None = None) -> dict[str, Path]:
    """Return the sockets of the servers that have, or had, this port, by their addresses. Raises ``ControlError``."""
    found: dict[str, Path] = {}
    # ``gettempdir`` takes another folder than before while the disk of the first is full.
    for base in (tempfile.gettempdir(), os.environ.get("TMPDIR", ""), "/tmp"):  # noqa: S108 - the folder is checked
        folder = Path(base, control_folder().name)
        try:
            _check(folder)
        except ControlError:
            if folder == control_folder():
                raise
            continue
        except OSError:
            continue
        for path in sorted(folder.glob(f"*-{port}.sock" if host is None else _name(host, port))):
            found.setdefault(path.name.removesuffix(f"-{port}.sock"), path)
    return found


def _check(folder: Path) -> None:
    """Refuse a folder in which another user may listen. Raises ``ControlError`` and ``OSError``."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o777 != 0o700:
        raise ControlError(
            f"{folder} belongs to another user or is open to others",
            "Remove it, or set TMPDIR to a folder of your own for the server and for its commands.",
        )


class Control:
    """The supervisor's side of the socket, while the block runs."""

    def __init__(self, supervisor: Supervisor, host: str, port: int) -> None:
        self._supervisor = supervisor
        self._path = control_folder() / _name(host, port)
        self._server: asyncio.Server | None = None
        self._draining = set[asyncio.Task[None]]()

    async def __aenter__(self) -> Self:
        folder = self._path.parent
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            _check(folder)
            self._path.unlink(missing_ok=True)  # no other server has this address
            self._server = await asyncio.start_unix_server(self._answer, self._path)
        except OSError as error:
            cause = error.strerror or str(error)
            raise ControlError(
                f"Cannot listen at {self._path}: {cause}", "Set TMPDIR to a folder with a short path and with room."
            ) from None
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._draining:
            task.cancel()
        self._path.unlink(missing_ok=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError):
            request: dict[str, Any] = json.loads(await reader.readline())
            writer.write(json.dumps(self._reply(request)).encode() + b"\n")
            await writer.drain()
        writer.close()

    def _reply(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["command"] == "drain":
            numbers = {int(number) for number in request["slots"]}
            unknown = numbers - {slot.number for slot in self._supervisor.slots}
            if unknown:
                return {"error": f"There is no slot {min(unknown)}; there are {len(self._supervisor.slots)} slots"}
            task = asyncio.create_task(self._supervisor.drain_all(sorted(numbers), float(request["deadline"])))
            self._draining.add(task)
            task.add_done_callback(self._draining.discard)
        return {"workers": [row_of(slot) for slot in self._supervisor.slots]}


def row_of(slot: Slot) -> dict[str, Any]:
    """Return the row of a slot in the table of ``ors-server workers``."""
    return {
        "slot": slot.number,
        "name": "sandboxes" if slot.of_sandboxes else slot.pool.name,
        "state": slot.state,
        "pid": None if slot.child is None or slot.child.ended else slot.child.pid,
        "sessions": 0 if slot.worker is None else slot.worker.sessions,
        "calls": slot.calls,
        "restarts": slot.restarts,
        "reason": slot.given_up,
    }


def ask(port: int, request: dict[str, Any], host: str | None = None) -> dict[str, Any]:
    """Ask the supervisor of the server on a port; ``host`` chooses among several. Raises ``ControlError``."""
    living: dict[str, socket.socket] = {}
    with contextlib.ExitStack() as stack:
        for address, path in _find(port, host).items():
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.settimeout(_PATIENCE)
            with contextlib.suppress(OSError):
                sock.connect(str(path))
                living[address] = sock
        if len(living) > 1:
            raise ControlError(
                f"Several servers have port {port}: at {', '.join(living)}", "Name the address of one with --host."
            )
        try:
            (sock,) = living.values()
            sock.sendall(json.dumps(request).encode() + b"\n")
            reply: dict[str, Any] = json.loads(sock.makefile().readline())
        except (OSError, ValueError):
            raise _no_supervisor(port) from None
    if "error" in reply:
        raise ControlError(reply["error"], "`ors-server workers` lists the slots.")
    return reply


def _no_supervisor(port: int) -> ControlError:
    if has_left_gateways(port):
        return ControlError(
            f"The supervisor of the server on port {port} was killed; its workers end with their last sessions",
            "Wait for that, or end its processes. Then start the server again.",
        )
    return ControlError(
        f"No server with workers of this user listens on port {port}",
        "Start one with `ors-server serve … --workers N`, or name its port with --port.",
    )


def has_left_gateways(port: int) -> bool:
    """Return whether a supervisor of this user was killed whose gateways still listen on this port."""
    with contextlib.suppress(ControlError):
        return any(_was_killed(path) and _listens(host, port) for host, path in _find(port).items())
    return False


def _was_killed(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as control:
        try:
            control.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False


def _listens(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), _PATIENCE):
        return True
    return False
