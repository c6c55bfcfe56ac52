"""Where a definition's base comes from: a file, the store, or programs that fetch one.

What was fetched gets a name in the store, so it is fetched once; an image of that name serves in its place.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ors_containers.errors import ProgramMissing, UnknownImage
from ors_containers.image import Image
from ors_containers.images.definition import Definition
from ors_containers.images.importing import Imported, import_image, import_layers
from ors_containers.images.programs import run_program
from ors_containers.images.progress import Progress, Step, line_progress
from ors_containers.images.records import ImageRecord, stem_of

if TYPE_CHECKING:
    from ors_containers.images.store import ImageStore

__all__ = ["Base", "find_base"]


@dataclass(frozen=True, slots=True)
class Base:
    """What a definition is built on."""

    name: str
    layers: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict[str, str])
    labels: dict[str, str] = field(default_factory=dict[str, str])
    binds: tuple[tuple[str, str], ...] = ()


async def find_base(store: ImageStore, definition: Definition, host: Image, progress: Progress | None) -> Base:
    """The base of a definition. Raises ``InvalidDefinition`` where there is none, ``ProgramMissing``, ``BuildFailed``
    for one that could not be fetched, and what an import raises.
    """
    match definition.bootstrap:
        case "debootstrap":
            return await _debootstrap(store, definition, progress)
        case "docker":
            return await _docker(store, definition, progress)
        case _:
            return await _local(store, definition, host, progress)


def _of_record(record: ImageRecord) -> Base:
    return Base(record.name, record.layers, dict(record.environment), dict(record.labels), record.binds)


def _of_import(name: str, found: Imported) -> Base:
    return Base(name, found.layers, found.environment, found.labels)


async def _local(store: ImageStore, definition: Definition, host: Image, progress: Progress | None) -> Base:
    source, line = definition.required("From")
    # In an archive `FILE:TAG` is one of several images; the others are taken as they are called.
    file = source.partition(":")[0] if definition.bootstrap != "localimage" else source
    path = definition.path.parent / file
    if await asyncio.to_thread(path.exists):
        return _of_import(path.name, await import_layers(store, path, progress))
    name = store.resolve(source)
    if name is None:
        stem = stem_of(source.rstrip("/").rpartition("/")[2])
        raise definition.error(
            line,
            f"The base {source} is neither at {path} nor an image of the store",
            f"Put the file there, or give the store an image of that name: ors-server image import FILE --name {stem}",
        )
    if name == "host":
        found = await import_layers(store, host.layers[0], progress)
        return Base("host", found.layers, binds=tuple((str(path), target) for path, target in host.binds))
    return _of_record(store.record(name))


async def _docker(store: ImageStore, definition: Definition, progress: Progress | None) -> Base:
    source, line = definition.required("From")
    prefix = "/".join(
        definition.header[word][0].strip("/") for word in ("registry", "namespace") if word in definition.header
    )
    reference = f"{prefix}/{source}" if prefix else source
    reference = reference.removeprefix("docker://")
    name = store.resolve(reference)
    if name is not None:
        return _of_record(store.record(name))
    said = line_progress(progress)
    if progress is not None:
        progress(Step(f"Fetching {reference}"))
    remedy = (
        "Without a network, import an archive of it under this name: ors-server image import FILE --name " + reference
    )
    problem = f"{definition.path}, line {line}: {reference} cannot be fetched"
    async with store.layers.folder() as folder:
        archive = folder / "image.tar"
        if (skopeo := shutil.which("skopeo")) is not None:
            target = f"oci-archive:{archive}"
            await run_program([skopeo, "copy", f"docker://{reference}", target], problem, said=said, remedy=remedy)
        elif (podman := shutil.which("podman")) is not None:
            await run_program([podman, "pull", "--policy", "missing", reference], problem, said=said, remedy=remedy)
            save = [podman, "save", "--format", "oci-archive", "-o", str(archive), reference]
            await run_program(save, problem, said=said, remedy=remedy)
        elif (apptainer := shutil.which("apptainer") or shutil.which("singularity")) is not None:
            archive = folder / "sandbox"
            await run_program(
                [apptainer, "build", "--sandbox", str(archive), f"docker://{reference}"],
                problem,
                said=said,
                remedy=remedy,
            )
        else:
            raise ProgramMissing(
                f"{definition.path}, line {line}: fetching {reference} takes skopeo, podman or apptainer; none is here",
                f"Install one (Debian, Ubuntu: apt install skopeo). {remedy}",
            )
        return _of_record(await import_image(store, archive, reference, "", progress, source=f"docker {reference}"))


async def _debootstrap(store: ImageStore, definition: Definition, progress: Progress | None) -> Base:
    suite, line = definition.required("OSVersion")
    mirror = definition.header.get("mirrorurl", ("", 0))[0]
    included = ",".join(["bash", *definition.header.get("include", ("", 0))[0].replace(",", " ").split()])
    said = hashlib.sha256(f"{mirror} {included}".encode()).hexdigest()[:8]
    name = f"debootstrap-{suite}-{said}"
    try:
        return _of_record(store.record(name))
    except UnknownImage:
        pass
    where = f"{definition.path}, line {line}"
    program = shutil.which("debootstrap", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise ProgramMissing(f"{where}: debootstrap is not installed", "Debian, Ubuntu: apt install debootstrap")
    if os.geteuid() != 0:
        raise ProgramMissing(
            f"{where}: debootstrap works as root only", "Build this one as root, or start from `Bootstrap: docker`"
        )
    if progress is not None:
        progress(Step(f"Laying down {suite} with debootstrap"))
    async with store.layers.folder() as folder:
        target = folder / "root"
        await run_program(
            [program, "--variant=minbase", f"--include={included}", suite, str(target), *([mirror] if mirror else [])],
            f"{where}: debootstrap cannot lay down {suite}",
            said=line_progress(progress),
            remedy="It needs a network and a mirror that has this release (MirrorURL)",
        )
        return _of_record(await import_image(store, target, name, "", progress, source=f"debootstrap {suite}"))
