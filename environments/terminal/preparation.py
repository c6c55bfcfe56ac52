"""Preparation of the image that a task's episodes start from, made once for all concurrent requests.

Slow work is done before a session is served and shared by all of its group: a generated task's files and set-up become
a layer over the plain image, a definition is built, an archive is unpacked. The store keeps the results by content.

Invariant: the agent's home belongs to the agent. Everything the episode's sandbox needs for grading (the toolset) is
bound into it from the start, read-only.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ors_containers import CallerError, Image, Limits, Runtime, Sandbox, SandboxError
from ors_containers.container import Container, ContainerSettings
from ors_containers.errors import BuildNeedsNetwork, UnknownImage

from ors_server import InfrastructureFailure

from .settings import TerminalSettings
from .task import BuiltImage, TerminalTask

if TYPE_CHECKING:
    from ors_containers.graders.portable_python import Toolset
    from ors_containers.images import ImageStore

__all__ = ["Service", "episode_sandbox", "grading_unavailable", "plain_image", "program_finder", "task_image"]

logger = logging.getLogger("ors_server.terminal")

_START_TIMEOUT = 60.0
#: Names of images that were built, or found up to date, by this process.
_built: set[str] = set()
_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


class Service(Protocol):
    """The part of ``ors_server.sandboxes.SandboxService`` that episodes need."""

    @property
    def runtime(self) -> Runtime: ...

    @property
    def store(self) -> ImageStore: ...

    async def toolset(self) -> Toolset: ...

    async def open(self, image: Image, limits: Limits | None = None) -> Sandbox: ...

    async def open_container(self, image: Image, settings: ContainerSettings | None = None) -> Container: ...


async def episode_sandbox(service: Service, task: TerminalTask, settings: TerminalSettings) -> Sandbox:
    """Start a sandbox of a task, with the processes that the task needs. The caller stops it.

    Raises ``InfrastructureFailure`` where the task cannot be prepared, and what starting a sandbox raises.
    """
    try:
        image = await task_image(service, task, settings)
        toolset = await service.toolset()
        image = dataclasses.replace(image, binds=(*image.binds, toolset.bind))
        sandbox = await service.open(image, settings.limits)
    except (CallerError, OSError) as error:
        # A faulty task is an infrastructure failure to the agent: there is no episode.
        cause, remedy = (error.cause, error.remedy) if isinstance(error, CallerError) else (str(error), "")
        raise InfrastructureFailure(f"The task {task.name!r} cannot be prepared: {cause}", remedy) from error
    if task.start:
        try:
            await _start(sandbox, task)
        except BaseException:
            await sandbox.stop()
            raise
    return sandbox


async def task_image(service: Service, task: TerminalTask, settings: TerminalSettings) -> Image:
    """Return the image of a task, which is made if it does not exist. Raises what the store raises."""
    from ors_containers.images import Recipe, RecipeFile

    made = task.image
    if isinstance(made, BuiltImage):
        return await _built_image(service, made, network=settings.build_network)
    plain = plain_image(service, settings.image)
    if not (made.files or made.setup):
        return plain
    files = {
        path: RecipeFile(file.content, None if file.link is not None else file.mode, file.link, file.directory)
        for path, file in made.files.items()
    }
    return await service.store.derive(plain, Recipe(files=files, script=made.setup))


async def _built_image(service: Service, made: BuiltImage, *, network: bool) -> Image:
    """Return the image of a definition or an archive.

    Changes are detected by size and time: reading gigabytes for each session would cost more than the session. Changes
    of the files that a definition copies, or of its base, take effect when the server starts.
    """
    store = service.store
    source = made.archive or made.definition
    assert source is not None
    if (image := _find(store, made, _name(source, made.stamp))) is not None:
        return image
    # It is made of the file as it is now, and may have waited for hours for room.
    status = await asyncio.to_thread(source.stat)
    name = _name(source, (status.st_size, status.st_mtime_ns))
    if (image := _find(store, made, name)) is not None:
        return image
    if made.archive is not None:
        image = await store.import_image(made.archive, name)
    else:
        try:
            image = await store.build(source, service.runtime, name=name, network=network)
        except BuildNeedsNetwork as error:
            remedy = "It seems to need the network, which ORS_TERMINAL_BUILD_NETWORK=true allows."
            raise BuildNeedsNetwork(error.cause, remedy, output=error.output) from error
    _built.add(name)
    return image


def _name(source: Path, stamp: tuple[int, int]) -> str:
    """Return the name of the image of a file. Only a digest: a folder's name may be no name for an image."""
    size, changed = stamp
    return f"task-{hashlib.sha256(f'{source} {size} {changed}'.encode(errors='surrogateescape')).hexdigest()[:24]}"


def _find(store: ImageStore, made: BuiltImage, name: str) -> Image | None:
    """Return the image of that name: of a definition only if this process has built it, or found it up to date."""
    if made.archive is None and name not in _built:
        return None
    try:
        return store.find(name)
    except UnknownImage:
        return None


async def grading_unavailable() -> str:
    """Return the reason why this machine's Python cannot grade in sandboxes.

    Where it can, return an empty text and make the toolset.
    """
    from ors_containers.graders.portable_python import python_toolset
    from ors_containers.images import ImageStore

    try:
        await python_toolset(ImageStore().root / "toolsets", _announce)
    except SandboxError as error:
        return str(error)
    return ""


def _announce() -> None:
    # A warning, because the server's logs are not set up yet, and without a message this would look like a hang.
    logger.warning("preparing the grader's Python, once for this version of Python: it may take a minute")


def plain_image(service: Service, name: str) -> Image:
    """Find an image by name: ``host``, or one of the store. Raises ``UnknownImage`` and ``InvalidImage``."""
    return service.runtime.host_image() if name == "host" else service.store.find(name)


def program_finder(image: str) -> Callable[[str], bool]:
    """Return a function that tells whether an image has a command, without starting a sandbox of it.

    Raises ``UnknownImage``.
    """
    if image == "host":
        return lambda program: shutil.which(program, path=":".join(_FOLDERS)) is not None
    from ors_containers.images import ImageStore
    from ors_containers.layers.tree import LayeredTree

    store = ImageStore()
    try:
        tree = LayeredTree(store.find(image).layers)
    finally:
        store.close()

    def has_program(program: str) -> bool:
        # Paths are resolved in the image's tree: its links apply, and files removed by an upper layer are gone.
        return any(tree.find(tree.resolve(f"{folder}/{program}", last=True)) is not None for folder in _FOLDERS)

    return has_program


async def _start(sandbox: Sandbox, task: TerminalTask) -> None:
    # A subshell: what it starts goes on, and the agent's shell stays unchanged.
    result = await sandbox.run(f"(\n{task.start}\n)", timeout=_START_TIMEOUT)
    if result.exit_status != 0:
        raise InfrastructureFailure(
            f"The task {task.name!r} did not start: status {result.exit_status}, {result.text.strip()[-300:]}",
            f"Correct what its `start` does ({task.origin}).",
        )
