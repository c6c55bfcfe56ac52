"""The server's side of the launcher: requests with descriptors, responses, and exits of processes.

Invariant: every request gets exactly one response, from the launcher or, when that has ended, ``LauncherGone``.
"""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ors_containers.errors import InfrastructureFailure, ServerExhausted
from ors_containers.launcher.messages import (
    MESSAGE_SIZE,
    Entered,
    Examining,
    Exited,
    Failed,
    Opened,
    Request,
    Response,
    Started,
    open_envelope,
    read_response,
    seal,
)
from ors_containers.launcher.records import InvalidRecord
from ors_containers.linux.fd_passing import receive

__all__ = ["LauncherClient", "LauncherGone", "OperationFailed"]

_SOURCES = Path(__file__).resolve().parents[2]
_SCRIPT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from ors_containers.launcher.process import main; "
    "main(int(sys.argv[2]), sys.argv[3])"
)
_CLOSE_PATIENCE = 10.0

R = TypeVar("R", bound=Response)


class LauncherGone(InfrastructureFailure):
    """The launcher has ended, and every sandbox with it."""

    def __init__(self) -> None:
        super().__init__("The process that starts sandboxes has ended")


class OperationFailed(Exception):
    """The launcher's child failed with the errno ``number``.

    The caller converts it to an error of ``errors``, since it knows what was attempted.
    """

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number


class LauncherClient:
    """One launcher process. ``start`` and every other method on one event loop."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._waiting: dict[int, asyncio.Future[Response]] = {}
        self._exits: dict[int, asyncio.Future[int]] = {}
        self._outgoing: deque[tuple[bytes, list[int]]] = deque()
        self._next = 0

    @property
    def process(self) -> int:
        """The launcher's process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def ended(self) -> bool:
        """True if the launcher has ended, or was not started."""
        return self._socket is None

    def start(self) -> None:
        """Start the process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            # Without site-packages and the user's variables: it imports this package and the standard library only.
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

    def request(self, request: Request, descriptors: Sequence[int], response: type[R]) -> Coroutine[Any, Any, R]:
        """Send a request; the coroutine returns its response, which is of the class ``response``.

        The caller keeps ``descriptors``, and may close them when this has returned; -1 stands for one of a container
        that has ended. It has to close the one in an ``Opened``. The coroutine raises ``OperationFailed``,
        ``LauncherGone`` and ``ServerExhausted``.
        """
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        try:  # at once: when this has returned, the numbers may be those of other files
            self._send(request, descriptors, future)
        except (OperationFailed, LauncherGone, ServerExhausted) as error:
            future.set_exception(error)
        return self._response(future, response)

    def _send(self, request: Request, descriptors: Sequence[int], future: asyncio.Future[Response]) -> None:
        if self._socket is None:
            raise LauncherGone
        self._next += 1
        data = seal(self._next, request)
        if len(data) > MESSAGE_SIZE:
            raise OperationFailed(errno.E2BIG, "the request is too long")
        if -1 in descriptors:
            raise OperationFailed(errno.ESRCH, "the container has ended")
        # Ordinarily at once, and without duplicates: what ends processes needs no room for another descriptor.
        if not self._outgoing and self._is_sent(data, descriptors):
            self._waiting[self._next] = future
        else:
            self._outgoing.append((data, _duplicates(descriptors)))
            self._waiting[self._next] = future
            self._flush()

    def _is_sent(self, data: bytes, descriptors: Sequence[int]) -> bool:
        """Send a message unless the launcher has many to read. Raises ``OperationFailed`` and ``LauncherGone``."""
        assert self._socket is not None
        try:
            socket.send_fds(self._socket, [data], descriptors)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.EBADF:
                raise OperationFailed(errno.EBADF, str(error)) from error
            self._lost()
            raise LauncherGone from error
        return True

    async def _response(self, future: asyncio.Future[Response], response: type[R]) -> R:
        try:
            found = await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._drop(future.result())
            raise
        if not isinstance(found, response):
            self._drop(found)
            raise OperationFailed(errno.EPROTO, f"the launcher responded with {type(found).__name__}")
        return found

    def _drop(self, response: Response) -> None:
        """Free what a response brought that no caller gets."""
        if isinstance(response, Opened):
            os.close(response.descriptor)
        self.forget(_process_of(response))

    def exit_of(self, process: int) -> asyncio.Future[int]:
        """Return the future exit code of ``process``, which a response named; until ``forget``."""
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
            # Also in a cancelled call, when an event loop is shut down: the process must not be left behind.
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
        # Several at a time: a turn of the event loop costs more than a message.
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
            envelope = open_envelope(data)
            try:
                response = read_response(envelope)
            except InvalidRecord as error:
                response = Failed(errno.EPROTO, str(error))
            self._on_response(envelope.id, response, descriptors)

    def _on_response(self, request: int, response: Response, descriptors: list[int]) -> None:
        future = self._waiting.pop(request, None)
        if isinstance(response, Exited):
            exited = self._exits.get(response.process)
            if exited is not None and not exited.done():
                exited.set_result(response.code)
            if future is None:
                return
            # An examination's process that was killed before it responded.
            response = Failed(errno.EIO, f"the launcher's child ended with {response.code}")
        if future is not None and not future.done():
            if isinstance(response, Failed):
                future.set_exception(OperationFailed(response.number, response.text))
            elif isinstance(response, Opened) and not descriptors:  # the kernel drops what this process has no room for
                future.set_exception(ServerExhausted())
            else:
                if isinstance(response, Opened):
                    response = Opened(descriptors.pop(), response.size)
                # The launcher responds with a process before it sends the process's `Exited`.
                if (process := _process_of(response)) is not None:
                    self._exits[process] = asyncio.get_running_loop().create_future()
                future.set_result(response)
        for descriptor in descriptors:
            os.close(descriptor)

    def forget(self, process: int | None) -> None:
        """Drop the exit of ``process``, which no caller waits for any longer, if there is one."""
        if process is not None:
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


def _duplicates(descriptors: Sequence[int]) -> list[int]:
    """Return a duplicate of each descriptor. Raises ``OperationFailed`` and ``ServerExhausted``, with none open."""
    made: list[int] = []
    try:
        for descriptor in descriptors:
            made.append(os.dup(descriptor))  # noqa: PERF401 - a comprehension would lose those before an error
    except OSError as error:
        for descriptor in made:
            os.close(descriptor)
        if error.errno in ServerExhausted.NUMBERS:
            raise ServerExhausted from error
        raise OperationFailed(error.errno or errno.EIO, str(error)) from error
    return made


def _process_of(response: Response) -> int | None:
    """Return the process that a response names and whose end will be reported."""
    return response.process if isinstance(response, (Started, Entered, Examining)) else None
