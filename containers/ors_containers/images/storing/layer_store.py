"""Layers by their keys, each made once by the threads, tasks and processes of a machine.

A key is the digest of a layer's inputs, so a layer that exists is valid. A layer is made in ``tmp`` under a file lock
and renamed into ``layers`` when it is complete. ``remove_unused`` keeps the layers that living processes use
(``layer_leases``), and those of ``holds``.

Invariants: a folder in ``layers`` is complete. What a killed process left in ``tmp`` is removed by the next process. A
layer is removed only when no record names it, no living process uses it and no hold keeps it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ors_containers.errors import StoreFailed
from ors_containers.images.storing.holds import held_layers
from ors_containers.images.storing.layer_leases import MARK_INTERVAL, LayerLeases
from ors_containers.images.storing.records import LayerInformation
from ors_containers.images.storing.singleflight import SingleFlight
from ors_containers.images.storing.store_folder import prepare_folder, store_errors
from ors_containers.layers.ownership import LayerOwners
from ors_containers.layers.sharing import remove_unshared
from ors_containers.layers.tree import exclusive_bytes
from ors_containers.linux.file_locks import create_lock, locked, try_locked
from ors_containers.linux.public_folders import make_folder

__all__ = ["LayerStore", "RemovedLayers", "layer_key", "new_upper"]

_FORMAT = 1


def layer_key(*parts: object) -> str:
    """Return the key of a layer made from ``parts``, which are JSON values."""
    text = json.dumps([_FORMAT, *parts], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def new_upper(folder: Path) -> Path:
    """Create the ``upper`` of a folder given to ``fill``: the layer's root, readable by everybody."""
    upper = folder / "upper"
    upper.mkdir()
    upper.chmod(0o755)
    return upper


class RemovedLayers(NamedTuple):
    """Layers that were removed, and the bytes that the disk got back, which it did not of files that others share."""

    keys: Sequence[str]
    size: int


class LayerStore:
    """The layers below one folder. For one event loop at a time."""

    def __init__(self, root: Path, owners: LayerOwners) -> None:
        self.root = root
        self.owners = owners
        #: Limits the build sandboxes that run at a time; more of them would be slower for all.
        self.builds = asyncio.Semaphore(2 * (os.cpu_count() or 1))
        self._in_progress: SingleFlight[int] = SingleFlight()
        self._swept = False
        self._leases = LayerLeases(root / "leases")

    @property
    def pool(self) -> Path:
        """The folder of the files that layers share."""
        return self.root / "pool"

    @property
    def holds(self) -> Path:
        """The folder of the holds (``holds``)."""
        return self.root / "holds"

    def path(self, key: str) -> Path:
        """Return the path of a layer, which may not exist."""
        return self.root / "layers" / key

    def key_of(self, layer: Path) -> str | None:
        """Return the key of a layer of this store; None for a folder elsewhere."""
        return layer.name if layer.parent == self.root / "layers" else None

    def use(self, keys: Iterable[str]) -> bool:
        """Record that this process uses these layers for as long as it lives; False where one does not exist."""
        new = self._leases.unmarked(keys)
        if not new:
            return True
        if not all(self.path(key).is_dir() for key in new):
            return False
        with store_errors(self.root):
            self._prepare()
            with self._removal_lock(shared=True):
                if not all(self.path(key).is_dir() for key in new):
                    return False
                self._leases.mark(new)
                for key in new:
                    with contextlib.suppress(OSError):
                        os.utime(self._notes(key))
        return True

    def release(self, keys: Iterable[str]) -> None:
        """End this process's use of layers, which others may remove from then on. Raises ``StoreFailed``."""
        if self._leases.is_open:  # else it uses none
            with store_errors(self.root), self._removal_lock(shared=True):
                self._leases.release(keys)

    async def provide(
        self,
        key: str,
        made_by: str,
        fill: Callable[[Path], Awaitable[int]],
        *,
        recipe: bool = False,
        shared: bool = False,
    ) -> Path:
        """Return the layer of that key; where it is missing, have ``fill`` make it.

        ``fill`` gets an empty folder, makes the layer in its ``upper`` (``new_upper``) and returns the layer's size.
        Concurrent calls for the key wait, in this process and in others. Raises what ``fill`` raises, in every waiter
        of this process, and ``StoreFailed``.

        Files of a ``shared`` layer are on the disk once with equal files of other shared layers (``layers.sharing``).
        An image has one such layer at most: two files of one root must not be one.
        """
        if not self.use([key]):
            await self._in_progress.do(key, lambda: self._make(key, made_by, fill, recipe, shared))
        return self.path(key)

    async def keep(self, layer: Path, made_by: str, since: float) -> tuple[str, int]:
        """Copy a layer that is not in the store, and share it; return its key, which its content gives, and its size.

        Files that were changed after ``since``, in seconds since 1970, get one time for all. Raises ``StoreFailed``.
        """
        with store_errors(self.root):
            async with self.folder() as folder:
                size = await self.owners.keep(str(layer), folder / "upper")
                digest = await self.owners.share(folder / "upper", self.pool, since)
                key = layer_key("kept", self.owners.tag, digest)

                async def fill(place: Path) -> int:
                    (folder / "upper").rename(place / "upper")
                    return size

                await self.provide(key, made_by, fill)
        return key, size

    async def _make(
        self, key: str, made_by: str, fill: Callable[[Path], Awaitable[int]], recipe: bool, shared: bool
    ) -> int:
        with store_errors(self.root):
            self._prepare()
            async with self._maker_lock(key):
                if self.use([key]):
                    return self.size(key)
                async with self.folder() as folder:
                    begun = time.time()
                    size = await fill(folder)
                    if shared:
                        await self.owners.share(folder / "upper", self.pool, begun)
                    notes = {"size": size, "made_by": made_by, "recipe": recipe}
                    self._notes(key).touch(mode=0o644)  # as `ImageRecord.save`
                    self._notes(key).write_text(json.dumps(notes))
                    with self._removal_lock(shared=True):
                        (folder / "upper").rename(self.path(key))
                if not self.use([key]):
                    raise StoreFailed(f"Layer {key[:12]} was taken away as it was made")
                return size

    @contextlib.asynccontextmanager
    async def folder(self) -> AsyncGenerator[Path]:
        """Yield a working folder that is removed afterwards, or by the next process when this one is killed."""
        if not self._swept:
            self._swept = True
            await self._sweep()
        self._prepare()
        while True:
            place = self.root / "tmp" / secrets.token_hex(8)
            lock = create_lock(place.with_suffix(".lock"))
            if lock is not None:
                break
        try:
            make_folder(place)
            try:
                yield place
            finally:
                # Shielded: a cancelled caller waits for the removal as well.
                await asyncio.shield(asyncio.ensure_future(self.owners.remove(place)))
        finally:
            place.with_suffix(".lock").unlink(missing_ok=True)
            os.close(lock)

    def list(self) -> list[LayerInformation]:
        """Return every layer, the most recently used first."""
        found: list[LayerInformation] = []
        for path in (self.root / "layers").glob("*.json"):
            key = path.name.removesuffix(".json")
            if self.path(key).is_dir():
                with contextlib.suppress(OSError, ValueError, TypeError):
                    notes = json.loads(path.read_text())
                    found.append(LayerInformation(key, used=path.stat().st_mtime, **notes))
        return sorted(found, key=lambda layer: -layer.used)

    def in_use(self) -> set[str]:
        """Return the layers that holds keep or living processes use. Removes the leases of dead ones."""
        return self._leases.in_use() | held_layers(self.holds)

    async def remove_unused(self, keys: Iterable[str]) -> RemovedLayers:
        """Remove those of the layers that no living process uses and no hold keeps."""
        removed: list[str] = []
        size = 0
        with store_errors(self.root):
            self._prepare()
            async with self.folder() as folder:
                with self._removal_lock():
                    used = self.in_use()
                    for key in keys:
                        if key not in used:
                            with contextlib.suppress(FileNotFoundError):
                                self.path(key).rename(folder / key)
                                removed.append(key)
                            self._notes(key).unlink(missing_ok=True)
                size = await asyncio.to_thread(exclusive_bytes, folder) if removed else 0
            if removed:
                size += await asyncio.to_thread(remove_unshared, self.pool)
        return RemovedLayers(removed, size)

    def close(self) -> None:
        """Release the layers that this process uses."""
        self._leases.close()

    def size(self, key: str) -> int:
        """Return the bytes of a layer; 0 where they are unknown."""
        try:
            return json.loads(self._notes(key).read_text())["size"]
        except (OSError, ValueError, KeyError):
            return 0

    async def _sweep(self) -> None:
        """Remove what killed processes left: working folders, lock files, leases, notes of layers without a folder."""
        with store_errors(self.root):
            self._prepare()
            for path in (self.root / "tmp").glob("*.lock"):
                with contextlib.suppress(FileNotFoundError), try_locked(path) as is_dead:
                    if is_dead:
                        await self.owners.remove(path.with_suffix(""))
                        path.unlink(missing_ok=True)
            for path in (self.root / "locks").iterdir():
                with contextlib.suppress(FileNotFoundError), try_locked(path) as is_dead:
                    if is_dead:
                        path.unlink(missing_ok=True)
            self._leases.in_use()
            for notes in (self.root / "layers").glob("*.json"):
                key = notes.name.removesuffix(".json")
                if not self.path(key).is_dir() and time.time() - notes.stat().st_mtime > MARK_INTERVAL:
                    notes.unlink(missing_ok=True)

    def _notes(self, key: str) -> Path:
        return self.root / "layers" / f"{key}.json"

    def _prepare(self) -> None:
        """Create the folders and this process's lease where they are missing."""
        if not self._leases.is_open:
            prepare_folder(self.root, set_owners=self.owners.mapping.by == "root")
            self._leases.open()

    def _removal_lock(self, *, shared: bool = False) -> contextlib.AbstractContextManager[None]:
        """Lock the store against removing layers (shared) or against using them (exclusive), for moments only."""
        return locked(self.root / "lock", shared=shared)

    @contextlib.asynccontextmanager
    async def _maker_lock(self, key: str) -> AsyncGenerator[None]:
        """Hold the lock of making one layer. Polls, because a thread that waits for a lock cannot be cancelled."""
        path = self.root / "locks" / key
        pause = 0.005
        while (lock := create_lock(path)) is None:
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.25)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(lock)
