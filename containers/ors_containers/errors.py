"""All errors of ors_containers.

An environment needs only the two branches: it reports an ``InfrastructureFailure`` as such, and a ``CallerError`` is a
mistake in its code or its input.
"""

from __future__ import annotations

import errno
import os

__all__ = [
    "BuildFailed",
    "BuildNeedsNetwork",
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
    "InvalidMount",
    "MachineOverloaded",
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
    "ServerExhausted",
    "ShellFailed",
    "StartFailed",
    "StoreFailed",
    "UnknownImage",
    "UnknownRuntime",
    "file_error",
]


#: Lines of a build's output that its error shows.
_LAST_LINES = 10


#: The remedy in a Hugging Face Space, which sets ``SPACE_ID``.
_IN_A_SPACE = "A Hugging Face Space has no sandboxes: serve the environment on a machine of yours, or with `docker run`"


class SandboxError(Exception):
    """The root of all errors, with a ``cause`` and a ``remedy``, which may be empty."""

    def __init__(self, cause: str, remedy: str = "") -> None:
        self.cause = cause
        self.remedy = remedy
        super().__init__(cause if not remedy else f"{cause.rstrip('.')}. {remedy}")


class CallerError(SandboxError):
    """A mistake of the caller."""


class InvalidImage(CallerError, ValueError):
    """An image that cannot be started."""


class InvalidArchive(InvalidImage):
    """An archive that is not an image, is truncated, does not match its digest, or leads out of the image."""


class InvalidDefinition(InvalidImage):
    """A mistake in a definition, Dockerfile or image map; ``line`` counts from 1, and is 0 for the whole file."""

    def __init__(self, file: str, line: int, cause: str, remedy: str = "") -> None:
        self.file = file
        self.line = line
        super().__init__(f"{file}{f', line {line}' if line else ''}: {cause}", remedy)


class ImageTooLarge(InvalidImage):
    """An image with more bytes than the store's limit for one image."""


class BuildFailed(CallerError, RuntimeError):
    """A script of a definition or a recipe that failed or timed out; ``output`` is the end of its output."""

    def __init__(self, cause: str, remedy: str = "", *, output: str = "") -> None:
        self.output = output
        super().__init__(cause, remedy)

    def __str__(self) -> str:
        last = [f"  {line}" for line in self.output.splitlines()[-_LAST_LINES:]]
        return "\n".join([self.cause, *last, *([self.remedy] if self.remedy else [])])


class BuildNeedsNetwork(BuildFailed):
    """A script failed without a network, and its output is that of a program that needs one."""


class UnknownImage(CallerError, LookupError):
    """A name that no image of the store has."""


class InvalidLimits(CallerError, ValueError):
    """Limits in which no program can run."""


class InvalidCommand(CallerError, ValueError):
    """A command that cannot be passed to a shell, or a time-out that is not above 0."""


class InvalidMount(CallerError, ValueError):
    """A mount, a host alias or a host name that no container can have."""


class SandboxBusy(CallerError):
    """A command for a sandbox that is running another."""

    def __init__(self) -> None:
        super().__init__("A command is running in this sandbox", "Await it, or use another sandbox")


class SandboxStopped(CallerError):
    """A sandbox that was stopped or never started."""

    def __init__(self, sandbox: str) -> None:
        super().__init__(f"Sandbox {sandbox} is not running: it was stopped or never started")


class SandboxExpired(CallerError, TimeoutError):
    """A sandbox that was stopped because its wall time had passed."""

    def __init__(self, sandbox: str, seconds: float) -> None:
        super().__init__(f"Sandbox {sandbox} was stopped after its wall time of {seconds:g} s")


class UnknownRuntime(CallerError, LookupError):
    """A name that no installed runtime has."""


class FileError(CallerError, OSError):
    """A failed operation on a file of the sandbox; ``errno`` tells the reason."""

    def __init__(self, path: str, number: int, cause: str = "") -> None:
        super().__init__(f"{path}: {cause or os.strerror(number)}")
        self.errno = number
        self.filename = path

    def __str__(self) -> str:
        return self.cause  # the text of an OSError would begin with its number


class NoSuchFile(FileError, FileNotFoundError):
    """A file that does not exist in the sandbox, or has a parent that is not a directory."""


class FileRefused(FileError, PermissionError):
    """An operation that the sandbox's user may not do, or on a read-only part of its root."""


class NotAFile(FileError):
    """A file that is not regular."""


class FileTooLarge(FileError):
    """A file with more bytes than the caller's limit."""


class DiskFull(FileError):
    """A write beyond the sandbox's disk limit."""


class InfrastructureFailure(SandboxError):
    """A failure of the machine and not of the agent: a grader must not turn it into a reward."""


class RuntimeUnavailable(InfrastructureFailure):
    """A runtime that cannot isolate on this machine; ``remedy`` tells what to install or set.

    In a Hugging Face Space nothing can be: its container makes no namespaces and has no options.
    """

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(cause, _IN_A_SPACE if os.environ.get("SPACE_ID") else remedy)


class StartFailed(InfrastructureFailure):
    """A sandbox that did not start."""


class SandboxDied(InfrastructureFailure):
    """A sandbox that ended although this package did not stop it."""

    def __init__(self, sandbox: str, how: str = "") -> None:
        super().__init__(f"Sandbox {sandbox} died{': ' + how if how else ''}")


class ProgramMissing(InfrastructureFailure):
    """A program that is needed and missing on this machine; ``remedy`` tells how to install it."""


class StoreFailed(InfrastructureFailure):
    """An image store that cannot be read or written; it contains no incomplete image."""


class ShellFailed(InfrastructureFailure):
    """A sandbox in which a shell cannot be started."""


class ExaminationFailed(InfrastructureFailure):
    """An examination that could not be carried out: it proves nothing about the agent's work."""


class ProcessesRemain(ExaminationFailed):
    """Processes of the sandbox that survived being killed, which only their own actions can cause.

    A grader treats this as the agent's doing. Any other caller treats it as a failed examination.
    """


class MachineOverloaded(InfrastructureFailure):
    """Work of a sandbox that did not end in time because other tenants of the machine used the processors.

    The sandbox can still be used. Its cause has the measured times.
    """


class ServerExhausted(InfrastructureFailure):
    """Work for a sandbox that was not done because the server, or the machine, may open no more files."""

    #: The numbers of such errors.
    NUMBERS = (errno.EMFILE, errno.ENFILE)

    def __init__(
        self,
        cause: str = "The server may open no more files",
        remedy: str = "Raise its limit (ulimit -n), or serve fewer sessions",
    ) -> None:
        super().__init__(cause, remedy)


class Overloaded(InfrastructureFailure):
    """A request refused for want of capacity, with the queue full or the wait too long; nothing was started."""

    def __init__(self, cause: str, remedy: str, *, retry_after: float = 2.0) -> None:
        super().__init__(cause, remedy)
        #: Seconds after which to retry.
        self.retry_after = retry_after


_BY_NUMBER: dict[int, type[FileError]] = {
    errno.ENOENT: NoSuchFile,
    errno.ENOTDIR: NoSuchFile,
    errno.EACCES: FileRefused,
    errno.EPERM: FileRefused,
    errno.EROFS: FileRefused,
    errno.EISDIR: NotAFile,
    errno.ENXIO: NotAFile,  # a socket, or a pipe without a reader
    errno.EFBIG: FileTooLarge,
    errno.ENOSPC: DiskFull,
    errno.EDQUOT: DiskFull,
}


def file_error(path: str, number: int, cause: str = "") -> FileError:
    """Return the error for an ``errno``."""
    return _BY_NUMBER.get(number, FileError)(path, number, cause)
