"""The store of images: a folder with layers by their keys and records by names.

    store = ImageStore()                       # $ORS_IMAGES, else ~/.cache/ors-server/images
    base = await store.import_image(Path("ubuntu_22.04.tar"))
    base = await store.build(Path("container.def"))
    image = await store.derive(base, recipe)   # at once, when it was made before

Invariant: an image that the store gives is whole, and stays as long as this process lives: neither another process nor
``prune`` takes a layer away that a living process was given.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from ors_containers.errors import StoreFailed, UnknownImage
from ors_containers.image import Image, host_image
from ors_containers.images.accounts import added_account, find_account, find_shell
from ors_containers.images.derive import derived_image, key_of
from ors_containers.images.layer_store import LayerInformation, LayerStore, store_errors
from ors_containers.images.progress import Progress, Step, line_progress
from ors_containers.images.pruning import plan_pruning
from ors_containers.images.recipe import Recipe
from ors_containers.images.records import ImageRecord, checked_name, stem_of
from ors_containers.images.singleflight import Flights
from ors_containers.layers.ownership import LayerOwners
from ors_containers.layers.tree import LayeredTree
from ors_containers.linux.leases import make_state, state_directory
from ors_containers.runtime import Runtime

__all__ = ["DEFAULT_MAX_SIZE", "ImageStore", "Pruned", "default_root"]

#: Bytes one image may have by default.
DEFAULT_MAX_SIZE = 16 * 2**30
_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Pruned:
    """What ``prune`` has removed."""

    images: tuple[str, ...]
    layers: int
    #: Bytes that are free now.
    size: int


def default_root() -> Path:
    """``$ORS_IMAGES``, else ``$XDG_CACHE_HOME/ors-server/images``, else ``~/.cache/ors-server/images``.

    Raises ``StoreFailed`` for a user without a home.
    """
    given = os.environ.get("ORS_IMAGES")
    if given:
        return Path(given).absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "ors-server" / "images"
    except RuntimeError as error:
        raise StoreFailed("This user has no home for the store of images", "Set ORS_IMAGES to a folder") from error


class ImageStore:
    """Images by name, and images derived from them. Made in no time; touches the disk when it is used.

    One for each process and folder is enough; any number of processes may use one folder. Its methods are for one
    event loop. ``max_size`` is the most bytes a layer or an import may have; ``state`` is where build sandboxes keep
    their leases, by default where the runtimes do.
    """

    def __init__(
        self, root: Path | None = None, *, max_size: int = DEFAULT_MAX_SIZE, state: Path | None = None
    ) -> None:
        self.root = (root or default_root()).absolute()
        self.max_size = max_size
        self.layers = LayerStore(self.root, LayerOwners())
        self._state = state
        self._flights: Flights[ImageRecord] = Flights()
        self._swept = False

    # ── images by name ──

    def find(self, name: str) -> Image:
        """The image of that name; ``host`` is this machine's own. Raises ``UnknownImage`` with those there are."""
        if name == "host":
            return host_image(self.state)
        return self.image_of(self.record(name))

    def record(self, name: str) -> ImageRecord:
        """What is known of the image of that name. Raises ``UnknownImage``."""
        record = ImageRecord.load(self._records, name)
        if record is None:
            names = ["host", *ImageRecord.names(self._records)]
            raise UnknownImage(
                f"There is no image {name!r} in {self.root}",
                f"There are: {', '.join(names)}. Import one (`ors-server image import FILE`) or build one "
                "(`ors-server image build FILE.def`)",
            )
        return record

    def resolve(self, name: str) -> str | None:
        """The name of the image that serves for ``name``, or None.

        A file name serves as the image it would be imported as, and an underscore for a colon, as files are called
        after tags: ``./ubuntu_22.04.sif`` finds ``ubuntu_22.04`` or ``ubuntu:22.04``.
        """
        for candidate in self.names_for(name):
            if candidate == "host" or ImageRecord.exists(self._records, candidate):
                return candidate
        return None

    @staticmethod
    def names_for(name: str) -> list[str]:
        """The names under which an image serves for ``name``, in that order."""
        stem = stem_of(name.rstrip("/").rpartition("/")[2])
        names = [name, name.removeprefix("./"), stem, stem.replace("_", ":", 1), stem.replace(":", "_", 1)]
        return list(dict.fromkeys(candidate for candidate in names if candidate))

    def image_of(self, record: ImageRecord) -> Image:
        """The image a record describes, in use from now on. Raises ``UnknownImage`` where a layer of it is gone."""
        if not self.layers.use(record.all_layers):
            raise UnknownImage(f"Image {record.name} has lost a layer", "Import or build it again")
        with contextlib.suppress(OSError):
            os.utime(record.path(self._records))
        return Image(
            name=record.name,
            layers=tuple(self.layers.path(key) for key in record.all_layers),
            binds=tuple((Path(source), target) for source, target in record.binds),
            environment=record.environment,
            user=record.user,
            group=record.group,
            user_name=record.user_name,
            home=record.home,
            shell=record.shell,
            directory=record.directory,
        )

    def base_of(self, record: ImageRecord) -> Image:
        """The image as other images are built on it: as root, and without the account that was added to it.

        Raises ``UnknownImage`` where a layer of it is gone.
        """
        if not self.layers.use(record.layers):
            raise UnknownImage(f"Image {record.name} has lost a layer", "Import or build it again")
        return Image(
            name=record.name,
            layers=tuple(self.layers.path(key) for key in record.layers),
            binds=tuple((Path(source), target) for source, target in record.binds),
            environment=record.environment,
            user=0,
            group=0,
            user_name="root",
            home="/root",
            shell=record.shell,
        )

    def images(self) -> list[ImageRecord]:
        """Every image but ``host``, by name."""
        found = (ImageRecord.load(self._records, name) for name in ImageRecord.names(self._records))
        return [record for record in found if record is not None]

    async def remove(self, name: str) -> int:
        """Forget an image and remove the layers nobody else has; the bytes freed. Raises ``UnknownImage``."""
        record = self.record(name)
        with store_errors(self.root):
            record.path(self._records).unlink(missing_ok=True)
        kept = {key for other in self.images() for key in other.all_layers}
        sizes = {layer.key: layer.size for layer in self.layers.list()}
        removed = await self.layers.take_away(key for key in record.all_layers if key not in kept)
        return sum(sizes.get(key, 0) for key in removed)

    # ── making images ──

    async def import_image(
        self, path: Path, name: str | None = None, *, user: str = "", progress: Progress | None = None
    ) -> Image:
        """Take an image in: a folder, a tar archive of a root file system, an OCI or docker archive, an OCI layout, a
        SIF. ``name`` is by default the file's; an image of that name is replaced. ``user`` is the user of its
        processes, by default what the image says, and never root where it says nothing.

        Raises ``InvalidImage`` and its kinds, ``ProgramMissing`` for what this machine cannot read, ``StoreFailed``.
        """
        from ors_containers.images.importers import import_image

        await self._start()
        chosen = checked_name(name or stem_of(path.name))
        record = await self._flights.join(
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
        """Build an Apptainer definition file. What was built before and has not changed is there at once.

        ``runtime`` gives the image of a definition ``From: host``. With ``network`` its ``%post`` has this machine's.
        ``host_files`` is for definitions of one's own: ``%files`` and ``From`` then may name any file of this machine,
        which whoever is in a sandbox of the image can read, and debootstrap may run, as root and in no sandbox.
        Otherwise everything they name lies in the definition's folder.

        Raises ``InvalidDefinition`` with file and line, ``BuildFailed``, and what ``import_image`` raises.
        """
        from ors_containers.images.apptainer_def.build import build_definition

        await self._start()
        host = runtime.host_image() if runtime is not None else host_image(self.state)
        chosen = checked_name(name or _definition_name(definition))
        record = await self._flights.join(
            (chosen, str(definition), network, host_files),
            lambda: build_definition(
                self, definition, chosen, host, network=network, host_files=host_files, progress=progress
            ),
        )
        return self.image_of(record)

    def check_definition(self, definition: Path) -> None:
        """What can be said of a definition before anything is built, fetched or written: its text, base and files.

        Raises what ``build`` would raise: ``InvalidDefinition`` with file and line, ``InvalidImage``,
        ``ProgramMissing``. What ``build`` may still find is what its scripts do.
        """
        from ors_containers.images.apptainer_def.build import check_definition

        check_definition(self, definition)

    async def derive(self, base: Image, recipe: Recipe, *, progress: Progress | None = None) -> Image:
        """``base`` with a recipe's files, script and variables.

        It is made once, however many ask for it at once, in this process and in others; asking again costs about a
        millisecond. Files alone need no sandbox. ``base`` may be any image: of this store, ``host``, a folder. User,
        home and binds stay those of ``base``, and every runtime can start it.

        Raises ``BuildFailed`` where the script fails (asking again tries again), ``ImageTooLarge``, ``InvalidImage``
        for a file below a bind of ``base``, ``StartFailed``, ``StoreFailed``.
        """
        await self._start()
        said = line_progress(progress)
        return await derived_image(self.layers, base, recipe, limit=self.max_size, state=self.state, said=said)

    async def provide_account(self, record: ImageRecord, wanted: str) -> ImageRecord:
        """A record with its account and shell: that of ``wanted``, or one that is added. Raises ``InvalidImage``."""
        paths = [self.layers.path(key) for key in record.layers]
        tree = LayeredTree(paths)
        account = find_account(tree, wanted)
        # What is bound has this machine's bash.
        shell = "/bin/bash" if record.binds else find_shell(tree, record.name)
        added: tuple[str, ...] = ()
        if account.missing:
            entries = added_account(tree, account)
            described = [[entry.path, entry.kind, entry.content.decode(errors="replace")] for entry in entries]
            key = key_of("account", self.layers.owners.tag, list(record.layers), described)

            async def fill(folder: Path) -> int:
                upper = folder / "upper"
                upper.mkdir(mode=0o755)
                return await self.layers.owners.write(upper, entries, paths)

            await self.layers.provide(key, f"account of {record.name}", fill)
            added = (key,)
        return replace(
            record,
            account=added,
            user=account.user,
            group=account.group,
            user_name=account.name,
            home=account.home,
            shell=shell,
        )

    def save(self, record: ImageRecord) -> ImageRecord:
        """Write a record of an image whose layers are there; what it is called by now is replaced."""
        now = time.time()
        size = sum(self.layers.size(key) for key in set(record.all_layers))
        record = replace(record, size=size, created=now, used=now)
        with store_errors(self.root):
            record.save(self._records)
        return record

    # ── keeping it small ──

    async def prune(
        self,
        *,
        unused_days: float | None = None,
        max_total: int | None = None,
        progress: Progress | None = None,
    ) -> Pruned:
        """Remove layers that no image has, and what recipes made that was not used for 30 days.

        With ``unused_days`` also images that were not used for so long, and this in place of the 30 days. With
        ``max_total`` then what recipes made and after it images, those first that were used longest ago, until all
        layers together have at most so many bytes. Nothing a living process was given is removed in any case.
        """
        await self._start()
        layers = {layer.key: layer for layer in self.layers.list()}
        plan = plan_pruning(self.images(), layers, self.layers.in_use(), unused_days=unused_days, max_total=max_total)
        with store_errors(self.root):
            for record in plan.images:
                record.path(self._records).unlink(missing_ok=True)
                if progress is not None:
                    progress(Step(f"Removed image {record.name}"))
        keys = await self.layers.take_away(plan.layers)
        return Pruned(tuple(record.name for record in plan.images), len(keys), sum(layers[key].size for key in keys))

    def usage(self) -> list[LayerInformation]:
        """Every layer with its size, the most recently used first."""
        return self.layers.list()

    def close(self) -> None:
        """This process has none of its images in use any more."""
        self.layers.close()

    @property
    def state(self) -> Path:
        """Where leases lie, and the host image."""
        state = self._state or state_directory()
        make_state(state)
        return state

    @property
    def _records(self) -> Path:
        return self.root / "images"

    async def _start(self) -> None:
        """Once in this process's life: remove what makers that were killed have left."""
        if not self._swept:
            self._swept = True
            await self.layers.sweep()


def _definition_name(definition: Path) -> str:
    """What a definition's image is called: after its file, or after its folder where that is ``container.def``."""
    stem = stem_of(definition.name)
    return definition.absolute().parent.name if stem in ("container", "Apptainer", "Singularity", "") else stem
