"""The interface of a runtime, which starts sandboxes on this machine, and the registry of runtimes.

Runtimes, those of this package included, are registered under the entry point group ``ors_containers.runtimes``. A
package adds one in its ``pyproject.toml``::

    [project.entry-points."ors_containers.runtimes"]
    mine = "my_package:MyRuntime"

and checks it with ``ors_containers.self_check``.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from types import TracebackType
from typing import ClassVar, Literal, Self

from ors_containers.container import Container, ContainerPolicy, ContainerSettings
from ors_containers.errors import RuntimeUnavailable, UnknownRuntime
from ors_containers.image import Image
from ors_containers.limits import Enforcement, Limits
from ors_containers.sandbox import Sandbox

__all__ = ["ENTRY_POINTS", "Description", "HardLinks", "Runtime", "find_runtime", "runtime_names"]

ENTRY_POINTS = "ors_containers.runtimes"


#: ``whole``: of every file. ``small layers``: of the files in layers of at most ``SMALL_LAYER_SIZE`` bytes and
#: ``SMALL_LAYER_FILES`` files (``launcher.whole_files``); of a larger layer, git objects. ``broken``: not even of the
#: host image's.
HardLinks = Literal["whole", "small layers", "broken"]


def _hold_nothing(count: int) -> None:
    """Count no files: admission is another's business."""


@dataclass(frozen=True, slots=True)
class Description:
    """The abilities of a runtime on this machine."""

    runtime: str
    #: The version of the program that makes its containers.
    version: str
    #: One for each of ``LIMIT_NAMES``, in that order.
    enforcements: tuple[Enforcement, ...]
    #: Notes for the user about this machine, a sentence each.
    notes: tuple[str, ...] = ()
    #: Paths in a sandbox whose inodes are the machine's: other sandboxes can notice its locks and watches there.
    shared: tuple[str, ...] = ()
    #: Files of an image to which a hard link is the same file, with one inode.
    hard_links: HardLinks = "whole"

    @property
    def holds(self) -> bool:
        """True if every limit holds."""
        return all(enforcement.holds for enforcement in self.enforcements)


class Runtime(abc.ABC):
    """Starts sandboxes. An asynchronous context manager; it and its sandboxes belong to one event loop.

    A runtime isolates as ``Sandbox`` says or not at all: on a machine where it cannot, ``start`` raises
    ``RuntimeUnavailable`` with the remedy. Only limits may be enforced in part, and ``describe`` says which hold.

    Errors: ``start`` raises ``RuntimeUnavailable``; ``sandbox`` raises ``InvalidImage`` for an image this runtime
    cannot start, and nothing else; ``host_image`` raises ``InvalidImage``; ``close`` raises nothing.
    """

    #: The name under which it is registered.
    name: ClassVar[str]
    #: Set before ``start``.
    policy: ContainerPolicy = ContainerPolicy()
    #: Called with the number of files that a sandbox may open, when it starts, and with its negative when it has ended;
    #: set before ``start``.
    hold_files: Callable[[int], None] = staticmethod(_hold_nothing)

    @abc.abstractmethod
    async def start(self) -> None:
        """Find out what this machine allows, and free what dead servers left behind."""

    @abc.abstractmethod
    def describe(self) -> Description:
        """Describe what is enforced here, as ``start`` has found it."""

    @abc.abstractmethod
    def host_image(self) -> Image:
        """Return an image of this machine's own programs, read-only, without its other files."""

    @abc.abstractmethod
    def sandbox(self, image: Image, limits: Limits | None = None) -> Sandbox:
        """Return a new sandbox, which is not started."""

    async def open_container(self, image: Image, settings: ContainerSettings | None = None) -> Container:
        """Return a new docker-like container, started; the caller closes it.

        Raises ``InvalidMount``, ``ProgramMissing`` and ``StartFailed``, and ``RuntimeUnavailable`` where the runtime
        has no containers.
        """
        raise RuntimeUnavailable(f"The {self.name} runtime has no docker-like containers", "Use bubblewrap")

    @abc.abstractmethod
    async def close(self) -> None:
        """Stop every sandbox and container, and free every resource."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def runtime_names() -> list[str]:
    """Return the names of the installed runtimes, bubblewrap first."""
    names = sorted({entry.name for entry in entry_points(group=ENTRY_POINTS)})
    return sorted(names, key=lambda name: name != "bubblewrap")


def find_runtime(name: str) -> type[Runtime]:
    """Return the class registered under ``name``. Raises ``UnknownRuntime``, and any error of its import."""
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name == name:
            return entry.load()
    raise UnknownRuntime(f"No runtime {name!r} is installed", f"Installed: {', '.join(runtime_names())}")
