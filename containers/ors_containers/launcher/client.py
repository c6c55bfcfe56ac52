"""The server's side of the launcher: requests with descriptors, answers, and news of processes that ended.

Invariant: every request is answered exactly once, by the launcher or, when that has ended, by ``LauncherGone``.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ors_containers.errors import InfrastructureFailure
from ors_containers.launcher.process import MESSAGE_SIZE
from ors_containers.linux.fd_passing import receive

__all__ = ["Answer", "LauncherClient", "LauncherGone", "OperationFailed"]

_SOURCES = Path(__file__).resolve().parents[2]
_SCRIPT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from ors_containers.launcher.process import main; "
    "main(int(sys.argv[2]), sys.argv[3])"
)
_CLOSE_PATIENCE = 10.0

Message = dict[str, Any]


class LauncherGone(InfrastructureFailure):
    """The launcher has ended, and every sandbox with it."""

    def __init__(self) -> None:
        super().__init__("The process that starts sandboxes has ended")


class OperationFailed(Exception):
    """The launcher's child could not do it: ``number`` is the errno.

    It becomes an error of the tree where it is known what was attempted.
    """

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number


class Answer:
    """What came back; ``descriptor`` is the caller's to close."""

    def __init__(self, message: Message, descriptors: Sequence[int]) -> None:
        self.message = message
        self.descriptor = descriptors[0] if descriptors else -1


class LauncherClient:
    """One launcher process. ``start`` and every other method on one event loop."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._exits: dict[int, asyncio.Future[int]] = {}
        self._outgoing: deque[tuple[bytes, list[int]]] = deque()
        self._next = 0

    @property
    def process(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended, or was never started."""
        return self._socket is None

    def start(self) -> None:
        """Start the process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            # Without site-packages and the user's variables: nothing but this package and the standard library.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _SCRIPT, str(_SOURCES), str(theirs.fileno()), platform.machine()],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd="/",
                env={},
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._socket = ours
        asyncio.get_running_loop().add_reader(ours, self._on_message)

    async def request(self, operation: str, descriptors: Sequence[int] = (), **message: Any) -> Answer:
        """Ask for an operation; the descriptors stay the caller's. Raises ``OperationFailed``, ``LauncherGone``."""
        if self._socket is None:
            raise LauncherGone
        self._next += 1
        identity = self._next
        data = json.dumps({"id": identity, "operation": operation, **message}).encode()
        if len(data) > MESSAGE_SIZE:
            raise OperationFailed(7, "the request is too long")  # E2BIG
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[identity] = future
        # Duplicates, so that the caller may close its own before they are sent.
        self._outgoing.append((data, [os.dup(descriptor) for descriptor in descriptors]))
        self._flush()
        return await future

    def exit_of(self, process: int) -> asyncio.Future[int]:
        """Done when ``process``, which an answer named, has ended, with its exit code. Ask once."""
        return self._exits[process]

    async def close(self) -> None:
        """End the launcher, and with it what it started; or wait for the end of one that has ended by itself."""
        self._lost()
        process = self._process
        if process is None:
            return
        try:
            for _ in range(round(_CLOSE_PATIENCE / 0.01)):
                if process.poll() is not None:
                    return
                await asyncio.sleep(0.01)
        finally:
            # Also of a call that is cancelled, when an event loop is shut down: its process must not be left behind.
            if process.poll() is None:
                process.kill()
                process.wait()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self._outgoing and self._socket is not None:
            data, descriptors = self._outgoing[0]
            try:
                socket.send_fds(self._socket, [data], descriptors)
            except BlockingIOError:
                loop.add_writer(self._socket, self._flush)
                return
            except OSError:
                self._lost()
                return
            self._outgoing.popleft()
            for descriptor in descriptors:
                os.close(descriptor)
        if self._socket is not None:
            loop.remove_writer(self._socket)

    def _on_message(self) -> None:
        # Several at a time: the loop's turn costs more than a message does.
        for _ in range(32):
            if self._socket is None:
                return
            try:
                data, descriptors = receive(self._socket, MESSAGE_SIZE, 1)
            except BlockingIOError:
                return
            except OSError:
                data, descriptors = b"", []
            if not data:
                self._lost()
                return
            self._on_answer(json.loads(data), descriptors)

    def _on_answer(self, message: Message, descriptors: list[int]) -> None:
        exited = message.get("exited")
        if exited is not None:
            future = self._exits.get(exited)
            if future is not None and not future.done():
                future.set_result(message["code"])
            return
        future = self._waiting.pop(message["id"], None)
        if future is None or future.done():
            for descriptor in descriptors:
                os.close(descriptor)
        elif "error" in message:
            future.set_exception(OperationFailed(message["errno"], message["error"]))
        else:
            # The launcher tells of a process before it can tell of its end.
            if (process := message.get("process")) is not None:
                self._exits[process] = asyncio.get_running_loop().create_future()
            future.set_result(Answer(message, descriptors))

    def forget(self, process: int) -> None:
        """Nobody asks for this process's exit any more."""
        self._exits.pop(process, None)

    def _lost(self) -> None:
        if self._socket is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        loop.remove_writer(self._socket)
        self._socket.close()
        self._socket = None
        for _, descriptors in self._outgoing:
            for descriptor in descriptors:
                os.close(descriptor)
        self._outgoing.clear()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(LauncherGone())
        self._waiting.clear()
        for future in self._exits.values():
            if not future.done():
                future.set_result(-signal.SIGKILL)
