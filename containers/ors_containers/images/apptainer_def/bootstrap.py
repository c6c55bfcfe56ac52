"""Where a definition's base comes from: a file, the store, or programs that fetch one.

What was fetched gets a name in the store, so it is fetched once; an image of that name serves in its place.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ors_containers.errors import ProgramMissing, SandboxError, UnknownImage
from ors_containers.image import Image
from ors_containers.images.apptainer_def.files import lies_inside
from ors_containers.images.apptainer_def.parser import Definition
from ors_containers.images.importers import Imported, check_image, import_image, import_layers
from ors_containers.images.programs import run_program
from ors_containers.images.progress import Progress, Step, line_progress
from ors_containers.images.records import ImageRecord, stem_of

if TYPE_CHECKING:
    from ors_containers.images.store import ImageStore

__all__ = ["Base", "check_base", "find_base"]

#: ``HOST:PORT/NAME:TAG@DIGEST``.
_REFERENCE = re.compile(r"[A-Za-z0-9][\w.-]*(:\d+/[\w.-]+)?(/[\w.-]+)*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?")
_SUITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")


@dataclass(frozen=True, slots=True)
class Base:
    """What a definition is built on."""

    name: str
    layers: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict[str, str])
    labels: dict[str, str] = field(default_factory=dict[str, str])
    binds: tuple[tuple[str, str], ...] = ()


async def find_base(
    store: ImageStore, definition: Definition, host: Image, progress: Progress | None, *, host_files: bool
) -> Base:
    """The base of a definition. Raises ``InvalidDefinition`` where there is none, ``ProgramMissing``, ``BuildFailed``
    for one that could not be fetched, and what an import raises.
    """
    match definition.bootstrap:
        case "debootstrap":
            return await _debootstrap(store, definition, progress, host_files)
        case "docker":
            return await _docker(store, definition, progress)
        case _:
            return await _local(store, definition, host, progress, host_files)


def check_base(store: ImageStore, definition: Definition) -> None:
    """Raise what ``find_base`` would, as far as can be said before anything is fetched or imported."""
    match definition.bootstrap:
        case "debootstrap":
            if store.resolve(_debootstrap_name(definition)) is None:
                _debootstrap_program(definition, host_files=False)
        case "docker":
            reference = _reference(definition)
            if store.resolve(reference) is None:
                _fetcher(definition, reference)
        case _:
            found = _local_base(store, definition, host_files=False)
            if isinstance(found, Path):
                try:
                    check_image(found)
                except SandboxError as error:
                    line = definition.required("From")[1]
                    raise definition.error(line, error.cause, error.remedy) from error


def _of_record(record: ImageRecord) -> Base:
    return Base(record.name, record.layers, dict(record.environment), dict(record.labels), record.binds)


def _of_import(name: str, found: Imported) -> Base:
    return Base(name, found.layers, found.environment, found.labels)


def _local_base(store: ImageStore, definition: Definition, *, host_files: bool) -> Path | str:
    """The file or folder of a base, or the name of an image of the store."""
    source, line = definition.required("From")
    # In an archive `FILE:TAG` is one of several images; the others are taken as they are called.
    file = source.partition(":")[0] if definition.bootstrap != "localimage" else source
    path = definition.path.parent / file
    inside = host_files or lies_inside(path, definition.path.parent)
    if inside and os.path.exists(path):  # noqa: PTH110 - says no, where `Path.exists` raises, of too long a name
        return path
    name = store.resolve(source)
    if name is None:
        stem = stem_of(source.rstrip("/").rpartition("/")[2]) or "NAME"
        problem = f"is neither at {path} nor an image of the store"
        if not inside:
            problem = "is outside of the definition's folder, and no image of the store"
        raise definition.error(
            line,
            f"The base {source} {problem}",
            f"Put the file there, or give the store an image of that name: ors-server image import FILE --name {stem}",
        )
    return name


async def _local(
    store: ImageStore, definition: Definition, host: Image, progress: Progress | None, host_files: bool
) -> Base:
    found = await asyncio.to_thread(_local_base, store, definition, host_files=host_files)
    if isinstance(found, Path):
        return _of_import(found.name, await import_layers(store, found, progress))
    if found == "host":
        imported = await import_layers(store, host.layers[0], progress)
        return Base("host", imported.layers, binds=tuple((str(path), target) for path, target in host.binds))
    return _of_record(store.record(found))


def _reference(definition: Definition) -> str:
    """What a registry calls the base. Raises ``InvalidDefinition`` for what a program could take for an option."""
    source, line = definition.required("From")
    prefix = "/".join(
        definition.header[word][0].strip("/") for word in ("registry", "namespace") if word in definition.header
    )
    reference = (f"{prefix}/{source}" if prefix else source).removeprefix("docker://")
    if not _REFERENCE.fullmatch(reference):
        raise definition.error(line, f"{reference[:200]!r} is no name of a registry's image", "Write NAME:TAG")
    return reference


def _fetcher(definition: Definition, reference: str) -> tuple[str, str]:
    """The program that fetches from registries here, by name and path. Raises ``ProgramMissing``."""
    for name in ("skopeo", "podman", "apptainer", "singularity"):
        program = shutil.which(name)
        if program is not None:
            return name, program
    line = definition.required("From")[1]
    raise ProgramMissing(
        f"{definition.path}, line {line}: fetching {reference} takes skopeo, podman or apptainer; none is here",
        f"Install one (Debian, Ubuntu: apt install skopeo). {_without_network(reference)}",
    )


def _without_network(reference: str) -> str:
    return (
        f"Without a network, import an archive of it under this name: ors-server image import FILE --name {reference}"
    )


async def _docker(store: ImageStore, definition: Definition, progress: Progress | None) -> Base:
    reference = _reference(definition)
    name = store.resolve(reference)
    if name is not None:
        return _of_record(store.record(name))
    kind, program = _fetcher(definition, reference)
    said = line_progress(progress)
    if progress is not None:
        progress(Step(f"Fetching {reference}"))
    remedy = _without_network(reference)
    problem = f"{definition.path}, line {definition.required('From')[1]}: {reference} cannot be fetched"
    async with store.layers.folder() as folder:
        archive = folder / ("image.tar" if kind in ("skopeo", "podman") else "sandbox")
        if kind == "skopeo":
            commands = [[program, "copy", f"docker://{reference}", f"oci-archive:{archive}"]]
        elif kind == "podman":
            commands = [
                [program, "pull", "--policy", "missing", reference],
                [program, "save", "--format", "oci-archive", "-o", str(archive), reference],
            ]
        else:
            commands = [[program, "build", "--sandbox", str(archive), f"docker://{reference}"]]
        for command in commands:
            await run_program(command, problem, said=said, remedy=remedy)
        return _of_record(await import_image(store, archive, reference, "", progress, source=f"docker {reference}"))


def _debootstrap_name(definition: Definition) -> str:
    suite, _ = definition.required("OSVersion")
    said = f"{_mirror(definition)} {_included(definition)}"
    return f"debootstrap-{suite}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"


def _mirror(definition: Definition) -> str:
    return definition.header.get("mirrorurl", ("", 0))[0]


def _included(definition: Definition) -> str:
    return ",".join(["bash", *definition.header.get("include", ("", 0))[0].replace(",", " ").split()])


def _debootstrap_program(definition: Definition, *, host_files: bool) -> str:
    """debootstrap, if it may be used. Raises ``InvalidDefinition`` and ``ProgramMissing``."""
    suite, line = definition.required("OSVersion")
    # It runs what the mirror has, and a script it finds by the release's name, as root of this machine.
    if not host_files:
        raise definition.error(
            line,
            "debootstrap works as root of this machine, in no sandbox, and so not for everybody's definitions",
            f"Build one of your own once, and it stays: ors-server image build --host-files {definition.path}",
        )
    if not _SUITE.fullmatch(suite):
        raise definition.error(line, f"{suite!r} is no name of a release", "For example: OSVersion: bookworm")
    mirror, mirror_line = definition.header.get("mirrorurl", ("", 0))
    if mirror and not mirror.startswith(("http://", "https://")):
        raise definition.error(mirror_line, f"The mirror {mirror!r} is no http:// or https:// address")
    where = f"{definition.path}, line {line}"
    program = shutil.which("debootstrap", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise ProgramMissing(f"{where}: debootstrap is not installed", "Debian, Ubuntu: apt install debootstrap")
    if os.geteuid() != 0:
        raise ProgramMissing(
            f"{where}: debootstrap works as root only", "Build this one as root, or start from `Bootstrap: docker`"
        )
    return program


async def _debootstrap(store: ImageStore, definition: Definition, progress: Progress | None, host_files: bool) -> Base:
    suite, line = definition.required("OSVersion")
    name = _debootstrap_name(definition)
    try:
        return _of_record(store.record(name))
    except UnknownImage:
        pass
    program = _debootstrap_program(definition, host_files=host_files)
    if progress is not None:
        progress(Step(f"Laying down {suite} with debootstrap"))
    mirror = _mirror(definition)
    async with store.layers.folder() as folder:
        target = folder / "root"
        included = f"--include={_included(definition)}"
        await run_program(
            [program, "--variant=minbase", included, suite, str(target), *([mirror] if mirror else [])],
            f"{definition.path}, line {line}: debootstrap cannot lay down {suite}",
            said=line_progress(progress),
            remedy="It needs a network and a mirror that has this release (MirrorURL)",
        )
        return _of_record(await import_image(store, target, name, "", progress, source=f"debootstrap {suite}"))
