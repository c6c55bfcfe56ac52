"""The base of a definition: a file, an image of the store, or one that a program of this machine fetches.

A fetched base is saved under a name in the store, so it is fetched once. An image imported under that name replaces
the fetch.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from ors_containers.errors import ProgramMissing, SandboxError, UnknownImage
from ors_containers.image import Image
from ors_containers.images.apptainer_def.files import lies_inside
from ors_containers.images.apptainer_def.parser import Definition
from ors_containers.images.importers import check_image, import_host, import_image, import_layers
from ors_containers.images.programs import run_program
from ors_containers.images.progress import Progress, Step, line_progress
from ors_containers.images.registry import fetch_image, find_fetcher
from ors_containers.images.repository import ImageRepository
from ors_containers.images.storing.records import ImageRecord, stem_of

__all__ = ["Base", "check_base", "find_base"]

#: ``HOST:PORT/NAME:TAG@DIGEST``.
_REFERENCE = re.compile(r"[A-Za-z0-9][\w.-]*(:\d+/[\w.-]+)?(/[\w.-]+)*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?")
_SUITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")


@dataclass(frozen=True, slots=True)
class Base:
    """The layers and configuration that a definition is built on."""

    name: str
    layers: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict[str, str])
    labels: dict[str, str] = field(default_factory=dict[str, str])
    binds: tuple[tuple[str, str], ...] = ()


async def find_base(
    images: ImageRepository, definition: Definition, host: Image, progress: Progress | None, *, host_files: bool
) -> Base:
    """Return the base of a definition, imported or fetched where the store lacks it.

    Raises ``InvalidDefinition`` where there is none, ``ProgramMissing``, ``BuildFailed`` where it cannot be fetched,
    and the errors of an import.
    """
    match definition.bootstrap:
        case "debootstrap":
            return await _debootstrap(images, definition, progress, host_files)
        case "docker":
            return await _docker(images, definition, progress)
        case _:
            return await _local(images, definition, host, progress, host_files)


def check_base(images: ImageRepository, definition: Definition) -> None:
    """Raise the errors of ``find_base`` that can be found without fetching or importing anything."""
    match definition.bootstrap:
        case "debootstrap":
            if images.resolve(_debootstrap_name(definition)) is None:
                _debootstrap_program(definition, host_files=False)
        case "docker":
            reference = _reference(definition)
            if images.resolve(reference) is None:
                find_fetcher(reference, place=_place(definition))
        case _:
            found = _local_base(images, definition, host_files=False)
            if isinstance(found, Path):
                try:
                    check_image(found)
                except SandboxError as error:
                    line = definition.required("From")[1]
                    raise definition.error(line, error.cause, error.remedy) from error


def _of_record(record: ImageRecord) -> Base:
    return Base(record.name, record.layers, dict(record.environment), dict(record.labels), record.binds)


def _local_base(images: ImageRepository, definition: Definition, *, host_files: bool) -> Path | str:
    """Return the file or folder of a base, or the name of an image of the store."""
    source, line = definition.required("From")
    # In an archive, `FILE:TAG` names one of several images; a `localimage` may have a colon in its name.
    file = source.partition(":")[0] if definition.bootstrap != "localimage" else source
    path = definition.path.parent / file
    inside = host_files or lies_inside(path, definition.path.parent)
    if inside and os.path.exists(path):  # noqa: PTH110 - False for a name that is too long, where `Path.exists` raises
        return path
    name = images.resolve(source)
    if name is None:
        stem = stem_of(source.rstrip("/").rpartition("/")[2]) or "NAME"
        problem = f"is neither at {path} nor an image of the store"
        if not inside:
            problem = "is outside of the definition's folder, and not an image of the store"
        raise definition.error(
            line,
            f"The base {source} {problem}",
            f"Put the file there, or give the store an image of that name: ors-server image import FILE --name {stem}",
        )
    return name


async def _local(
    images: ImageRepository, definition: Definition, host: Image, progress: Progress | None, host_files: bool
) -> Base:
    found = await asyncio.to_thread(_local_base, images, definition, host_files=host_files)
    if isinstance(found, Path):
        imported = await import_layers(images, found, progress)
        return Base(found.name, imported.layers, imported.environment, imported.labels)
    if found == "host":
        return _of_record(await import_host(images, host, progress))
    return _of_record(images.record(found))


def _reference(definition: Definition) -> str:
    """Return the base's reference for a registry.

    Raises ``InvalidDefinition`` for a reference that a program could mistake for an option.
    """
    source, line = definition.required("From")
    prefix = "/".join(
        definition.header[word][0].strip("/") for word in ("registry", "namespace") if word in definition.header
    )
    reference = (f"{prefix}/{source}" if prefix else source).removeprefix("docker://")
    if not _REFERENCE.fullmatch(reference):
        raise definition.error(line, f"{reference[:200]!r} is not the name of a registry's image", "Write NAME:TAG")
    return reference


async def _docker(images: ImageRepository, definition: Definition, progress: Progress | None) -> Base:
    reference = _reference(definition)
    name = images.resolve(reference)
    if name is not None:
        return _of_record(images.record(name))
    return _of_record(await fetch_image(images, reference, reference, progress, place=_place(definition)))


def _place(definition: Definition) -> str:
    return f"{definition.path}, line {definition.required('From')[1]}: "


def _debootstrap_name(definition: Definition) -> str:
    suite, _ = definition.required("OSVersion")
    options = f"{_mirror(definition)} {_included(definition)}"
    return f"debootstrap-{suite}-{hashlib.sha256(options.encode()).hexdigest()[:8]}"


def _mirror(definition: Definition) -> str:
    return definition.header.get("mirrorurl", ("", 0))[0]


def _included(definition: Definition) -> str:
    return ",".join(["bash", *definition.header.get("include", ("", 0))[0].replace(",", " ").split()])


def _debootstrap_program(definition: Definition, *, host_files: bool) -> str:
    """Return the path of debootstrap. Raises ``InvalidDefinition`` where it may not be used, ``ProgramMissing``."""
    suite, line = definition.required("OSVersion")
    # debootstrap runs, as root of this machine, packages of the mirror and a script found by the release's name.
    if not host_files:
        raise definition.error(
            line,
            "debootstrap works as root of this machine, in no sandbox, and so not for everybody's definitions",
            f"Build one of your own once, and it stays: ors-server image build --host-files {definition.path}",
        )
    if not _SUITE.fullmatch(suite):
        raise definition.error(line, f"{suite!r} is not the name of a release", "For example: OSVersion: bookworm")
    mirror, mirror_line = definition.header.get("mirrorurl", ("", 0))
    if mirror and not mirror.startswith(("http://", "https://")):
        raise definition.error(mirror_line, f"The mirror {mirror!r} is not an http:// or https:// address")
    where = f"{definition.path}, line {line}"
    program = shutil.which("debootstrap", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise ProgramMissing(f"{where}: debootstrap is not installed", "Debian, Ubuntu: apt install debootstrap")
    if os.geteuid() != 0:
        raise ProgramMissing(
            f"{where}: debootstrap works as root only", "Build this one as root, or start from `Bootstrap: docker`"
        )
    return program


async def _debootstrap(
    images: ImageRepository, definition: Definition, progress: Progress | None, host_files: bool
) -> Base:
    suite, line = definition.required("OSVersion")
    name = _debootstrap_name(definition)
    try:
        return _of_record(images.record(name))
    except UnknownImage:
        pass
    program = _debootstrap_program(definition, host_files=host_files)
    if progress is not None:
        progress(Step(f"Laying down {suite} with debootstrap"))
    mirror = _mirror(definition)
    async with images.layers.folder() as folder:
        target = folder / "root"
        included = f"--include={_included(definition)}"
        await run_program(
            [program, "--variant=minbase", included, suite, str(target), *([mirror] if mirror else [])],
            f"{definition.path}, line {line}: debootstrap cannot lay down {suite}",
            on_line=line_progress(progress),
            remedy="It needs a network and a mirror that has this release (MirrorURL)",
        )
        return _of_record(await import_image(images, target, name, "", progress, source=f"debootstrap {suite}"))
