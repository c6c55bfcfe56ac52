"""Every error of ors_containers, in one tree.

    SandboxError
    ├── CallerError                          the caller has to change something; asking again unchanged will not help
    │   ├── InvalidImage (ValueError)        an image that cannot be started: no folder, no bash, …
    │   │   ├── InvalidArchive               an archive that is cut short, altered, or leads out of the image
    │   │   ├── InvalidDefinition            a definition file with a mistake; `file` and `line` say where
    │   │   └── ImageTooLarge                more bytes than the store's limit for one image
    │   ├── BuildFailed (RuntimeError)       a script of a definition or recipe failed; `output` is what it said last
    │   ├── UnknownImage (LookupError)       no image of this name in the store
    │   ├── InvalidLimits (ValueError)       limits that no machine can keep, or that contradict each other
    │   ├── InvalidCommand (ValueError)      a command no shell can be given
    │   ├── SandboxBusy                      a second command while one runs: a shell does one thing at a time
    │   ├── SandboxStopped                   used before `start` or after `stop`
    │   ├── SandboxExpired (TimeoutError)    its wall time is over
    │   ├── UnknownRuntime (LookupError)     no runtime of this name is installed
    │   └── FileError (OSError)              a file of the sandbox; `errno` says what
    │       ├── NoSuchFile (FileNotFoundError)
    │       ├── FileRefused (PermissionError)
    │       ├── NotAFile                     a directory, device, pipe or socket where a regular file is needed
    │       ├── FileTooLarge                 larger than the caller wants to read
    │       └── DiskFull                     the sandbox's own disk limit, not the host's
    └── InfrastructureFailure                the machine failed, not the agent: never a reward
        ├── RuntimeUnavailable               this runtime cannot isolate on this machine
        ├── StartFailed                      the sandbox did not come up
        ├── SandboxDied                      it was alive and no longer is, and nobody of ours stopped it
        ├── LauncherGone                     the process that starts sandboxes has ended, and all of them with it
        ├── ShellFailed                      the sandbox lives, but no shell can be started in it
        ├── ExaminationFailed                the sandbox lives, but could not be examined
        │   └── ProcessesRemain              … because its processes did not end, though they were killed
        ├── ProgramMissing                   a program that the machine lacks is needed for this
        ├── StoreFailed                      the store of images cannot be written: full, read-only, not ours
        └── Overloaded                       the machine has no room for another sandbox now; asking later may help

Whoever runs an environment needs only the two branches: an ``InfrastructureFailure`` is reported as one, and a
``CallerError`` is a mistake in the environment's code or its input.
"""

from __future__ import annotations

import errno
import os

__all__ = [
    "BuildFailed",
    "CallerError",
    "DiskFull",
    "ExaminationFailed",
    "FileError",
    "FileRefused",
    "FileTooLarge",
    "ImageTooLarge",
    "InfrastructureFailure",
    "InvalidArchive",
    "InvalidCommand",
    "InvalidDefinition",
    "InvalidImage",
    "InvalidLimits",
    "NoSuchFile",
    "NotAFile",
    "Overloaded",
    "ProcessesRemain",
    "ProgramMissing",
    "RuntimeUnavailable",
    "SandboxBusy",
    "SandboxDied",
    "SandboxError",
    "SandboxExpired",
    "SandboxStopped",
    "ShellFailed",
    "StartFailed",
    "StoreFailed",
    "UnknownImage",
    "UnknownRuntime",
    "file_error",
]


_LAST_LINES = 10


class SandboxError(Exception):
    """The root: what went wrong (``cause``) and what to do about it (``remedy``, may be empty)."""

    def __init__(self, cause: str, remedy: str = "") -> None:
        self.cause = cause
        self.remedy = remedy
        super().__init__(cause if not remedy else f"{cause.rstrip('.')}. {remedy}")


class CallerError(SandboxError):
    """The caller's mistake."""


class InvalidImage(CallerError, ValueError):
    """The image cannot be started as it is."""


class InvalidArchive(InvalidImage):
    """An archive that is no image, is cut short, does not match its digest, or would write outside of the image."""


class InvalidDefinition(InvalidImage):
    """A mistake in a definition file; ``line`` counts from 1, and is 0 where it is about the whole file."""

    def __init__(self, file: str, line: int, cause: str, remedy: str = "") -> None:
        self.file = file
        self.line = line
        super().__init__(f"{file}{f', line {line}' if line else ''}: {cause}", remedy)


class ImageTooLarge(InvalidImage):
    """An image has more bytes than the store takes for one."""


class BuildFailed(CallerError, RuntimeError):
    """A script of a definition or a recipe failed or took too long; ``output`` is the end of what it said."""

    def __init__(self, cause: str, remedy: str = "", *, output: str = "") -> None:
        self.output = output
        super().__init__(cause, remedy)

    def __str__(self) -> str:
        last = [f"  {line}" for line in self.output.splitlines()[-_LAST_LINES:]]
        return "\n".join([self.cause, *last, *([self.remedy] if self.remedy else [])])


class UnknownImage(CallerError, LookupError):
    """No image of this name."""


class InvalidLimits(CallerError, ValueError):
    """The limits cannot be kept."""


class InvalidCommand(CallerError, ValueError):
    """The command cannot be given to a shell, or its time-out is no time."""


class SandboxBusy(CallerError):
    """A command is running in this sandbox already."""

    def __init__(self) -> None:
        super().__init__("A command is running in this sandbox", "Await it, or use another sandbox")


class SandboxStopped(CallerError):
    """The sandbox has been stopped, or was never started."""

    def __init__(self, sandbox: str) -> None:
        super().__init__(f"Sandbox {sandbox} is not running: it was stopped or never started")


class SandboxExpired(CallerError, TimeoutError):
    """The sandbox was stopped because its wall time was over."""

    def __init__(self, sandbox: str, seconds: float) -> None:
        super().__init__(f"Sandbox {sandbox} was stopped after its wall time of {seconds:g} s")


class UnknownRuntime(CallerError, LookupError):
    """No runtime of this name is installed."""


class FileError(CallerError, OSError):
    """An operation on a file of the sandbox failed, as ``errno`` says."""

    def __init__(self, path: str, number: int, cause: str = "") -> None:
        super().__init__(f"{path}: {cause or os.strerror(number)}")
        self.errno = number
        self.filename = path

    def __str__(self) -> str:
        return self.cause  # an OSError's own text would be its number


class NoSuchFile(FileError, FileNotFoundError):
    """No file of this name in the sandbox, or a parent of it is no directory."""


class FileRefused(FileError, PermissionError):
    """The sandbox's user may not do this, or that part of its root is read-only."""


class NotAFile(FileError):
    """Not a regular file."""


class FileTooLarge(FileError):
    """More bytes than the caller wants."""


class DiskFull(FileError):
    """The sandbox's disk limit is reached."""


class InfrastructureFailure(SandboxError):
    """The machine failed, not the agent: whoever keeps score must not turn it into a reward."""


class RuntimeUnavailable(InfrastructureFailure):
    """The runtime cannot isolate here; ``remedy`` says what to install or set."""


class StartFailed(InfrastructureFailure):
    """The sandbox did not come up."""


class SandboxDied(InfrastructureFailure):
    """The sandbox ended and nobody of ours ended it."""

    def __init__(self, sandbox: str, how: str = "") -> None:
        super().__init__(f"Sandbox {sandbox} died{': ' + how if how else ''}")


class ProgramMissing(InfrastructureFailure):
    """A program is needed that this machine lacks; ``remedy`` says which and how to get it."""


class StoreFailed(InfrastructureFailure):
    """The store of images cannot be read or written; nothing half-made is in it."""


class ShellFailed(InfrastructureFailure):
    """No shell can be started in the sandbox."""


class ExaminationFailed(InfrastructureFailure):
    """The sandbox could not be examined: nothing can be concluded about what the agent did."""


class ProcessesRemain(ExaminationFailed):
    """The sandbox's processes were killed and went on: only what they did themselves can make them.

    Who grades an agent's work takes it for the agent's doing, and nobody else for more than a failed examination.
    """


class Overloaded(InfrastructureFailure):
    """The machine has no room for another sandbox, and too many wait for it; nothing was started."""

    def __init__(self, cause: str, remedy: str, *, retry_after: float = 2.0) -> None:
        super().__init__(cause, remedy)
        #: Seconds after which asking again makes sense.
        self.retry_after = retry_after


_BY_NUMBER: dict[int, type[FileError]] = {
    errno.ENOENT: NoSuchFile,
    errno.ENOTDIR: NoSuchFile,
    errno.EACCES: FileRefused,
    errno.EPERM: FileRefused,
    errno.EROFS: FileRefused,
    errno.EISDIR: NotAFile,
    errno.ENXIO: NotAFile,  # a socket, or a pipe nobody reads
    errno.EFBIG: FileTooLarge,
    errno.ENOSPC: DiskFull,
    errno.EDQUOT: DiskFull,
}


def file_error(path: str, number: int, cause: str = "") -> FileError:
    """The error of the tree that fits an ``errno``."""
    return _BY_NUMBER.get(number, FileError)(path, number, cause)
