"""Images by name: the records of a store, and the layers they list.

Invariant: a record is saved only when all its layers are in the store.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path

from ors_containers.errors import UnknownImage
from ors_containers.image import Image, host_image
from ors_containers.images.accounts import added_account, docker_account, find_account, find_shell
from ors_containers.images.storing.layer_store import LayerStore, layer_key, new_upper
from ors_containers.images.storing.records import ImageRecord, stem_of
from ors_containers.images.storing.store_folder import default_root, store_errors
from ors_containers.layers.ownership import LayerOwners
from ors_containers.layers.tree import LayeredTree
from ors_containers.linux.leases import make_state, state_directory

__all__ = ["DEFAULT_MAX_SIZE", "ImageRepository"]

#: Seconds after which a use of an image is noted again: its file would change with each sandbox.
_USED_AGAIN = 60.0
#: Bytes one image may have by default.
DEFAULT_MAX_SIZE = 16 * 2**30


class ImageRepository:
    """The images of a store by name, and the layers below them. Creates no file until it is used.

    ``max_size`` is the most bytes a layer or an import may have. ``state`` is the folder in which build sandboxes keep
    their leases, by default that of the runtimes.
    """

    def __init__(
        self, root: Path | None = None, *, max_size: int = DEFAULT_MAX_SIZE, state: Path | None = None
    ) -> None:
        self.root = (root or default_root()).absolute()
        self.max_size = max_size
        self.layers = LayerStore(self.root, LayerOwners())
        self._state = state

    @property
    def state(self) -> Path:
        """The folder of the leases and of the host image; created where it is missing."""
        state = self._state or state_directory()
        make_state(state)
        return state

    @property
    def _records(self) -> Path:
        return self.root / "images"

    def find(self, name: str) -> Image:
        """Return the image of that name; ``host`` is this machine's own. Raises ``UnknownImage``, naming all images."""
        if name == "host":
            return host_image(self.state)
        return self.image_of(self.record(name))

    def record(self, name: str) -> ImageRecord:
        """Return the record of the image of that name. Raises ``UnknownImage``."""
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
        """Return the name of the image that ``name`` means, or None.

        A file name means the image it would be imported as. An underscore may stand for a colon, because files are
        named after tags: ``./ubuntu_22.04.sif`` finds ``ubuntu_22.04`` or ``ubuntu:22.04``.
        """
        for candidate in self.names_for(name):
            if candidate == "host" or ImageRecord.exists(self._records, candidate):
                return candidate
        return None

    @staticmethod
    def names_for(name: str) -> list[str]:
        """Return the names of images that ``name`` may mean, in the order in which they are tried."""
        stem = stem_of(name.rstrip("/").rpartition("/")[2])
        names = [name, name.removeprefix("./"), stem, stem.replace("_", ":", 1), stem.replace(":", "_", 1)]
        return list(dict.fromkeys(candidate for candidate in names if candidate))

    def image_of(self, record: ImageRecord) -> Image:
        """Return the image a record describes; its layers are in use from now on.

        Raises ``UnknownImage`` where a layer is missing.
        """
        self._use(record, record.all_layers)
        if time.time() - record.used > _USED_AGAIN:
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
            names_user=record.names_user,
        )

    def base_of(self, record: ImageRecord) -> Image:
        """Return the image that other images are built on: its user is root, and it lacks the added account.

        Raises ``UnknownImage`` where a layer is missing.
        """
        self._use(record, record.layers)
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

    def docker_image(self, record: ImageRecord) -> Image:
        """Return the image as Docker runs it: as root where it names no user, in its working directory.

        Raises ``UnknownImage`` where a layer is missing, and ``InvalidImage`` for a user that it does not have.
        """
        base = self.base_of(record)
        config = record.docker_config
        account = docker_account(LayeredTree(base.layers), str(config.get("User") or ""))
        return replace(
            base,
            user=account.user,
            group=account.group,
            groups=account.groups,
            user_name=account.name,
            home=account.home,
            directory=str(config.get("WorkingDir") or "/"),
        )

    def _use(self, record: ImageRecord, layers: tuple[str, ...]) -> None:
        if not self.layers.use(layers):
            raise UnknownImage(f"Image {record.name} has lost a layer", "Import or build it again")

    def images(self) -> list[ImageRecord]:
        """Return the records of all images but ``host``, by name."""
        found = (ImageRecord.load(self._records, name) for name in ImageRecord.names(self._records))
        return [record for record in found if record is not None]

    async def remove(self, name: str) -> int:
        """Remove an image and the layers that no other image has; return the bytes freed. Raises ``UnknownImage``."""
        record = self.record(name)
        self.forget(record)
        kept = {key for other in self.images() for key in other.all_layers}
        return (await self.layers.remove_unused(key for key in record.all_layers if key not in kept)).size

    def forget(self, record: ImageRecord) -> None:
        """Remove a record and leave its layers. Raises ``StoreFailed``."""
        with store_errors(self.root):
            record.path(self._records).unlink(missing_ok=True)

    async def provide_account(self, record: ImageRecord, wanted: str) -> ImageRecord:
        """Return the record with an account and a shell: the account ``wanted``, added where the image lacks it.

        Raises ``InvalidImage``.
        """
        paths = [self.layers.path(key) for key in record.layers]
        tree = LayeredTree(paths)
        account = find_account(tree, wanted)
        # The binds of an image built on `host` contain this machine's bash.
        shell = "/bin/bash" if record.binds else find_shell(tree, record.name)
        added: tuple[str, ...] = ()
        if account.missing:
            entries = added_account(tree, account)
            described = [[entry.path, entry.kind, entry.content.decode(errors="replace")] for entry in entries]
            key = layer_key("account", self.layers.owners.tag, list(record.layers), described)

            async def fill(folder: Path) -> int:
                return await self.layers.owners.write(new_upper(folder), entries, paths)

            await self.layers.provide(key, f"account of {record.name}", fill)
            added = (key,)
        return replace(
            record,
            account=added,
            names_user=bool(wanted),
            user=account.user,
            group=account.group,
            user_name=account.name,
            home=account.home,
            shell=shell,
        )

    def save(self, record: ImageRecord) -> ImageRecord:
        """Write the record of an image whose layers exist; it replaces the record of that name."""
        now = time.time()
        size = sum(self.layers.size(key) for key in set(record.all_layers))
        record = replace(record, size=size, created=now, used=now)
        with store_errors(self.root):
            record.save(self._records)
        return record
