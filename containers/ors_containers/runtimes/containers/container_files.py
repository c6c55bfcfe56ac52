"""Files of a container: opened from inside it by the launcher, then read and written by the server.

Invariant: a path is resolved in the container's own mounts with its user's rights, and only a descriptor of a regular
file comes out, so no link leads to a file of the machine.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ors_containers.errors import InvalidCommand, SandboxDied, file_error
from ors_containers.launcher.client import LauncherGone, OperationFailed
from ors_containers.launcher.messages import Done, FileFound, Opened, OpenFile, RenameFile, StatFile, User
from ors_containers.runtimes.namespaces import Namespaces
from ors_containers.runtimes.opened_file import in_thread, server_limits
from ors_containers.sandbox import FileStatus

__all__ = ["ContainerFiles"]

_PIECE = 1 << 20

R = TypeVar("R", Opened, FileFound, Done)
T = TypeVar("T")


class ContainerFiles:
    """The file operations of one container. ``require_alive`` raises the error of a container that has ended."""

    def __init__(
        self, sandbox: str, namespaces: Namespaces, user: User, require_alive: Callable[[float], Awaitable[None]]
    ) -> None:
        self._sandbox = sandbox
        self._namespaces = namespaces
        self._user = user
        self._require_alive = require_alive

    async def stat(self, path: str, *, follow: bool) -> FileStatus:
        """See ``Container.stat``."""
        found = await self._request(StatFile(path, follow, self._user, "/"), FileFound)
        return FileStatus(**found._asdict())

    async def read(self, path: str, offset: int, length: int | None) -> tuple[bytes, int]:
        """See ``Container.read``."""
        if offset < 0 or (length is not None and length < 0):
            raise InvalidCommand(f"{length} bytes from {offset} on are not a part of a file")
        opened = await self._open(path, os.O_RDONLY)

        def read(file: int) -> bytes:
            content = bytearray()
            while length is None or len(content) < length:
                most = _PIECE if length is None else min(_PIECE, length - len(content))
                piece = os.pread(file, most, offset + len(content))
                if not piece:
                    break
                content += piece
            return bytes(content)

        return await self._use(path, opened.descriptor, read), opened.size

    async def digest(self, path: str) -> tuple[str, int]:
        """See ``Container.digest``."""
        opened = await self._open(path, os.O_RDONLY)

        def digest(file: int) -> tuple[str, int]:
            found, size = hashlib.sha256(), 0
            while piece := os.read(file, _PIECE):
                found.update(piece)
                size += len(piece)
            return found.hexdigest(), size

        return await self._use(path, opened.descriptor, digest)

    async def write(self, path: str, content: bytes, *, offset: int, truncate: bool, parents: bool) -> int:
        """See ``Container.write``."""
        if offset < 0:
            raise InvalidCommand(f"{offset} is not a place in a file")
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if truncate else 0)
        opened = await self._open(path, flags, parents=parents)

        def write(file: int) -> int:
            rest, place = memoryview(content), offset
            while rest:
                written = os.pwrite(file, rest, place)
                rest, place = rest[written:], place + written
            return os.fstat(file).st_size

        return await self._use(path, opened.descriptor, write)

    async def rename(self, source: str, target: str) -> None:
        """See ``Container.rename``."""
        _check(target)
        await self._request(RenameFile(source, target, self._user, "/"), Done)

    async def _open(self, path: str, flags: int, *, parents: bool = False) -> Opened:
        request = OpenFile(path, flags | os.O_NOFOLLOW, 0o644, parents, self._user, "/", keep_mode=True)
        return await self._request(request, Opened)

    async def _use(self, path: str, descriptor: int, work: Callable[[int], T]) -> T:
        """Do ``work`` on an open file, and close it."""
        try:
            with server_limits():
                return await in_thread(descriptor, work)
        except OSError as error:
            raise file_error(path, error.errno or errno.EIO) from error
        finally:
            os.close(descriptor)

    async def _request(self, request: OpenFile | StatFile | RenameFile, response: type[R]) -> R:
        await self._require_alive(0.0)
        _check(request.path)
        try:
            return await self._namespaces.client.request(request, (self._namespaces.process_1,), response)
        except LauncherGone as error:
            raise SandboxDied(self._sandbox, str(error)) from error
        except OperationFailed as error:
            await self._require_alive(0.0)
            if error.number == errno.ELOOP:
                raise file_error(request.path, errno.ELOOP, "it is a symlink") from error
            raise file_error(request.path, error.number, str(error)) from error


def _check(path: str) -> None:
    if not path.startswith("/") or "\0" in path:
        raise file_error(path, errno.ENOENT, "it is not an absolute path")
