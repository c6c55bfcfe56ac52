"""The data folders of environments, which sandboxes may mount and ``orwd upload`` fills.

A hosted environment's process has a key of its own, for which only its own folder exists.

``serve`` has them below its data directory. ``host`` writes those of its environments into a file: a folder that the
operator named, or one of the data directory, which the environment's process sees at ``/orwd_data``.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import anyio
import anyio.to_thread

from ors_server.errors import OrsError, RequestError
from ors_server.hosting.errors import UnknownEnvironment
from ors_server.keys.key import Key
from ors_server.sandbox_service.errors import InvalidSandbox

__all__ = ["DataFolder", "DiskRefused", "FindFolder", "Listing", "UnknownFile", "folders_below", "listed_folders"]

#: Returns the data folder of an environment, ``owner/Name`` or ``Name``, for a key.
FindFolder = Callable[[str, Key], Path]

_PARTIAL = ".ors-upload-"


def folders_below(root: Path) -> FindFolder:
    """Find each environment's folder below ``root``, by its name without an owner."""

    def find(environment: str, key: Key) -> Path:
        del key  # of no hosted environment
        name = environment.rpartition("/")[2].lower()
        if not name or name.startswith(".") or "\0" in name:
            raise InvalidSandbox(f"environment: {environment!r} is not the name of an environment")
        return root / name

    return find


def listed_folders(file: Path) -> FindFolder:
    """Find the folders in a JSON object of folders by names in lower case, which is read again each time.

    An environment's author may have another name for it: for an environment's own key, and where there is a single
    folder, a name that is not listed is that of the one folder that can be meant.
    """

    def find(environment: str, key: Key) -> Path:
        folders: dict[str, str] = json.loads(file.read_text("utf-8"))
        name = environment.strip().lower()
        found = folders.get(name) or folders.get(name.rpartition("/")[2])
        own = folders[key.environment.lower()] if key.environment else ""
        reachable = {own} if own else set(folders.values())
        if found is None and len(reachable) == 1:
            (found,) = reachable
        if found not in reachable:
            raise UnknownEnvironment(environment, [each for each, folder in folders.items() if folder in reachable])
        return Path(found)

    return find


class UnknownFile(RequestError):
    """A data folder has no file of this name."""

    status = 404


class InvalidPath(RequestError):
    """The path of a file leads out of its data folder."""


class DiskRefused(OrsError):
    """The disk of a data folder takes no more, or cannot be written."""

    status = 507


class Listing(NamedTuple):
    """A page of a data folder."""

    files: list[tuple[str, int]]
    folders: list[str]
    #: The name after which the next page begins; None after the last.
    next: str | None


class DataFolder:
    """The files of one environment, by their paths below its folder. Links in it are not followed out of it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def empty(self) -> bool:
        """True where there is nothing to mount."""
        try:
            return next(os.scandir(self.path), None) is None
        except OSError:
            return True

    def find(self, name: str) -> Path:
        """Return the place of a file or folder. Raises ``InvalidPath``."""
        parts = PurePosixPath(name).parts
        if not parts or "\0" in name or not _encodable(name) or name.startswith("/") or ".." in parts:
            raise InvalidPath(
                f"{name!r} is not a path of a data folder", "Name a path without a leading slash and `..`."
            )
        place = self.path.joinpath(*parts)
        try:
            inside = place.parent.resolve().is_relative_to(self.path.resolve())
        except (OSError, RuntimeError):  # a name that is too long; a link to itself
            inside = False
        if not inside:
            raise InvalidPath(f"{name!r} leads out of the data folder", "It goes through a link.")
        return place

    async def write(self, name: str, chunks: AsyncIterator[bytes]) -> int:
        """Write a file in the place of what has its name, and return its size.

        Raises ``InvalidPath`` and ``DiskRefused``.
        """
        try:
            return await self._write(name, chunks)
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno in (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
                raise InvalidPath(f"{name!r} cannot be written: {reason}", "Choose another path.") from None
            raise DiskRefused(f"{name!r} cannot be written: {reason}", "Free space in its data folder.") from None

    async def _write(self, name: str, chunks: AsyncIterator[bytes]) -> int:
        # Each step on a thread: a folder may be on a disk of the network.
        place = await anyio.to_thread.run_sync(self._prepare, name)
        partial = anyio.Path(place.with_name(f"{_PARTIAL}{os.urandom(6).hex()}"))
        try:
            size = 0
            async with await partial.open("wb") as file:
                async for chunk in chunks:
                    size += await file.write(chunk)
            await partial.replace(place)
        finally:
            await partial.unlink(missing_ok=True)
        return size

    def _prepare(self, name: str) -> Path:
        """Return the place of a file that is about to be written, in a folder that is there."""
        place = self.find(name)
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_dir():
            raise InvalidPath(f"{name!r} is a folder", "Delete it first.")
        return place

    def list(self, prefix: str, limit: int, after: str) -> Listing:
        """List the files whose paths begin with ``prefix``, in order, and the folders at the top of the listing."""
        paths = sorted(path for path in self._paths() if path.startswith(prefix) and path > after)
        page = paths[:limit]
        files = [(path, self._size(path)) for path in page]
        folders = sorted({path[: path.index("/", len(prefix))] for path in page if "/" in path[len(prefix) :]})
        return Listing(files, folders, page[-1] if len(paths) > limit else None)

    def delete(self, name: str) -> None:
        """Delete one file. Raises ``UnknownFile`` and ``InvalidPath``."""
        place = self.find(name)
        if not place.is_file() and not place.is_symlink():
            raise UnknownFile(f"There is no file {name!r}", "`orwd files` lists them.")
        place.unlink()

    def delete_folder(self, name: str) -> int:
        """Delete a folder; return the number of its files. Raises ``UnknownFile`` and ``InvalidPath``."""
        place = self.find(name.rstrip("/"))
        if not place.is_dir() or place.is_symlink():
            raise UnknownFile(f"There is no folder {name!r}", "`orwd files` lists them.")
        count = sum(len(files) for _, _, files in os.walk(place))
        shutil.rmtree(place)
        return count

    def _size(self, path: str) -> int:
        try:
            return (self.path / path).stat().st_size
        except OSError:  # it was deleted meanwhile
            return 0

    def _paths(self) -> Iterator[str]:
        for folder, _, files in os.walk(self.path):
            for name in files:
                path = Path(folder, name)
                if not name.startswith(_PARTIAL) and path.is_file() and not path.is_symlink():
                    yield path.relative_to(self.path).as_posix()


def _encodable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True
