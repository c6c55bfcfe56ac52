"""Images by the names that environments use: the image map, the store, and what the map says how to make.

    images = ImageMap(ImageStore())
    image = await images.resolve("generalreasoning/python-ds:3.12-tools")

Invariant: an image is made once, however many requests wait for it. A map that was changed holds from the next request
on. A Dockerfile or definition is looked at again only in the next process, or after its row was changed.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ors_containers.errors import (
    BuildNeedsNetwork,
    InvalidDefinition,
    InvalidImage,
    SandboxError,
    UnknownImage,
)
from ors_containers.image import Image, host_image
from ors_containers.images.map_file import MapRow, default_map_path, read_image_map
from ors_containers.images.progress import Progress
from ors_containers.images.references import parse_reference, store_names
from ors_containers.images.registry import fetch_image, find_fetcher
from ors_containers.images.store import ImageStore
from ors_containers.images.storing.records import ImageRecord
from ors_containers.images.storing.singleflight import SingleFlight

__all__ = ["ImageMap", "Lookup"]

#: Sources that are checked for changes by building them again, which does nothing where nothing has changed.
_BUILT = ("dockerfile", "definition")
#: The names that are being made, each for the one before: a Dockerfile may start from another name of the map.
_chain: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("ors_image_map_chain", default=())


@dataclass(frozen=True, slots=True)
class Lookup:
    """The image that a name means, without making it."""

    name: str
    #: Its row of the map; None for an image of the store that no pattern names.
    row: MapRow | None
    #: Whether the store has the image.
    ready: bool
    #: The error of ``resolve``, where it can be foreseen; None for an image that is ready or can be made.
    problem: SandboxError | None = None


class ImageMap:
    """The images of a store by the names of the map. For one event loop at a time."""

    def __init__(self, store: ImageStore, path: Path | None = None) -> None:
        self.store = store
        self.path = path or default_map_path()
        self._rows: tuple[MapRow, ...] = ()
        self._read: object = None
        self._in_progress: SingleFlight[ImageRecord] = SingleFlight()
        #: Names that this process has made or checked, with the stamp of their row.
        self._made: dict[str, str] = {}

    def rows(self) -> tuple[MapRow, ...]:
        """Return the rows of the map, read again where the file has changed. Raises ``InvalidDefinition``."""
        try:
            status = self.path.stat()
            now: object = (status.st_mtime_ns, status.st_ino, status.st_size)
        except OSError:
            now = None
        if now is None or now != self._read:
            self._rows = read_image_map(self.path)
            self._read = now
        return self._rows

    async def resolve(self, name: str, *, progress: Progress | None = None) -> Image:
        """Return the image of that name as Docker runs it; make it where the map says how and the store lacks it.

        Raises ``UnknownImage`` for a name without an image: it names the map's file and the command that provides the
        image. Raises ``InvalidDefinition`` for a mistake in the map or in a Dockerfile, ``ProgramMissing``, and the
        errors of imports and builds.
        """
        if name == "host":
            return host_image(self.store.state)
        return self.store.docker_image(await self.record(name, progress=progress))

    async def record(self, name: str, *, progress: Progress | None = None) -> ImageRecord:
        """Return the record of the image of that name; see ``resolve``."""
        if name == "host":
            return await self.store.base(name)
        row = self._row(name)
        if row is None or row.kind == "image":
            return self._stored(name, row)
        stamp = await asyncio.to_thread(self._stamp, row)
        target = _store_name(name)
        if self._made.get(target) == stamp and self._exists(target):
            return self.store.record(target)
        chain = _chain.get()
        if target in chain:
            raise InvalidDefinition(str(self.path), 0, f"{' needs '.join((*chain, target))}: that is a circle")
        made = await self._in_progress.do(
            (target, stamp), lambda: self._make(name, row, stamp, (*chain, target), progress)
        )
        self._made[target] = stamp
        return made

    def look_up(self, name: str) -> Lookup:
        """Return what ``resolve`` would do, without making anything. Raises ``InvalidDefinition`` for the map."""
        if name == "host":
            return Lookup(name, None, ready=True)
        row = self._row(name)
        if row is None or row.kind == "image":
            try:
                self._stored(name, row)
            except SandboxError as error:
                return Lookup(name, row, ready=False, problem=error)
            return Lookup(name, row, ready=True)
        target = _store_name(name)
        if self._exists(target) and (row.kind in _BUILT or self._is_ready(row, target, self._stamp(row))):
            return Lookup(name, row, ready=True)
        try:
            self._check(name, row)
        except SandboxError as error:
            return Lookup(name, row, ready=False, problem=error)
        return Lookup(name, row, ready=False)

    def _row(self, name: str) -> MapRow | None:
        for row in self.rows():
            found = row.match(name)
            if found is not None:
                return row.filled(name, found)
        return None

    def _stored(self, name: str, row: MapRow | None) -> ImageRecord:
        """Return the image of the store that a name or its row means. Raises ``UnknownImage``."""
        wanted = name if row is None else row.value
        for candidate in store_names(wanted):
            if self._exists(candidate):
                return self.store.record(candidate)
        known = f"{self.path} has no pattern for it" if row is None else f"{self.path} maps {row.pattern!r} to {wanted}"
        if row is None and not self.path.exists():
            known = f"there is no image map {self.path}"
        raise UnknownImage(
            f"There is no image {name}: {known}, and the store {self.store.root} has no image {wanted}",
            f"Import it: ors-server image import FILE --name {wanted}; build it: ors-server image build -f Dockerfile "
            f"FOLDER --name {wanted}; or give it a row in {self.path}: ors-server image map --help",
        )

    def _exists(self, name: str) -> bool:
        return ImageRecord.exists(self.store.root / "images", name)

    def _is_ready(self, row: MapRow, target: str, stamp: str) -> bool:
        """Return whether the image ``target`` of the store needs no work: after an import, its file may be removed."""
        if row.kind != "registry" and not self._file(row.value).exists():
            return True
        return row.kind not in _BUILT and self.store.record(target).stamp == stamp

    def _file(self, text: str) -> Path:
        return self.path.parent / Path(text).expanduser()

    def _stamp(self, row: MapRow) -> str:
        """Return a digest of a row, and of the time of its file."""
        about: list[object] = [row.kind, row.value, dict(row.options)]
        if row.kind != "registry":
            try:
                status = self._file(row.value).stat()
                about.append([status.st_mtime_ns, status.st_size, status.st_ino])
            except OSError:
                about.append(None)
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()

    def _check(self, name: str, row: MapRow) -> None:
        """Raise the errors of making an image that can be found without making it."""
        if row.kind == "registry":
            parse_reference(name)
            find_fetcher(name, place=f"{self.path}, {row.pattern!r}: ")
        elif not self._file(row.value).exists():
            raise UnknownImage(
                f"There is no image {name}: {self.path} says that {row.pattern!r} is made from the {row.kind} "
                f"{self._file(row.value)}, which does not exist",
                f"Put the file there, or import the image: ors-server image import FILE --name {_store_name(name)}",
            )

    async def _make(
        self, name: str, row: MapRow, stamp: str, chain: tuple[str, ...], progress: Progress | None
    ) -> ImageRecord:
        _chain.set(chain)  # in the task of this flight, whose builds inherit it
        target = _store_name(name)
        place = self._file(row.value)
        if self._exists(target) and self._is_ready(row, target, stamp):
            return self.store.record(target)
        self._check(name, row)
        options: Mapping[str, Any] = row.options
        try:
            match row.kind:
                case "archive":
                    await self.store.import_image(place, target, user=options.get("user", ""), progress=progress)
                case "registry":
                    reference = parse_reference(name)
                    if reference.registry == "docker.io":
                        reference = replace(reference, registry=row.value)
                    await fetch_image(self.store, reference.full, target, progress, place=f"{self.path}: ")
                case "dockerfile":
                    await self.store.build_dockerfile(
                        place,
                        self._file(options["context"]) if "context" in options else place.parent,
                        name=target,
                        arguments=options.get("args", {}),
                        target=options.get("target", ""),
                        network=options.get("network", False),
                        find_base=self.record,
                        progress=progress,
                    )
                case _:
                    await self.store.build(
                        place,
                        name=target,
                        network=options.get("network", False),
                        host_files=options.get("host_files", False),
                        progress=progress,
                    )
        except BuildNeedsNetwork as error:
            remedy = f"It seems to need a network: add `network = true` to {row.pattern!r} in {self.path}"
            raise BuildNeedsNetwork(error.cause, remedy, output=error.output) from error
        record = replace(self.store.record(target), stamp=stamp)
        return self.store.save(record)


def _store_name(name: str) -> str:
    """Return the name under which the store keeps what the map made."""
    try:
        return parse_reference(name).short
    except InvalidImage:
        return name
