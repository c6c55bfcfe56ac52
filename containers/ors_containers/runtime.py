"""A way to start sandboxes on this machine, and where such ways are found.

Runtimes are registered under the entry point group ``ors_containers.runtimes``, ours and anybody's alike. A package
adds one with, in its ``pyproject.toml``::

    [project.entry-points."ors_containers.runtimes"]
    mine = "my_package:MyRuntime"

and checks it with ``ors_containers.self_check``.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from importlib.metadata import entry_points
from types import TracebackType
from typing import ClassVar, Self

from ors_containers.errors import UnknownRuntime
from ors_containers.image import Image
from ors_containers.limits import Enforcement, Limits
from ors_containers.sandbox import Sandbox

__all__ = ["ENTRY_POINTS", "Description", "Runtime", "find_runtime", "runtime_names"]

ENTRY_POINTS = "ors_containers.runtimes"


@dataclass(frozen=True, slots=True)
class Description:
    """What a runtime does on this machine."""

    runtime: str
    #: Of the program it rests on.
    version: str
    #: One for each of ``LIMIT_NAMES``, in that order.
    enforcements: tuple[Enforcement, ...]
    #: What else a person should know of it here, a sentence each.
    notes: tuple[str, ...] = ()
    #: Places in a sandbox whose inodes are the machine's: what is locked or watched there, other sandboxes can tell.
    shared: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every limit holds."""
        return all(enforcement.holds for enforcement in self.enforcements)


class Runtime(abc.ABC):
    """Starts sandboxes. An asynchronous context manager; it and its sandboxes belong to one event loop.

    A runtime isolates as ``Sandbox`` says or not at all: what it cannot do on a machine is a ``RuntimeUnavailable`` at
    ``start``, with the remedy. Limits are the one thing it may keep in part, and ``describe`` says which it keeps.

    Errors: ``start`` raises ``RuntimeUnavailable``; ``sandbox`` raises ``InvalidImage`` for an image this runtime
    cannot start, and nothing else; ``host_image`` raises ``InvalidImage``; ``close`` raises nothing.
    """

    #: The name it is registered under.
    name: ClassVar[str]

    @abc.abstractmethod
    async def start(self) -> None:
        """Find out what this machine allows, and free what servers that died left behind."""

    @abc.abstractmethod
    def describe(self) -> Description:
        """What is enforced here, as found out by ``start``."""

    @abc.abstractmethod
    def host_image(self) -> Image:
        """An image of this machine's own programs, read-only, and nothing else of it."""

    @abc.abstractmethod
    def sandbox(self, image: Image, limits: Limits | None = None) -> Sandbox:
        """A sandbox, not yet started."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Stop every sandbox that was not stopped, and free everything."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def runtime_names() -> list[str]:
    """The runtimes that are installed, ours first."""
    names = sorted({entry.name for entry in entry_points(group=ENTRY_POINTS)})
    return sorted(names, key=lambda name: name != "bubblewrap")


def find_runtime(name: str) -> type[Runtime]:
    """The class registered under ``name``. Raises ``UnknownRuntime``; importing it may raise what it raises."""
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name == name:
            return entry.load()
    raise UnknownRuntime(f"No runtime {name!r} is installed", f"Installed: {', '.join(runtime_names())}")
