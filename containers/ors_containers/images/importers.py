"""Import of images into the store: folders, tar archives, OCI and docker archives, SIF files.

Invariant: an image gets its name when all its layers exist. A layer that was imported before is not unpacked again.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import stat
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ors_containers.errors import InvalidArchive, InvalidImage, ProgramMissing
from ors_containers.image import Image
from ors_containers.images.accounts import find_account
from ors_containers.images.archive_formats import ArchivedLayer, LayeredArchive, find_squashfs, kind_of, read_layered
from ors_containers.images.building.script_variables import apptainer_environment
from ors_containers.images.progress import Progress, Step
from ors_containers.images.repository import ImageRepository
from ors_containers.images.storing.layer_store import layer_key, new_upper
from ors_containers.images.storing.records import ImageRecord
from ors_containers.layers.tar import decompressed
from ors_containers.layers.tree import LayeredTree
from ors_containers.layers.writer import too_large

__all__ = ["Imported", "check_image", "import_host", "import_image", "import_layers"]

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Imported:
    """Layers in the store, the top one first, and the image's configuration from its archive."""

    layers: tuple[str, ...]
    origin: str
    user: str = ""
    directory: str = ""
    environment: dict[str, str] = field(default_factory=dict[str, str])
    labels: dict[str, str] = field(default_factory=dict[str, str])
    config: dict[str, Any] = field(default_factory=dict[str, Any])


async def import_image(
    images: ImageRepository, path: Path, name: str, user: str, progress: Progress | None, *, source: str = ""
) -> ImageRecord:
    """Import an image and save its record; see ``ImageStore.import_image``.

    ``source`` is shown as the image's origin instead of ``path``.
    """
    found = await import_layers(images, path, progress)
    record = ImageRecord(
        name=name,
        layers=found.layers,
        environment=found.environment,
        labels=found.labels,
        config={**found.config, "User": user or found.user},
        # A relative path, or one with `..`, is ignored.
        directory=found.directory if found.directory.startswith("/") and ".." not in found.directory else "",
        source=source or str(path),
        origin=found.origin,
    )
    return images.save(await images.provide_account(record, user or found.user))


async def import_host(images: ImageRepository, host: Image, progress: Progress | None) -> ImageRecord:
    """Import this machine's own image as one that others can be built on, and return its record without saving it."""
    imported = await import_layers(images, host.layers[0], progress)
    binds = tuple((str(path), target) for path, target in host.binds)
    return ImageRecord(name="host", layers=imported.layers, binds=binds, config={})


async def import_layers(images: ImageRepository, path: Path, progress: Progress | None) -> Imported:
    """Import the layers of an image without saving a record.

    Raises the errors of ``ImageStore.import_image``: ``InvalidImage`` and its subclasses, ``ProgramMissing``,
    ``StoreFailed``.
    """
    try:
        path, kind = await asyncio.to_thread(_detect, path)
    except OSError as error:
        raise InvalidImage(f"{path} cannot be read: {error.strerror}") from error
    importer = _Importer(images, progress)
    if kind == "folder":
        return await importer.folder(path)
    if kind == "layered":
        return await importer.layered(await asyncio.to_thread(read_layered, path))
    if kind == "packed":
        async with images.layers.folder() as folder:
            importer.report(f"Decompressing {path.name}")
            plain = folder / "plain.tar"
            await asyncio.to_thread(_decompress, path, plain, images.max_size)
            return await importer.layered(await asyncio.to_thread(read_layered, plain))
    if kind == "sif":
        return await importer.sif(path)
    return await importer.tar(path)


def check_image(path: Path) -> str:
    """Return the kind of an image file: ``folder``, or a kind of ``archives.kind_of``. Reads only its beginning.

    Raises ``InvalidImage`` where that shows that it is not an image, and ``ProgramMissing``.
    """
    try:
        path, kind = _detect(path)
        if kind == "folder":
            _check_folder(path)
        elif kind == "sif":
            find_squashfs(path)
            _unsquashfs(path)
    except OSError as error:
        raise InvalidImage(f"{path} cannot be read: {error.strerror}") from error
    return kind


def _detect(path: Path) -> tuple[Path, str]:
    path = path.absolute()
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        return path, "layered" if (path / "oci-layout").is_file() else "folder"
    if not stat.S_ISREG(mode):  # opening a pipe would wait for a writer
        raise InvalidImage(f"{path} is neither a regular file nor a directory")
    return path, kind_of(path)


def _check_folder(path: Path) -> None:
    if not any((path / name).exists() for name in ("bin", "usr")):
        raise InvalidImage(f"{path} is not a root file system: it has neither bin nor usr")


def _unsquashfs(path: Path) -> str:
    program = shutil.which("unsquashfs")
    if program is None:
        raise ProgramMissing(
            f"{path.name} is a SIF, which takes unsquashfs to read", "Debian, Ubuntu: apt install squashfs-tools"
        )
    return program


class _Importer:
    """One import, with its progress and the bytes it may still write."""

    def __init__(self, images: ImageRepository, progress: Progress | None) -> None:
        self._images = images
        self._layers = images.layers
        self._progress = progress
        self._left = images.max_size

    def report(self, text: str, done: int = 0) -> None:
        if self._progress is not None:
            self._progress(Step(text, done=done))

    def _counter(self, text: str) -> Callable[[int], None]:
        return lambda done: self.report(text, done)

    async def layered(self, archive: LayeredArchive) -> Imported:
        """Import an image of layers, the lowest layer first."""
        keys: list[str] = []
        below: list[Path] = []
        for number, layer in enumerate(archive.layers, 1):
            # The layers below are part of the key: links in them redirect paths, and they own unnamed directories.
            key = layer_key("layer", self._layers.owners.tag, keys[-1] if keys else "", layer.digest)
            text = f"Unpacking layer {number} of {len(archive.layers)}"
            under = tuple(reversed(below))

            async def fill(
                folder: Path, layer: ArchivedLayer = layer, under: Sequence[Path] = under, text: str = text
            ) -> int:
                upper = new_upper(folder)
                done = await self._layers.owners.unpack(
                    layer.archive,
                    upper,
                    under,
                    member=layer.member,
                    limit=self._left,
                    digest=layer.digest,
                    progress=self._counter(text),
                )
                return done.size

            below.append(await self._provide(key, f"layer of {layer.archive.name}", fill))
            keys.append(key)
        if not keys:
            raise InvalidArchive("The archive's image has no layers")
        return Imported(
            layers=tuple(reversed(keys)),
            origin=f"image:{archive.digest}",
            user=archive.user,
            directory=archive.directory,
            environment=dict(archive.environment),
            labels=dict(archive.labels),
            config=dict(archive.config),
        )

    async def tar(self, path: Path) -> Imported:
        """Import a tar archive of a root file system."""
        self.report(f"Reading {path.name}")
        digest = await asyncio.to_thread(_digest, path)
        key = layer_key("tar", self._layers.owners.tag, digest)

        async def fill(folder: Path) -> int:
            done = await self._layers.owners.unpack(
                path, new_upper(folder), limit=self._left, progress=self._counter(f"Unpacking {path.name}")
            )
            return done.size

        await self._provide(key, f"import of {path.name}", fill)
        return Imported((key,), f"tar:{digest}")

    async def folder(self, path: Path) -> Imported:
        """Import an unpacked root file system."""
        _check_folder(path)
        described = await asyncio.to_thread(_describe, path)
        key = layer_key("folder", self._layers.owners.tag, described)
        account = find_account(LayeredTree([path]))

        async def fill(folder: Path) -> int:
            try:
                done = await self._layers.owners.copy(
                    path,
                    new_upper(folder),
                    limit=self._left,
                    home=account.home,
                    home_user=account.user,
                    home_group=account.group,
                    progress=self._counter(f"Copying {path.name}"),
                )
            except PermissionError as error:
                raise InvalidImage(f"{error.filename or path} cannot be read", "Import it as its owner") from error
            return done.size

        await self._provide(key, f"import of {path.name}", fill)
        return await self._with_environment(Imported((key,), f"folder:{described}"), path.name)

    async def sif(self, path: Path) -> Imported:
        """Import Apptainer's image file, a squashfs with a header, with unsquashfs."""
        begin = find_squashfs(path)
        program = _unsquashfs(path)
        self.report(f"Reading {path.name}")
        digest = await asyncio.to_thread(_digest, path)
        key = layer_key("sif", self._layers.owners.tag, digest)

        async def fill(folder: Path) -> int:
            self.report(f"Unpacking {path.name}")
            return await self._layers.owners.unsquash(path, new_upper(folder), program, begin, limit=self._left)

        await self._provide(key, f"import of {path.name}", fill)
        return await self._with_environment(Imported((key,), f"sif:{digest}"), path.name)

    async def _provide(self, key: str, made_by: str, fill: Callable[[Path], Awaitable[int]]) -> Path:
        path = await self._layers.provide(key, made_by, fill)
        self._left -= self._layers.size(key)
        if self._left < 0:
            raise too_large(self._images.max_size)
        return path

    async def _with_environment(self, found: Imported, name: str) -> Imported:
        """Add the variables that Apptainer's scripts in the image set."""
        paths = [self._layers.path(key) for key in found.layers]
        if LayeredTree(paths).find(".singularity.d/env") is None:
            return found
        environment = await apptainer_environment(self._images, found.layers, name)
        return replace(found, environment=environment)


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _describe(folder: Path) -> str:
    """Return a digest of the names, kinds, sizes, owners and times of a folder's files; reads no file."""
    digest = hashlib.sha256(str(folder).encode(errors="surrogateescape"))
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        try:
            status = place.lstat()
            inner = sorted(place.iterdir()) if stat.S_ISDIR(status.st_mode) else []
        except OSError as error:
            raise InvalidImage(f"{error.filename} cannot be read: {error.strerror}") from error
        about = (status.st_mode, status.st_size, status.st_uid, status.st_gid, status.st_mtime_ns, status.st_ino)
        digest.update(os.fsencode(place) + repr(about).encode())
        waiting += inner
    return digest.hexdigest()


def _decompress(path: Path, plain: Path, limit: int) -> None:
    written = 0
    try:
        with path.open("rb") as stream, decompressed(stream) as source, plain.open("wb") as target:
            while chunk := source.read(_CHUNK):
                written += len(chunk)
                if written > limit:
                    raise too_large(limit)
                target.write(chunk)
    except EOFError as error:
        raise InvalidArchive(f"{path} is cut short: {error}") from error
