"""Images taken into the store: folders, tar archives, OCI and docker archives, SIF files.

Invariant: an image gets its name when everything of it is there; what was imported before is not unpacked again.
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
from typing import TYPE_CHECKING

from ors_containers.builds.client import BuildLimits, Script, run_scripts
from ors_containers.errors import InvalidArchive, InvalidImage, ProgramMissing, StartFailed
from ors_containers.images.accounts import find_account
from ors_containers.images.archives import ArchivedLayer, LayeredArchive, find_squashfs, kind_of, read_layered
from ors_containers.images.derive import key_of
from ors_containers.images.progress import Progress, Step
from ors_containers.images.records import ImageRecord
from ors_containers.layers.tar import decompressed
from ors_containers.layers.tree import LayeredTree
from ors_containers.layers.writer import too_large

if TYPE_CHECKING:
    from ors_containers.images.store import ImageStore

__all__ = ["Imported", "apptainer_environment", "changed_variables", "check_image", "import_image", "import_layers"]

_PIECE = 1 << 20
#: Variables that are the shell's own affair.
SHELL_VARIABLES = frozenset(("PWD", "OLDPWD", "SHLVL", "_", "IFS", "OPTIND", "PS1", "PS2", "PS4", "PPID"))


@dataclass(frozen=True, slots=True)
class Imported:
    """Layers that are in the store, the top one first, and what their archive says of the image."""

    layers: tuple[str, ...]
    origin: str
    user: str = ""
    directory: str = ""
    environment: dict[str, str] = field(default_factory=dict[str, str])
    labels: dict[str, str] = field(default_factory=dict[str, str])


async def import_image(
    store: ImageStore, path: Path, name: str, user: str, progress: Progress | None, *, source: str = ""
) -> ImageRecord:
    """See ``ImageStore.import_image``; ``source`` is what people are told it was made from."""
    found = await import_layers(store, path, progress)
    record = ImageRecord(
        name=name,
        layers=found.layers,
        environment=found.environment,
        labels=found.labels,
        # A relative or wild one is as good as none.
        directory=found.directory if found.directory.startswith("/") and ".." not in found.directory else "",
        source=source or str(path),
        origin=found.origin,
    )
    return store.save(await store.provide_account(record, user or found.user))


async def import_layers(store: ImageStore, path: Path, progress: Progress | None) -> Imported:
    """Take the layers of an image in, without giving it a name.

    Raises what ``ImageStore.import_image`` raises: ``InvalidImage`` and its kinds, ``ProgramMissing``, ``StoreFailed``.
    """
    try:
        path, kind = await asyncio.to_thread(_look_at, path)
    except OSError as error:
        raise InvalidImage(f"{path} cannot be read: {error.strerror}") from error
    importing = _Importing(store, progress)
    if kind == "folder":
        return await importing.folder(path)
    if kind == "layered":
        return await importing.layered(await asyncio.to_thread(read_layered, path))
    if kind == "packed":
        async with store.layers.folder() as folder:
            importing.say(f"Decompressing {path.name}")
            plain = folder / "plain.tar"
            await asyncio.to_thread(_decompress, path, plain, store.max_size)
            return await importing.layered(await asyncio.to_thread(read_layered, plain))
    if kind == "sif":
        return await importing.sif(path)
    return await importing.tar(path)


def check_image(path: Path) -> str:
    """What would be imported: ``folder``, or a kind of ``archives.kind_of``. Reads little of it.

    Raises ``InvalidImage`` for what is none, as far as that shows, and ``ProgramMissing``.
    """
    try:
        path, kind = _look_at(path)
        if kind == "folder":
            _check_folder(path)
        elif kind == "sif":
            find_squashfs(path)
            _unsquashfs(path)
    except OSError as error:
        raise InvalidImage(f"{path} cannot be read: {error.strerror}") from error
    return kind


def _look_at(path: Path) -> tuple[Path, str]:
    path = path.absolute()
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        return path, "layered" if (path / "oci-layout").is_file() else "folder"
    if not stat.S_ISREG(mode):  # to open a pipe would be to wait for somebody who writes
        raise InvalidImage(f"{path} is neither a regular file nor a directory")
    return path, kind_of(path)


def _check_folder(path: Path) -> None:
    if not any((path / name).exists() for name in ("bin", "usr")):
        raise InvalidImage(f"{path} is no root file system: it has neither bin nor usr")


def _unsquashfs(path: Path) -> str:
    program = shutil.which("unsquashfs")
    if program is None:
        raise ProgramMissing(
            f"{path.name} is a SIF, which takes unsquashfs to read", "Debian, Ubuntu: apt install squashfs-tools"
        )
    return program


class _Importing:
    """One import: what it tells, and how many bytes it may still have."""

    def __init__(self, store: ImageStore, progress: Progress | None) -> None:
        self._store = store
        self._layers = store.layers
        self._progress = progress
        self._left = store.max_size

    def say(self, text: str, done: int = 0) -> None:
        if self._progress is not None:
            self._progress(Step(text, done=done))

    def _counter(self, text: str) -> Callable[[int], None]:
        return lambda done: self.say(text, done)

    async def layered(self, archive: LayeredArchive) -> Imported:
        """An image of layers, each over those before it."""
        keys: list[str] = []
        below: list[Path] = []
        for number, layer in enumerate(archive.layers, 1):
            # What it lies over has a part in it: links of its paths, owners of directories it does not name.
            key = key_of("layer", self._layers.owners.tag, keys[-1] if keys else "", layer.digest)
            text = f"Unpacking layer {number} of {len(archive.layers)}"
            under = tuple(reversed(below))

            async def fill(
                folder: Path, layer: ArchivedLayer = layer, under: Sequence[Path] = under, text: str = text
            ) -> int:
                upper = _upper(folder)
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
        )

    async def tar(self, path: Path) -> Imported:
        """A root file system in one archive."""
        self.say(f"Reading {path.name}")
        digest = await asyncio.to_thread(_digest, path)
        key = key_of("tar", self._layers.owners.tag, digest)

        async def fill(folder: Path) -> int:
            done = await self._layers.owners.unpack(
                path, _upper(folder), limit=self._left, progress=self._counter(f"Unpacking {path.name}")
            )
            return done.size

        await self._provide(key, f"import of {path.name}", fill)
        return Imported((key,), f"tar:{digest}")

    async def folder(self, path: Path) -> Imported:
        """An unpacked root file system."""
        _check_folder(path)
        described = await asyncio.to_thread(_describe, path)
        key = key_of("folder", self._layers.owners.tag, described)
        account = find_account(LayeredTree([path]))

        async def fill(folder: Path) -> int:
            try:
                done = await self._layers.owners.copy(
                    path,
                    _upper(folder),
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
        """Apptainer's image file: a squashfs with a header, unpacked by unsquashfs."""
        begin = find_squashfs(path)
        program = _unsquashfs(path)
        self.say(f"Reading {path.name}")
        digest = await asyncio.to_thread(_digest, path)
        key = key_of("sif", self._layers.owners.tag, digest)

        async def fill(folder: Path) -> int:
            self.say(f"Unpacking {path.name}")
            return await self._layers.owners.unsquash(path, _upper(folder), program, begin, limit=self._left)

        await self._provide(key, f"import of {path.name}", fill)
        return await self._with_environment(Imported((key,), f"sif:{digest}"), path.name)

    async def _provide(self, key: str, made_by: str, fill: Callable[[Path], Awaitable[int]]) -> Path:
        path = await self._layers.provide(key, made_by, fill)
        self._left -= self._layers.size(key)
        if self._left < 0:
            raise too_large(self._store.max_size)
        return path

    async def _with_environment(self, found: Imported, name: str) -> Imported:
        """With the variables that Apptainer's scripts in the image set."""
        paths = [self._layers.path(key) for key in found.layers]
        if LayeredTree(paths).find(".singularity.d/env") is None:
            return found
        environment = await apptainer_environment(self._store, found.layers, name)
        return replace(found, environment=environment)


#: What an Apptainer image runs before anything else; the variables it leaves are those of the image.
_SOURCED = """\
for script in /.singularity.d/env/*.sh; do
  case "$script" in */99-*|*/94-*|*/95-*|*/01-*) continue;; esac
  . "$script" >/dev/null 2>&1 || true
done
exec env -0
"""


async def apptainer_environment(store: ImageStore, layers: Sequence[str], name: str) -> dict[str, str]:
    """The variables that the scripts in ``/.singularity.d/env`` set; none where no build sandbox can be had here."""
    base = store.base_of(ImageRecord(name=name, layers=tuple(layers)))
    variables = {"PATH": base.variables["PATH"], "HOME": "/root"}
    script = Script("environment", _SOURCED, environment=variables, capture=True)
    async with store.layers.folder() as folder:
        try:
            built = await run_scripts(
                base,
                [script],
                folder,
                owners=store.layers.owners,
                limits=BuildLimits(disk=store.max_size, seconds=60.0),
                state=store.state,
            )
        except StartFailed:
            return {}
    return changed_variables(built.captured, variables)


def changed_variables(answer: bytes, before: dict[str, str]) -> dict[str, str]:
    """What ``env -0`` has said that was not so before."""
    found: dict[str, str] = {}
    for line in answer.decode(errors="replace").split("\0"):
        name, equals, value = line.partition("=")
        if equals and name not in SHELL_VARIABLES and before.get(name) != value:
            found[name] = value
    return found


def _upper(folder: Path) -> Path:
    upper = folder / "upper"
    upper.mkdir()
    upper.chmod(0o755)
    return upper


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _describe(folder: Path) -> str:
    """A digest of what a folder's files are by name, kind, size, owner and time, without reading them."""
    said = hashlib.sha256(str(folder).encode(errors="surrogateescape"))
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        try:
            status = place.lstat()
            inner = sorted(place.iterdir()) if stat.S_ISDIR(status.st_mode) else []
        except OSError as error:
            raise InvalidImage(f"{error.filename} cannot be read: {error.strerror}") from error
        about = (status.st_mode, status.st_size, status.st_uid, status.st_gid, status.st_mtime_ns, status.st_ino)
        said.update(os.fsencode(place) + repr(about).encode())
        waiting += inner
    return said.hexdigest()


def _decompress(path: Path, plain: Path, limit: int) -> None:
    written = 0
    try:
        with path.open("rb") as stream, decompressed(stream) as source, plain.open("wb") as target:
            while piece := source.read(_PIECE):
                written += len(piece)
                if written > limit:
                    raise too_large(limit)
                target.write(piece)
    except EOFError as error:
        raise InvalidArchive(f"{path} is cut short: {error}") from error
