"""Builds of definition files: base, files, scripts, variables.

Invariant: an image gets its name when its build is complete. A definition that was built before and has not changed is
not built again.
"""

from __future__ import annotations

import asyncio
import hashlib
import stat
from dataclasses import replace
from pathlib import Path

from ors_containers.builds.client import BuildLimits, run_scripts
from ors_containers.builds.scripts import Script
from ors_containers.errors import InvalidImage, UnknownImage
from ors_containers.image import Image
from ors_containers.images.apptainer_def.bootstrap import Base, check_base, find_base
from ors_containers.images.apptainer_def.files import SourceFinder
from ors_containers.images.apptainer_def.parser import Definition, Section, read_definition
from ors_containers.images.building.script_variables import script_variables
from ors_containers.images.progress import Progress, Step, line_progress
from ors_containers.images.repository import ImageRepository
from ors_containers.images.storing.layer_store import layer_key, new_upper
from ors_containers.images.storing.records import ImageRecord
from ors_containers.layers.tree import LayeredTree
from ors_containers.layers.writer import Entry

__all__ = ["build_definition", "check_definition"]

#: The account that owns what %post writes in its home as root: the image's `user`, else this id and home.
_OWN = ("user", 1000, "/home/user")
#: Folders of which the image keeps nothing; Apptainer binds the machine's own there.
_TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - the image's
#: The file in which %post may write variables of the image.
_WRITTEN = "/.singularity.d/env/91-environment.sh"
#: Seconds that the scripts of a definition may take.
_TIMEOUT = 3600.0


async def build_definition(
    images: ImageRepository,
    path: Path,
    name: str,
    host: Image,
    *,
    network: bool,
    host_files: bool,
    progress: Progress | None,
) -> ImageRecord:
    """Build a definition and save its image; see ``ImageStore.build``."""
    definition = await asyncio.to_thread(read_definition, path)
    base = await find_base(images, definition, host, progress, host_files=host_files)
    entries, described = await asyncio.to_thread(_entries, images, definition, base, host_files)
    scripts = _scripts(definition, base)
    variables = definition.section("environment")
    origin = layer_key(
        "definition",
        images.layers.owners.tag,
        list(base.layers),
        base.binds,
        described,
        [[script.text, script.shell, dict(script.environment)] for script in scripts],
        variables.text if variables is not None else "",
        definition.labels(),
    )
    existing = _existing(images, name, origin)
    if existing is not None:
        return existing
    if progress is not None:
        progress(Step(f"Building {name} on {base.name}"))

    record = ImageRecord(name=name, layers=base.layers, binds=base.binds, environment=base.environment)
    if entries:
        paths = images.base_of(record).layers
        key = layer_key("files", images.layers.owners.tag, list(record.layers), described)

        async def write(folder: Path) -> int:
            return await images.layers.owners.write(new_upper(folder), entries, paths, limit=images.max_size)

        await images.layers.provide(key, f"%files of {path}", write)
        record = replace(record, layers=(key, *record.layers))

    image = images.base_of(record)
    key = layer_key("scripts", origin, list(record.layers))

    def where(script: Script, line: int) -> str:
        section = definition.sections.get(script.label.removeprefix("%"))
        place = section.place(line) if section is not None and line else 0
        return f"{definition.path}{f', line {place}' if place else ''}: {script.label}"

    async def run(folder: Path) -> int:
        built = await run_scripts(
            image,
            scripts,
            folder,
            owners=images.layers.owners,
            limits=BuildLimits(disk=images.max_size, seconds=_TIMEOUT),
            network=network,
            temporary=_TEMPORARY,
            own=_OWN,
            said=line_progress(progress),
            state=images.state,
            where=where,
        )
        return built.size

    await images.layers.provide(key, f"scripts of {path}", run)
    record = replace(record, layers=(key, *record.layers))
    record = replace(
        record,
        environment={**base.environment, **await _environment(images, record, variables)},
        labels={**base.labels, **definition.labels()},
        source=str(path),
        origin=origin,
    )
    return images.save(await images.provide_account(record, ""))


def check_definition(images: ImageRepository, path: Path) -> None:
    """Check a definition without building it; see ``ImageStore.check_definition``."""
    definition = read_definition(path)
    check_base(images, definition)
    finder = SourceFinder(definition, limit=images.max_size)
    for source in finder.sources():
        for found in source.found:
            for _ in finder.tree(source.line, found):
                pass


def _existing(images: ImageRepository, name: str, origin: str) -> ImageRecord | None:
    """Return the record of that name if it was built from the same definition."""
    try:
        record = images.record(name)
        if record.origin == origin:
            images.image_of(record)
            return record
    except (UnknownImage, InvalidImage):
        pass
    return None


def _entries(
    images: ImageRepository, definition: Definition, base: Base, host_files: bool
) -> tuple[list[Entry], list[object]]:
    """Return the layer entries of ``%files``, and a description that changes when the files change."""
    tree = LayeredTree(images.layers.path(key) for key in base.layers)
    finder = SourceFinder(definition, host_files=host_files, limit=images.max_size)
    entries: list[Entry] = []
    described: list[object] = []
    for source in finder.sources():
        target = source.target
        below = tree.find(tree.resolve(target, last=True))
        into = (
            target.endswith("/") or len(source.found) > 1 or (below is not None and stat.S_ISDIR(below.status.st_mode))
        )
        for path in source.found:
            if target == source.pattern and target.startswith("/"):
                place = str(path)
            else:
                place = f"{target.rstrip('/')}/{path.name}" if into else target
            for _, bound in base.binds:
                if f"/{tree.resolve(place)}/".startswith(f"{bound}/"):
                    raise definition.error(source.line, f"{place} would be hidden: {bound} is this machine's own there")
            digest = hashlib.sha256()
            for file in finder.tree(source.line, path):
                mode = stat.S_IMODE(file.status.st_mode)
                digest.update(f"{file.relative} {file.status.st_mode:o} ".encode(errors="surrogateescape"))
                if file.is_directory:
                    entries.append(Entry(place + file.relative, "directory", mode=mode))
                    continue
                try:
                    with file.real.open("rb") as stream:
                        digest.update(hashlib.file_digest(stream, "sha256").digest())
                except OSError as error:
                    raise definition.error(source.line, f"{error.filename} cannot be read: {error.strerror}") from error
                entries.append(Entry(place + file.relative, "copy", source=str(file.real)))
            described.append([place, digest.hexdigest()])
    return entries, described


def _scripts(definition: Definition, base: Base) -> list[Script]:
    image_path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    environment = {
        "PATH": image_path,
        "LANG": "C.UTF-8",
        **base.environment,
        "HOME": "/root",
        "USER": "root",
        "LOGNAME": "root",
        # Both names that Apptainer gives the file in which %post may write variables.
        "APPTAINER_ENVIRONMENT": _WRITTEN,
        "SINGULARITY_ENVIRONMENT": _WRITTEN,
        "APPTAINER_ROOTFS": "/",
        "SINGULARITY_ROOTFS": "/",
    }
    scripts: list[Script] = []
    for name in ("post", "test"):
        section = definition.section(name)
        if section is not None:
            scripts.append(Script(f"%{name}", section.text, shell=_shell(section), environment=environment))
    if any("_ENVIRONMENT" in script.text for script in scripts):
        text = f"mkdir -p {Path(_WRITTEN).parent}\n[ -e {_WRITTEN} ] || : > {_WRITTEN}\n"
        scripts.insert(0, Script("preparation", text, environment=environment))
    return scripts


def _shell(section: Section) -> str:
    return section.arguments[1] if section.arguments[:1] == ("-c",) and len(section.arguments) > 1 else "/bin/sh"


async def _environment(images: ImageRepository, record: ImageRecord, section: Section | None) -> dict[str, str]:
    """Return the variables that ``%environment``, and the file written by %post, set in the image's own shell."""
    tree = LayeredTree(images.layers.path(key) for key in record.layers)
    written = tree.find(_WRITTEN)
    if section is None and (written is None or not written.status.st_size):
        return {}
    image = images.base_of(record)
    # The variables of the image's user, so that `$HOME/bin` is a folder of that user.
    before = {**image.variables, "HOME": _OWN[2], "USER": _OWN[0], "LOGNAME": _OWN[0]}
    text = "{\n" + (section.text if section is not None else "")
    text += f"[ ! -e {_WRITTEN} ] || . {_WRITTEN}\n}} >/dev/null\n"
    return await script_variables(images, image, "%environment", text, before)
