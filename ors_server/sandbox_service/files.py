"""The file operations of the sandbox service, on the regular files of one container.

A file is written in pieces to a temporary file beside it, at the offsets that the client names, and takes its place in
one step when the client commits. Every step may be repeated: a client retries a request whose answer it did not get.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from ors_server.sandbox_service.errors import (
    SandboxFileChanged,
    SandboxFileError,
    SandboxFileMissing,
    SandboxFileShorter,
)
from ors_server.sessions.errors import SessionGone

if TYPE_CHECKING:
    from ors_containers.container import Container

__all__ = ["Status", "commit_file", "read_part", "stat_file", "write_part"]


class Status(NamedTuple):
    """The size of a file, and its digest where it was asked for."""

    size: int
    sha256: str | None


async def stat_file(container: Container, path: str, *, digest: bool) -> Status:
    """Describe a regular file. Raises ``SandboxFileError``, whose text says ``symlink`` for a link."""
    _check(path)
    with _translated(path):
        found = await container.stat(path)
        if found.kind == "link":
            raise SandboxFileError(f"{path} is a symlink", "Name the file that it leads to")
        if found.kind != "file":
            raise SandboxFileError(f"{path} is not a regular file: {found.kind}")
        if digest:
            sha256, size = await container.digest(path)
            return Status(size, sha256)
        return Status(found.size, None)


async def read_part(container: Container, path: str, offset: int, length: int) -> tuple[bytes, int]:
    """Return bytes of a regular file from ``offset`` on, and its size now. Raises ``SandboxFileError``."""
    _check(path)
    with _translated(path):
        data, size = await container.read(path, offset=offset, length=length)
    if offset > size or (offset == size and offset):
        raise SandboxFileShorter(path, size)
    return data, size


async def write_part(container: Container, path: str, offset: int, data: bytes, *, parents: bool) -> None:
    """Write bytes at ``offset`` of the temporary file; offset 0 begins it. Raises ``SandboxFileError``."""
    _check(path)
    with _translated(path):
        await container.write(_partial(path), data, offset=offset, truncate=not offset, parents=parents and not offset)


async def commit_file(container: Container, path: str, size: int, committed: dict[str, tuple[int, str]]) -> str:
    """Put the temporary file in the place of ``path`` and return its digest. Raises ``SandboxFileError``.

    ``committed`` has the files of earlier commits, for a commit that is repeated.
    """
    _check(path)
    partial = _partial(path)
    with _translated(path):
        try:
            digest, written = await container.digest(partial)
        except FileNotFoundError:
            earlier = committed.get(path)
            if earlier is not None and earlier[0] == size:
                return earlier[1]
            raise
        if written != size:
            raise SandboxFileChanged(f"{written} bytes of {path} were written, not {size}")
        await container.rename(partial, path)
    committed[path] = (size, digest)
    return digest


def _partial(path: str) -> str:
    # Of a fixed length: a name of 255 bytes has no room for more.
    return f"{posixpath.dirname(path).rstrip('/')}/.ors-part-{hashlib.sha256(path.encode()).hexdigest()[:24]}"


def _check(path: str) -> None:
    if not posixpath.isabs(path) or posixpath.normpath(path) != path or path == "/" or "\0" in path:
        raise SandboxFileError(f"{path!r} is not an absolute path of a file without `.`, `..` and double slashes")


@contextmanager
def _translated(path: str) -> Generator[None]:
    """Turn the errors of ``ors_containers`` into the server's, which are never a 5xx: a retry would not help."""
    from ors_containers.errors import FileError, InvalidCommand, SandboxError

    try:
        yield
    except FileNotFoundError as error:
        raise SandboxFileMissing(f"There is no file {path}") from error
    except (FileError, InvalidCommand) as error:
        raise SandboxFileError(str(error)) from error
    except SandboxError as error:
        raise SessionGone(f"Sandbox lost: {error}") from error
