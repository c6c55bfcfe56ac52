"""The image store: a folder with layers by their keys and records by names.

    store = ImageStore()                       # $ORS_IMAGES, else ~/.cache/ors-server/images
    base = await store.import_image(Path("ubuntu_22.04.tar"))
    base = await store.build(Path("container.def"))
    base = await store.build_dockerfile(Path("Dockerfile"), Path("."))
    image = await store.derive(base, recipe)   # returns at once where it was made before

Invariant: an image that the store returns is complete and stays as long as this process lives. Neither another process
nor ``prune`` removes a layer that a living process uses.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ors_containers.container import FrozenFiles
from ors_containers.errors import UnknownImage
from ors_containers.image import Image, host_image
from ors_containers.images.apptainer_def.build import build_definition, check_definition
from ors_containers.images.building.derive import derived_image
from ors_containers.images.building.recipe import Recipe
from ors_containers.images.dockerfile.build import build_dockerfile
from ors_containers.images.dockerfile.plan import BaseFinder, BuildOptions
from ors_containers.images.importers import import_host, import_image
from ors_containers.images.progress import Progress, Step, line_progress
from ors_containers.images.references import store_names
from ors_containers.images.repository import DEFAULT_MAX_SIZE, ImageRepository
from ors_containers.images.storing.holds import Hold, find_holds, remove_expired
from ors_containers.images.storing.pruning import plan_pruning
from ors_containers.images.storing.records import ImageRecord, LayerInformation, checked_name, stem_of
from ors_containers.images.storing.singleflight import SingleFlight
from ors_containers.images.storing.store_folder import store_errors
from ors_containers.runtime import Runtime

__all__ = ["ImageStore", "KeptLayer", "Pruned"]


@dataclass(frozen=True, slots=True)
class Pruned:
    """The images and layers that ``prune`` has removed."""

    images: tuple[str, ...]
    layers: int
    #: Bytes that the disk got back.
    size: int


class KeptLayer(NamedTuple):
    """A layer that ``keep`` has made: its key in the store, and its bytes."""

    key: str
    size: int


class ImageStore(ImageRepository):
    """Images by name, and the ways to make them: import, build, derive.

    One store per process and folder is enough; any number of processes may share a folder. Its methods are for one
    event loop.
    """

    def __init__(
        self, root: Path | None = None, *, max_size: int = DEFAULT_MAX_SIZE, state: Path | None = None
    ) -> None:
        super().__init__(root, max_size=max_size, state=state)
        self._in_progress: SingleFlight[ImageRecord] = SingleFlight()

    async def import_image(
        self, path: Path, name: str | None = None, *, user: str = "", progress: Progress | None = None
    ) -> Image:
        """Import a folder, a tar archive of a root file system, an OCI or docker archive, an OCI layout or a SIF.

        ``name`` defaults to the file's; an image of that name is replaced. ``user`` is the user of the image's
        processes. It defaults to the user the image names, and is never root where the image names none.

        Raises ``InvalidImage`` and its subclasses, ``ProgramMissing`` where this machine cannot read the format, and
        ``StoreFailed``.
        """
        chosen = checked_name(name or stem_of(path.name))
        record = await self._in_progress.do(
            (chosen, str(path), user), lambda: import_image(self, path, chosen, user, progress)
        )
        return self.image_of(record)

    async def build(
        self,
        definition: Path,
        runtime: Runtime | None = None,
        *,
        name: str | None = None,
        network: bool = False,
        host_files: bool = False,
        progress: Progress | None = None,
    ) -> Image:
        """Build an Apptainer definition file; return at once if it was built before and has not changed.

        ``runtime`` provides the image of a definition ``From: host``. With ``network``, ``%post`` has this machine's
        network. ``host_files`` is for definitions that the caller trusts: ``%files`` and ``From`` may then name any
        file of this machine, which every user of a sandbox of the image can read, and debootstrap may run as root
        without a sandbox. Otherwise all files that a definition names must lie in its own folder.

        Raises ``InvalidDefinition`` with file and line, ``BuildFailed``, and the errors of ``import_image``.
        """
        host = runtime.host_image() if runtime is not None else host_image(self.state)
        chosen = checked_name(name or _definition_name(definition))
        record = await self._in_progress.do(
            (chosen, str(definition), network, host_files),
            lambda: build_definition(
                self, definition, chosen, host, network=network, host_files=host_files, progress=progress
            ),
        )
        return self.image_of(record)

    async def build_dockerfile(
        self,
        dockerfile: Path,
        context: Path,
        *,
        name: str | None = None,
        arguments: Mapping[str, str] | None = None,
        target: str = "",
        network: bool = False,
        find_base: BaseFinder | None = None,
        progress: Progress | None = None,
    ) -> Image:
        """Build a Dockerfile; each instruction that was built before, on the same layers, is not run again.

        ``arguments`` are values of ARGs, ``target`` is the stage to build, by default the last. RUN has this machine's
        network with ``network``, and none otherwise. COPY and ADD read files of ``context`` only. ``find_base`` finds
        the images of FROM, by default those of this store.

        Raises ``InvalidDefinition`` with file and line, ``BuildFailed``, ``ImageTooLarge``, ``UnknownImage`` for a
        missing base, ``StartFailed`` and ``StoreFailed``.
        """
        chosen = checked_name(name or _folder_name(context))
        options = BuildOptions(dict(arguments or {}), target, network)
        key = (chosen, str(dockerfile), str(context), tuple(sorted(options.arguments.items())), target, network)
        record = await self._in_progress.do(
            key,
            lambda: build_dockerfile(self, dockerfile, context, chosen, options, find_base or self.base, progress),
        )
        return self.image_of(record)

    async def base(self, name: str) -> ImageRecord:
        """Return the record of an image as a base of others, by any of Docker's ways to write its name.

        Raises ``UnknownImage``.
        """
        if name == "host":
            return await import_host(self, host_image(self.state), None)
        for candidate in store_names(name):
            if ImageRecord.exists(self.root / "images", candidate):
                return self.record(candidate)
        return self.record(name)

    def check_definition(self, definition: Path) -> None:
        """Check the text, base and files of a definition without building, fetching or writing anything.

        Raises the errors of ``build``: ``InvalidDefinition`` with file and line, ``InvalidImage``, ``ProgramMissing``.
        Only errors of the definition's scripts are left to ``build``.
        """
        check_definition(self, definition)

    async def derive(self, base: Image, recipe: Recipe, *, progress: Progress | None = None) -> Image:
        """Return ``base`` with a recipe's files, script and variables.

        The image is made once, however many tasks and processes request it; a repeated request costs about a
        millisecond. Files alone need no sandbox. ``base`` may be any image: of this store, ``host``, a folder. The
        derived image has the user, home and binds of ``base``, and every runtime can start it.

        Raises ``BuildFailed`` where the script fails (the next request tries again), ``ImageTooLarge``,
        ``InvalidImage`` for a file below a bind of ``base``, ``StartFailed``, ``StoreFailed``.
        """
        on_line = line_progress(progress)
        return await derived_image(self.layers, base, recipe, limit=self.max_size, state=self.state, on_line=on_line)

    async def prune(
        self,
        *,
        unused_days: float | None = None,
        max_total: int | None = None,
        progress: Progress | None = None,
    ) -> Pruned:
        """Remove the layers that no image has, and layers of recipes that were not used for 30 days.

        ``unused_days`` replaces the 30 days and also removes images that were not used for that long. With
        ``max_total``, layers of recipes and then images are removed, the least recently used first, until all layers
        together have at most that many bytes. Layers that a living process uses, or a hold whose time runs, are kept in
        any case.
        """
        with store_errors(self.root):
            remove_expired(self.layers.holds)
        layers = {layer.key: layer for layer in self.layers.list()}
        plan = plan_pruning(self.images(), layers, self.layers.in_use(), unused_days=unused_days, max_total=max_total)
        for record in plan.images:
            self.forget(record)
            if progress is not None:
                progress(Step(f"Removed image {record.name}"))
        removed = await self.layers.remove_unused(plan.layers)
        return Pruned(tuple(record.name for record in plan.images), len(removed.keys), removed.size)

    async def keep(self, frozen: FrozenFiles, made_by: str, *, times: bool = False) -> KeptLayer:
        """Copy what an ended container has written into the store; the same content is the same layer.

        Its files are on the disk once with equal files of other kept layers. Files that the container changed get one
        time for all; with ``times`` each keeps its own, and of the same content the first layer stays. Raises
        ``StoreFailed``.
        """
        return KeptLayer(*await self.layers.keep(frozen.layer, made_by, math.inf if times else frozen.since))

    def hold(self, layers: Sequence[str], until: float, notes: Mapping[str, Any]) -> Hold:
        """Keep layers until a time, in seconds since 1970, whichever images have them; ``notes`` are JSON values.

        Raises ``UnknownImage`` where a layer is missing, and ``StoreFailed``.
        """
        if not self.layers.use(layers):
            raise UnknownImage("A layer that is to be held is not in the store", "Make it again")
        with store_errors(self.root):
            return Hold(tuple(layers), until, notes).save(self.layers.holds)

    def holds(self) -> list[Hold]:
        """Return all holds, also those whose time is over and whose layers may be gone."""
        return list(find_holds(self.layers.holds))

    async def free_expired(self) -> int:
        """Remove the holds whose time is over, with the layers that nothing else needs; return how many layers.

        Layers of recipes stay until ``prune``. Raises ``StoreFailed``.
        """
        with store_errors(self.root):
            freed = await asyncio.to_thread(remove_expired, self.layers.holds)
        if not freed:
            return 0
        freed -= {key for record in self.images() for key in record.all_layers}
        known = {layer.key for layer in await asyncio.to_thread(self.layers.list) if not layer.recipe}
        return len((await self.layers.remove_unused(freed & known)).keys)

    def compose(self, name: str, layers: Sequence[str], *, like: str) -> ImageRecord:
        """Save an image of layers of the store, the top one first, with the configuration of the image ``like``.

        One of its layers at most is a kept one. Raises ``UnknownImage`` for a missing image or layer, and
        ``InvalidImage`` for the name.
        """
        record = self.record(like)
        composed = replace(record, name=checked_name(name), layers=tuple(layers))
        if not self.layers.use(composed.all_layers):
            raise UnknownImage(f"A layer of image {name} is not in the store", "Make it again")
        return self.save(composed)

    def usage(self) -> list[LayerInformation]:
        """Return every layer with its size, the most recently used first."""
        return self.layers.list()

    def close(self) -> None:
        """Release the images that this process uses."""
        self.layers.close()


def _folder_name(folder: Path) -> str:
    return folder.absolute().name or "image"


def _definition_name(definition: Path) -> str:
    """Return the name of a definition's image: its file's name, or that of its folder for ``container.def``."""
    stem = stem_of(definition.name)
    return definition.absolute().parent.name if stem in ("container", "Apptainer", "Singularity", "") else stem
