"""Layers by their keys, each made once: within a process, and by any number of processes of one machine.

A key is the digest of what makes the layer, so a layer that is there is right. It is made in ``tmp`` under a lock that
the kernel lets go when its maker ends, and gets its name last, in one step. A process that has been given a layer
writes that down in its own file of ``leases``, under a lock for as long as it lives: ``take_away`` spares those.

Invariants: a folder in ``layers`` is whole; what a maker that died left in ``tmp`` is removed by the next; a layer is
taken away only when no record and no living process has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path

from ors_containers.errors import StoreFailed
from ors_containers.images.singleflight import Flights
from ors_containers.layers.ownership import LayerOwners

__all__ = ["LayerInformation", "LayerStore", "store_errors"]

_MARK_EVERY = 3600.0
_FULL = (errno.ENOSPC, errno.EDQUOT)
#: File systems on which a layer cannot have owners of its own in a sandbox, or be written by one.
_UNFIT = ("overlay", "nfs", "nfs4", "cifs", "9p", "virtiofs", "vfat", "exfat")


@dataclass(frozen=True, slots=True)
class LayerInformation:
    """What is known of a layer besides what is in it."""

    key: str
    size: int
    #: What made it, for people.
    made_by: str
    #: Whether a recipe made it: it belongs to no image of the store.
    recipe: bool
    #: Seconds since 1970.
    used: float


class LayerStore:
    """The layers below one folder. For one event loop at a time."""

    def __init__(self, root: Path, owners: LayerOwners) -> None:
        self.root = root
        self.owners = owners
        #: Bounds how many build sandboxes run at a time; the others wait their turn, which is faster for all.
        self.builds = asyncio.Semaphore(2 * (os.cpu_count() or 1))
        self._flights: Flights[int] = Flights()
        self._marked: dict[str, float] = {}
        self._lease = -1
        self._lease_path: Path | None = None
        self._ready = False

    def path(self, key: str) -> Path:
        """Where a layer lies, whether it is there or not."""
        return self.root / "layers" / key

    def key_of(self, layer: Path) -> str | None:
        """The key of one of this store's layers."""
        return layer.name if layer.parent == self.root / "layers" else None

    def use(self, keys: Iterable[str]) -> bool:
        """Take layers into use by this process, for as long as it lives; False where one is not there."""
        now = time.time()
        new = [key for key in keys if now - self._marked.get(key, 0.0) > _MARK_EVERY]
        if not new:
            return True
        if not all(self.path(key).is_dir() for key in new):
            return False
        with store_errors(self.root):
            self._prepare()
            with self._locked(fcntl.LOCK_SH):
                if not all(self.path(key).is_dir() for key in new):
                    return False
                os.write(self._lease, "".join(f"{key}\n" for key in new if key not in self._marked).encode())
                for key in new:
                    self._marked[key] = now
                    with contextlib.suppress(OSError):
                        os.utime(self._notes(key))
        return True

    async def provide(
        self, key: str, made_by: str, fill: Callable[[Path], Awaitable[int]], *, recipe: bool = False
    ) -> Path:
        """The layer of that key. Where it is not there, ``fill`` is given an empty folder and puts the layer into its
        ``upper``; it returns the layer's size. Others who ask meanwhile wait, here and in other processes.

        Raises what ``fill`` raises, to all who wait in this process, and ``StoreFailed``.
        """
        if not self.use([key]):
            await self._flights.join(key, lambda: self._make(key, made_by, fill, recipe))
        return self.path(key)

    async def _make(self, key: str, made_by: str, fill: Callable[[Path], Awaitable[int]], recipe: bool) -> int:
        with store_errors(self.root):
            self._prepare()
            async with self._single(key):
                if self.use([key]):
                    return self.size(key)
                async with self.folder() as folder:
                    size = await fill(folder)
                    notes = {"size": size, "made_by": made_by, "recipe": recipe}
                    self._notes(key).write_text(json.dumps(notes))
                    with self._locked(fcntl.LOCK_SH):
                        (folder / "upper").rename(self.path(key))
                if not self.use([key]):
                    raise StoreFailed(f"Layer {key[:12]} was taken away as it was made")
                return size

    @contextlib.asynccontextmanager
    async def folder(self) -> AsyncGenerator[Path]:
        """A folder for work, which is removed afterwards: here, or by the next process when this one is killed."""
        self._prepare()
        place = self.root / "tmp" / secrets.token_hex(8)
        lock = _lock_file(place.with_suffix(".lock"))
        try:
            place.mkdir(mode=0o755)
            try:
                yield place
            finally:
                # A caller that was cancelled waits for this, too: half a tree is nobody's.
                await asyncio.shield(asyncio.ensure_future(self.owners.remove(place)))
        finally:
            place.with_suffix(".lock").unlink(missing_ok=True)
            os.close(lock)

    def list(self) -> list[LayerInformation]:
        """Every layer, the most recently used first."""
        found: list[LayerInformation] = []
        for path in (self.root / "layers").glob("*.json"):
            key = path.name.removesuffix(".json")
            if self.path(key).is_dir():
                with contextlib.suppress(OSError, ValueError, TypeError):
                    notes = json.loads(path.read_text())
                    found.append(LayerInformation(key, used=path.stat().st_mtime, **notes))
        return sorted(found, key=lambda layer: -layer.used)

    def in_use(self) -> set[str]:
        """Layers that a living process has, this one among them."""
        used: set[str] = set()
        for path in (self.root / "leases").glob("*"):
            lock = _open_if_there(path)
            if lock == -1:
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                used.update(path.read_text().split())
            else:
                path.unlink(missing_ok=True)  # its process has ended
            finally:
                os.close(lock)
        # Locks of one process do not exclude each other where a file was opened once only.
        return used | set(self._marked)

    async def take_away(self, keys: Iterable[str]) -> list[str]:
        """Remove layers that no living process has; those that were removed."""
        removed: list[str] = []
        with store_errors(self.root):
            self._prepare()
            async with self.folder() as folder:
                with self._locked(fcntl.LOCK_EX):
                    used = self.in_use()
                    for key in keys:
                        if key not in used:
                            with contextlib.suppress(FileNotFoundError):
                                self.path(key).rename(folder / key)
                                removed.append(key)
                            self._notes(key).unlink(missing_ok=True)
        return removed

    async def sweep(self) -> None:
        """Remove what makers that were killed have left."""
        with store_errors(self.root):
            self._prepare()
            for path in (self.root / "tmp").glob("*.lock"):
                lock = _open_if_there(path)
                if lock == -1:
                    continue
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    await self.owners.remove(path.with_suffix(""))
                    path.unlink(missing_ok=True)
                except BlockingIOError:
                    continue  # its maker lives
                finally:
                    os.close(lock)
            for path in (self.root / "locks").iterdir():
                lock = _open_if_there(path)
                if lock == -1:
                    continue
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink(missing_ok=True)
                os.close(lock)
            self.in_use()
            for notes in (self.root / "layers").glob("*.json"):
                key = notes.name.removesuffix(".json")
                if not self.path(key).is_dir() and time.time() - notes.stat().st_mtime > _MARK_EVERY:
                    notes.unlink(missing_ok=True)

    def close(self) -> None:
        """This process has no layer in use any more."""
        if self._lease != -1:
            if self._lease_path is not None:
                self._lease_path.unlink(missing_ok=True)
            os.close(self._lease)
            self._lease = -1
        self._marked.clear()
        self._ready = False

    def _notes(self, key: str) -> Path:
        return self.root / "layers" / f"{key}.json"

    def size(self, key: str) -> int:
        """Bytes of a layer."""
        try:
            return json.loads(self._notes(key).read_text())["size"]
        except (OSError, ValueError, KeyError):
            return 0

    def _prepare(self) -> None:
        """Make the folders and this process's lease."""
        if self._ready:
            return
        for name, mode in (("layers", 0o755), ("images", 0o755), ("locks", 0o700), ("leases", 0o700), ("tmp", 0o711)):
            (self.root / name).mkdir(mode=mode, parents=True, exist_ok=True)
        found = self.root.stat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise StoreFailed(
                f"{self.root} is not this user's alone",
                "Set ORS_IMAGES to a folder of your own that others cannot write",
            )
        kind = _file_system(self.root)
        if self.owners.mapping.by == "root" and kind in _UNFIT:
            raise StoreFailed(
                f"{self.root} is on {kind}, where files cannot be given to the ids of sandboxes",
                "Set ORS_IMAGES to a folder on ext4, xfs, btrfs or tmpfs; in a container, to a volume",
            )
        while self._lease == -1:
            path = self.root / "leases" / secrets.token_hex(8)
            lease = _lock_file(path)
            if os.fstat(lease).st_nlink:
                self._lease, self._lease_path = lease, path
            else:
                os.close(lease)  # somebody has looked for leases of dead processes just now
        self._ready = True

    @contextlib.contextmanager
    def _locked(self, how: int) -> Generator[None]:
        """The lock between giving layers out and taking them away; held for moments only."""
        lock = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, how)
            yield
        finally:
            os.close(lock)

    @contextlib.asynccontextmanager
    async def _single(self, key: str) -> AsyncGenerator[None]:
        """The lock of those who make one layer. Asked for again and again: a thread that waits cannot be cancelled."""
        path = self.root / "locks" / key
        pause = 0.005
        while True:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_nlink:
                    break
                os.close(lock)  # its last holder has removed it
            except BlockingIOError:
                os.close(lock)
                await asyncio.sleep(pause)
                pause = min(2 * pause, 0.25)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(lock)


def _lock_file(path: Path) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_APPEND, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _open_if_there(path: Path) -> int:
    """A descriptor of a file that its owner may be removing, or -1."""
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1


def _file_system(path: Path) -> str:
    """The kind of file system a folder is on."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0]
    return ""


@contextlib.contextmanager
def store_errors(root: Path) -> Generator[None]:
    """The disk's own troubles as ``StoreFailed``, with what to do about them."""
    try:
        yield
    except OSError as error:
        if error.errno is None or isinstance(error, TimeoutError) or hasattr(error, "cause"):
            raise
        remedy = "Set ORS_IMAGES to a folder that can be written"
        if error.errno in _FULL:
            remedy = "Free some space (`ors-server image prune`), or set ORS_IMAGES to a folder on another disk"
        elif error.errno == errno.ENOTSUP:
            remedy = "Set ORS_IMAGES to a folder on a file system with extended attributes: ext4, xfs or btrfs"
        place = f": {error.filename}" if error.filename else ""
        raise StoreFailed(f"The store in {root} cannot be written: {error.strerror}{place}", remedy) from error
