"""One sandbox: what it can be asked, and what its answers mean."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from ors_containers.image import Image
from ors_containers.limits import Limits

__all__ = ["CommandResult", "FileKind", "FileStatus", "Sandbox"]

FileKind = Literal["file", "directory", "link", "pipe", "socket", "device", "unknown"]


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended and what it wrote."""

    #: Exit status as a shell counts: 128 + n for signal n. For a command that was timed out, 124.
    exit_status: int
    #: Standard output and error as they came, at most ``Limits.output`` bytes of them (see ``truncated``).
    output: bytes
    #: Seconds it took.
    seconds: float
    #: It did not end in time and was killed.
    timed_out: bool = False
    #: The middle of its output is missing; a line in its place says how much.
    truncated: bool = False
    #: Its shell ended and a new one was started in the same directory with the same exported environment. What the
    #: shell held besides (functions, aliases, variables that were not exported, options) is lost; the output says so.
    shell_restarted: bool = False

    @property
    def text(self) -> str:
        """The output as text; bytes that are no UTF-8 are replaced."""
        return self.output.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class FileStatus:
    """What a path in a sandbox is."""

    kind: FileKind
    #: Bytes.
    size: int
    #: Permission bits.
    mode: int
    user: int
    group: int
    #: Seconds since 1970.
    modified: float
    #: Where a link leads, as it is written; None for anything else.
    link: str | None = None


class Sandbox(abc.ABC):
    """A sandbox of one image under one set of limits. Made by ``Runtime.sandbox``; an asynchronous context manager.

    **Isolation.** Its processes see the image and what they wrote themselves; no file, process, socket or network of
    the host, no other sandbox, and no device but null, zero, full, random, urandom and terminals of their own. They
    have no capability and cannot get one; what they write is gone when it stops. Its user is the image's, by default
    not root.

    **Shell.** One bash lives as long as the sandbox. Each command runs in it, in turn, so directory, exported
    environment, functions and background processes last from command to command. A command's standard input is empty.
    Its output is what it and its background processes write until it ends; what these write later comes with the next
    command's. Whatever a command prints, closes, redirects or reads, the next command is unaffected.

    **Time-outs.** A command past its time is killed with every process it started, while processes of earlier commands
    go on, and the shell stays as it was. A shell that cannot be had back is replaced, as ``CommandResult`` says.

    **Files.** Paths are the sandbox's own, relative ones count from the image's home; they are resolved inside it, with
    its user's rights, so no link and no ``..`` leads out. Only regular files are read and written.

    **Errors.** Of every method:

    - ``SandboxStopped``: called before ``start`` or after ``stop``;
    - ``SandboxExpired`` (a ``TimeoutError``): its wall time is over;
    - ``SandboxDied``, an ``InfrastructureFailure``: it ended by itself. Nothing it did can be trusted or scored.

    A sandbox belongs to the event loop it was started on. A cancelled call leaves it usable; a cancelled ``run`` ends
    its command as a time-out does.
    """

    #: Unique on this machine, and printable.
    id: str
    image: Image
    limits: Limits

    @abc.abstractmethod
    async def start(self) -> None:
        """Bring it up; returns when commands can run.

        Raises ``StartFailed`` when it does not come up, ``RuntimeUnavailable`` where the runtime cannot isolate here
        and ``ShellFailed`` when no shell can be started in it; after any of them nothing of it is left.
        """

    @abc.abstractmethod
    async def run(self, command: str, *, timeout: float, output_limit: int | None = None) -> CommandResult:
        """Run shell text in the sandbox's shell. ``timeout`` in seconds; ``output_limit`` in bytes, never above the
        sandbox's own.

        A command that fails, is killed or times out is a result, never an error. Raises ``InvalidCommand`` for text
        with NUL characters or surrogates and for a time-out that is not above 0, ``SandboxBusy`` while another command
        runs, and ``ShellFailed`` when the shell ended and no new one can be started.
        """

    @abc.abstractmethod
    async def read_file(self, path: str, *, limit: int = 100 * 2**20) -> bytes:
        """The content of a file of at most ``limit`` bytes.

        Raises ``NoSuchFile``, ``FileRefused``, ``NotAFile`` (at once, also for a pipe nobody writes to) or
        ``FileTooLarge``.
        """

    @abc.abstractmethod
    async def write_file(self, path: str, content: bytes, *, mode: int = 0o644, parents: bool = True) -> None:
        """Make a file, or replace its content; with ``parents`` also the directories above it.

        Raises ``NoSuchFile`` (without ``parents``), ``FileRefused``, ``NotAFile`` or ``DiskFull``; after ``DiskFull``
        part of the content may be there.
        """

    @abc.abstractmethod
    async def stat_file(self, path: str, *, follow: bool = True) -> FileStatus:
        """What ``path`` is; with ``follow`` what a link leads to. Raises ``NoSuchFile`` or ``FileRefused``."""

    @abc.abstractmethod
    async def stop(self) -> None:
        """End every process and free everything it held. Never raises, may be called at any time and repeatedly."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()
