"""The interface of a sandbox, and the results of its methods."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Self

from ors_containers.image import Image
from ors_containers.limits import Limits
from ors_containers.linux.sandbox_paths import EXAMINATION

__all__ = [
    "EXAMINATION",
    "TIMED_OUT_STATUS",
    "CommandResult",
    "ExecutionResult",
    "FileKind",
    "FileStatus",
    "OutputStream",
    "RecordedPaths",
    "Sandbox",
    "WarmProgram",
]

#: The exit status of a command or an examination that was timed out.
TIMED_OUT_STATUS = 124

OutputStream = Literal["stdout", "stderr"]
FileKind = Literal["file", "directory", "link", "pipe", "socket", "device", "unknown"]


@dataclass(frozen=True, slots=True)
class WarmProgram:
    """A program of an examination that a copy of a Python may run which has been started and has imported before.

    The program's last argument is a file of the examination, ``MODULE.pyc``; the words before it start the Python.
    """

    #: The module's name. It imports on the standard library, the packages and the other files alone, starts nothing
    #: when it is imported, and its ``main`` takes nothing and returns the exit status.
    module: str
    #: The toolset's folder on this machine, and its paths in a sandbox: its own, and that of its packages.
    folder: Path
    at: str
    packages: str
    #: Names of modules to import before, of the standard library and the packages.
    ahead: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The exit status and the output of a command."""

    #: Exit status as a shell counts: 128 + n for signal n. ``TIMED_OUT_STATUS`` for a command that was timed out.
    exit_status: int
    #: Standard output and error as they came, at most ``Limits.output`` bytes of them (see ``truncated``).
    output: bytes
    #: Seconds it took.
    seconds: float
    #: It was killed at its time-out.
    timed_out: bool = False
    #: The middle of its output is missing; a line says how many bytes are omitted.
    truncated: bool = False
    #: Its shell ended and a new one was started in the same directory with the same exported environment. Functions,
    #: aliases, options and variables that were not exported are lost; the output says so. Its background processes go
    #: on, but their output from then on is dropped.
    shell_restarted: bool = False
    #: Seconds of ``seconds`` in which it waited for processors that others used, as far as that was looked at: not in
    #: the first tenth of its time-out, and not where the kernel has no counters for the sandbox.
    waited: float = 0.0

    @property
    def text(self) -> str:
        """The output as text; bytes that are not UTF-8 are replaced."""
        return self.output.decode(errors="replace")


class RecordedPaths(NamedTuple):
    """The files that a command and the processes that it started have used: absolute paths in their root.

    A path with links is there as it was named, and as it is without them. What is in /proc, /sys and /dev is left out.
    """

    #: Programs, and the interpreters and loaders that the kernel starts for them.
    executed: frozenset[str] = frozenset()
    #: Regular files that were opened for reading, libraries among them, and the links on the way to any path.
    opened: frozenset[str] = frozenset()
    #: Directories that were opened.
    listed: frozenset[str] = frozenset()
    #: Paths at which nothing was, when one of them was to be executed, opened or looked up.
    missing: frozenset[str] = frozenset()
    #: Files that an interpreter was given as its script, as ``sh run.sh``.
    scripts: frozenset[str] = frozenset()
    #: Directories where a Python looks for modules before its own: its script's, its working directory, PYTHONPATH.
    searched: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """The exit status of a program, and its standard output and error."""

    #: Exit status as a shell counts: 128 + n for signal n. ``TIMED_OUT_STATUS`` for a program that was timed out.
    exit_status: int
    stdout: bytes
    stderr: bytes
    #: Seconds it took.
    seconds: float
    #: It was killed at its time-out.
    timed_out: bool = False
    #: ``stdout`` or ``stderr`` lacks its end.
    truncated: bool = False
    #: False for a program that could not be executed; ``stderr`` then says why.
    started: bool = True
    #: Seconds of ``seconds`` in which it waited for processors, as in ``CommandResult``.
    waited: float = 0.0
    #: What it used until it ended, where that was asked for.
    recorded: RecordedPaths | None = None


@dataclass(frozen=True, slots=True)
class FileStatus:
    """The kind, size, mode, owner and time of a path in a sandbox."""

    kind: FileKind
    #: Bytes.
    size: int
    #: Permission bits.
    mode: int
    user: int
    group: int
    #: Seconds since 1970.
    modified: float
    #: The target of a link as it is written; None for other kinds.
    link: str | None = None


class Sandbox(abc.ABC):
    """A sandbox of one image under one set of limits. Made by ``Runtime.sandbox``; an asynchronous context manager.

    **Isolation.** Its processes see the image and their own files; no file, process, socket or network of the host, no
    other sandbox, and no device but null, zero, full, random, urandom and terminals of their own. They have no
    capability and cannot get one; their files are removed when the sandbox stops. Its user is the image's, by default
    not root.

    **Shell.** One bash lives as long as the sandbox. Each command runs in it, in turn, so directory, exported
    environment, functions and background processes last from command to command. A command's standard input is empty.
    Its output is what it and its background processes write until it ends; what these write later comes with the next
    command's. Whatever a command prints, closes, redirects or reads, the next command is unaffected.

    **Time-outs.** A command past its time is killed with every process it started, while processes of earlier commands
    go on, and the shell stays as it was. A shell that does not respond is replaced, as ``CommandResult`` says. Time in
    which the sandbox waited for processors that other tenants of the machine used does not count, in commands and
    examinations; after six times the time-out, and five minutes, ``MachineOverloaded`` is raised instead.

    **Files.** Paths are the sandbox's own, relative ones count from the image's home; they are resolved inside it, with
    its user's rights, so no link and no ``..`` leads out. Only regular files are read and written. A hard link made
    inside to a file of the image is that file, with its inode and device, as far as ``Description.hard_links`` says.

    **Errors.** Of every method:

    - ``SandboxStopped``: called before ``start`` or after ``stop``;
    - ``SandboxExpired`` (a ``TimeoutError``): its wall time is over;
    - ``SandboxDied``, an ``InfrastructureFailure``: it ended by itself. Its results cannot be trusted or scored.

    A sandbox belongs to the event loop it was started on. A cancelled call leaves it usable; a cancelled ``run`` ends
    its command as a time-out does.
    """

    #: Unique on this machine, and printable.
    id: str
    image: Image
    limits: Limits

    @abc.abstractmethod
    async def start(self) -> None:
        """Start the sandbox; return when commands can run.

        Raises ``StartFailed`` when it does not start, ``RuntimeUnavailable`` where the runtime cannot isolate here
        and ``ShellFailed`` when no shell can be started in it; after any of them no process or file of it is left.
        """

    @abc.abstractmethod
    async def run(self, command: str, *, timeout: float, output_limit: int | None = None) -> CommandResult:
        """Run shell text in the sandbox's shell.

        ``timeout`` is in seconds, ``output_limit`` in bytes, at most the sandbox's own.

        A command that fails, is killed or times out is a result, never an error. Raises ``InvalidCommand`` for text
        with NUL characters or surrogates and for a time-out that is not above 0, ``SandboxBusy`` while another command
        runs, and ``ShellFailed`` when the shell ended and a new shell cannot be started.
        """

    @abc.abstractmethod
    async def examine(
        self,
        program: Sequence[str],
        *,
        files: Mapping[str, bytes] | None = None,
        input: bytes = b"",
        timeout: float,
        output_limit: int | None = None,
        keep_processes: bool = False,
        private_output: bool = False,
        warm: WarmProgram | None = None,
    ) -> CommandResult:
        """Examine the sandbox: run a trusted program in it that the agent's processes cannot inspect or change.

        ``program`` is an argument vector whose first word is an absolute path in the sandbox. It runs as the image's
        user, in the image's home and with the image's variables (none that the agent has set; of ``LD_…`` only
        ``LD_LIBRARY_PATH``, and neither ``GCONV_PATH`` nor ``LOCPATH``: they could name the agent's code). It has
        limits of the sandbox's size for itself, which the agent's processes do not use up. Its input is ``input``; the
        result's output is what it and its descendants write to their standard output and error, up to ``output_limit``
        bytes (by default the sandbox's own limit, but it may be more). When it ends or times out, its descendants are
        killed.

        Before it starts

        - with ``keep_processes=False`` (*frozen*) every process of the sandbox is killed; it runs alone;
        - with ``keep_processes=True`` (*live*) only the shell is killed; background processes go on, and it sees them
          and their sockets as they see each other.

        The next ``run`` gets a new shell, as ``CommandResult.shell_restarted`` describes.

        ``files`` (relative names and their content) lie in ``EXAMINATION``, a directory in memory that only this
        program and its descendants can see, that it can write, and that is removed afterwards; a full sandbox disk does
        not affect it. In a sandbox with more than one id, background processes do not see this program and its
        descendants, or their arguments; where there is one id, arguments are public.

        The sandbox cannot prevent a frozen examination: neither by processes that fork, stop or kill others, nor by
        limits that are used up. In a live one, processes of the agent have the program's own user: they cannot read
        or change its memory, descriptors, files and output. A runtime that cannot keep their signals away lets these
        end it (a result, and nothing a grader would reward). A program that starts programs of the agent gives them
        its rights; before it does, it protects itself as ``ors_containers.graders.process_isolation`` says.

        With ``private_output`` the output cannot be opened again, as /dev/stdout: a program that follows a link of the
        agent to its own descriptors writes nothing there, and no code in it takes back what it has said.

        ``warm`` says how a runtime may save the start of the program, which is a Python of a toolset then. Where it
        does, the program sees no other difference.

        The exit status is as a shell counts: 127 and 126 where the program is missing or cannot be executed. Raises
        ``InvalidCommand`` for arguments no program can be given, a file name that leads elsewhere and a time-out that
        is not above 0, ``SandboxBusy`` while a command or another examination runs, and ``ExaminationFailed`` when the
        machine could not do it, which says nothing about the agent.
        """

    @abc.abstractmethod
    async def read_file(self, path: str, *, limit: int = 100 * 2**20) -> bytes:
        """Return the content of a file of at most ``limit`` bytes.

        Raises ``NoSuchFile``, ``FileRefused``, ``NotAFile`` (at once, also for a pipe without a writer) or
        ``FileTooLarge``.
        """

    @abc.abstractmethod
    async def write_file(self, path: str, content: bytes, *, mode: int = 0o644, parents: bool = True) -> None:
        """Make a file, or replace its content; with ``parents`` make the directories above it, too.

        Raises ``NoSuchFile`` (without ``parents``), ``FileRefused``, ``NotAFile`` or ``DiskFull``; after ``DiskFull``
        part of the content may be there.
        """

    @abc.abstractmethod
    async def stat_file(self, path: str, *, follow: bool = True) -> FileStatus:
        """Describe ``path``, or with ``follow`` the target of a link. Raises ``NoSuchFile`` or ``FileRefused``."""

    @abc.abstractmethod
    async def stop(self) -> None:
        """End every process and free every resource. Never raises; may be called at any time and repeatedly."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()
