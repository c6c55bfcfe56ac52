"""Docker-like containers: the settings, the interface, and the mounts and sidecars of one.

A sandbox (``sandbox``) is strict: one shell, no capability, files in memory. A container is what programs written for
``docker run`` expect: each command is a new shell, commands overlap, root has Docker's default capabilities in a user
namespace, and files are on a disk.
"""

from __future__ import annotations

import abc
import ipaddress
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Literal, Self

from ors_containers.errors import InvalidCommand, InvalidLimits, InvalidMount
from ors_containers.image import Image
from ors_containers.limits import MIB, Limits
from ors_containers.sandbox import CommandResult, ExecutionResult, FileStatus, OutputStream

__all__ = [
    "Container",
    "ContainerPolicy",
    "ContainerSettings",
    "FrozenFiles",
    "HostAlias",
    "Mount",
    "Network",
    "Sidecar",
]

Network = Literal["none", "open"]

_IDS = 65536
#: Folders of an image that belong to its system: a mount at one, above one or below one hides what programs need, or
#: adds to what they execute and read as configuration. ``lib`` stands for every name that begins with it.
_SYSTEM = frozenset(("bin", "boot", "dev", "etc", "proc", "sbin", "sys", "usr"))
#: Folders that programs write to: a mount at one of them makes it read-only. A folder below them is the caller's.
_WRITTEN = frozenset(
    ("/home", "/root", "/run", "/tmp", "/var", "/var/cache", "/var/lib", "/var/log", "/var/run", "/var/tmp")  # noqa: S108
)
_HOST_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252})")


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of this machine that a container sees read-only, root inside included.

    Raises ``InvalidMount`` for a target that is not an absolute path, or is a folder that the image's system or a
    container needs, or is above or below one.
    """

    source: Path
    target: str
    #: The folder below ``source`` that is mounted, instead of all of it; without ``..``, and without links on its way.
    only: str = ""

    def __post_init__(self) -> None:
        parts = self.target.split("/")
        if not self.target.startswith("/") or ".." in parts or "\0" in self.target:
            raise InvalidMount(f"{self.target!r} is not an absolute path without `..`")
        place = PurePosixPath("/", *(part for part in parts if part not in ("", ".")))
        top = place.parts[1] if len(place.parts) > 1 else ""
        if not top or top in _SYSTEM or top.startswith(("lib", ".")) or str(place) in _WRITTEN:
            raise InvalidMount(
                f"Nothing can be mounted at {self.target}: the image's system or the container needs that folder. "
                "Choose a folder of its own, as /data or /tmp/data"
            )

    def resolve(self) -> Path:
        """Return the folder to mount. Raises ``InvalidMount`` for a missing folder, ``..`` and links."""
        place = self.source.resolve()
        for part in Path(self.only).parts if self.only else ():
            if part in ("..", "/"):
                raise InvalidMount(f"{self.only!r} is not a path below {self.source}")
            place /= part
            if place.is_symlink():
                raise InvalidMount(f"{self.only!r} has a link on its way: {part}")
        if not place.is_dir():
            raise InvalidMount(f"{place} is not a folder of this machine")
        return place


@dataclass(frozen=True, slots=True)
class HostAlias:
    """Names of an address, in ``/etc/hosts``. Raises ``InvalidMount``."""

    address: str
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        try:
            ipaddress.ip_address(self.address)
        except ValueError as error:
            raise InvalidMount(f"{self.address!r} is not an address") from error
        for name in self.names:
            if not _HOST_NAME.fullmatch(name):
                raise InvalidMount(f"{name!r} is not the name of a host")


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A container beside the main one, with the same network, ids and limits, and files of its own."""

    name: str
    image: Image
    #: The program and its arguments.
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class ContainerPolicy:
    """The operator's rules for the containers of a runtime."""

    #: ``open`` allows containers that ask for it an open network.
    network: Network = "none"
    #: The folder for the disks of containers, whose files have no names.
    disk_folder: Path = Path("/var/tmp")  # noqa: S108 - no name in it can be guessed


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """The limits, variables, network, mounts and sidecars of one container.

    Raises ``InvalidLimits``, ``InvalidMount`` for the host name, and ``InvalidCommand`` for variables.
    """

    #: Bytes of memory, of the sidecars as well; the kernel frees what holds files when it is short.
    memory: int = 2048 * MIB
    cpus: float = 1.0
    #: Processes and threads at a time.
    pids: int = 4096
    #: Bytes that the container may write, and each of its sidecars as well; on a disk where the server is root.
    disk: int = 10 * 1024 * MIB
    #: Variables beside the image's, which they override.
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    #: The id of the commands' user and group, instead of the image's.
    user: int | None = None
    group: int | None = None
    #: ``open`` is a wish: where the operator has not allowed it, the container has ``none``.
    network: Network = "none"
    #: Without a network: every lookup of a name is answered at once, that there is no such host.
    refuse_names: bool = False
    host_name: str = "sandbox"
    host_aliases: tuple[HostAlias, ...] = ()
    mounts: tuple[Mount, ...] = ()
    #: They start before the first command, in this order.
    sidecars: tuple[Sidecar, ...] = ()

    def __post_init__(self) -> None:
        self.limits  # noqa: B018 - `Limits` raises for values that no container can have
        if self.disk < 16 * MIB:
            raise InvalidLimits(f"The limit disk={self.disk} is below {16 * MIB}")
        for number in (self.user, self.group):
            if number is not None and not 0 <= number < _IDS:
                raise InvalidLimits(f"{number} is not an id from 0 to {_IDS - 1}")
        for environment in (self.environment, *(sidecar.environment for sidecar in self.sidecars)):
            for name, value in environment.items():
                if not name or "=" in name or "\0" in name + value:
                    raise InvalidCommand(f"{name!r} cannot be a variable")
        if not _HOST_NAME.fullmatch(self.host_name):
            raise InvalidMount(f"{self.host_name!r} is not the name of a host")

    @property
    def limits(self) -> Limits:
        """The limits that control groups and admission know: a container's files are not in memory."""
        return Limits(memory=self.memory, pids=self.pids, cpu=self.cpus, disk=MIB)


@dataclass(frozen=True, slots=True)
class FrozenFiles:
    """The files that an ended container has written, as a layer, until ``release``; ``async with`` releases it."""

    #: For ``Image.layers``, above those of the container's image. Sandboxes of the same server alone can have it.
    layer: Path
    #: Bytes of its files.
    size: int
    #: When the container started, in seconds since 1970.
    since: float
    #: Free the layer. A container that was started over it keeps it for itself.
    release: Callable[[], Awaitable[None]]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.release()


class Container(abc.ABC):
    """A running container of one image. Made by ``Runtime.open_container``; ``close`` ends it.

    **Isolation.** Its processes see the image, their own files and the mounts; no other file, process or socket of the
    machine and no other container. Without an open network they reach no network; with one, neither the machine nor
    private addresses. Root inside has Docker's default capabilities in a user namespace, and no right outside of it.

    **Commands.** Each is a new shell in the image's directory with the image's variables; any number run at a time.
    Files and background processes last. Standard input is empty; standard output and error are one stream. ``execute``
    has the rest of ``docker exec``: an argument vector without a shell, an input, a user, separate outputs.

    **Errors.** Of every method: ``SandboxStopped`` after ``close``; ``SandboxDied``, an ``InfrastructureFailure``,
    after the container ended by itself. A cancelled ``run`` or ``execute`` ends its command as a time-out does.
    """

    #: Unique on this machine, and printable.
    id: str
    image: Image
    settings: ContainerSettings
    #: The network that it has.
    network: Network
    #: Sentences for the operator: what was asked for and is not there, and why.
    notes: tuple[str, ...]

    @abc.abstractmethod
    async def run(
        self,
        command: str,
        *,
        shell: str = "/bin/bash",
        timeout: float | None = None,
        max_bytes: int | None = None,
    ) -> CommandResult:
        """Run ``command`` in a new shell, as ``shell -c`` does; return when the shell has ended.

        The result's output is the first ``max_bytes`` bytes, for None 256 MiB; the rest is read and dropped. What a
        background process writes later is dropped, too. After ``timeout`` seconds the shell, its descendants and the
        processes of its session are killed, and the exit status is ``TIMED_OUT_STATUS``. Only a process that has left
        both goes on, as background processes do. A missing shell is exit status 127.

        Raises ``InvalidCommand`` for NUL characters, a relative ``shell``, and a time-out or limit below 0.
        """

    @abc.abstractmethod
    async def execute(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        user: str | int | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        max_bytes: int | None = None,
        on_output: Callable[[OutputStream, bytes], object] | None = None,
        record: bool = False,
    ) -> ExecutionResult:
        """Run a program with the arguments ``argv``, without a shell; return when it has ended.

        The program is looked for in its ``PATH``, in the image's directory or in ``cwd``, which is relative to that.
        Its standard input is a pipe with ``stdin``, or empty. ``user`` is a name or id of the container's own
        ``/etc/passwd`` at this time, or any id, and has the groups of ``/etc/group``. ``env`` adds variables.

        The result has the first ``max_bytes`` bytes of standard output and of standard error, for None 256 MiB each;
        the rest is read and dropped. ``on_output`` gets the same bytes as they are read, with the name of their stream.
        It is called on the event loop, must return at once and should not raise: its errors go to the event loop's
        handler. ``timeout``, in seconds, and background processes are as in ``run``.

        With ``record`` the result has the files that it and its descendants used. They are slower then, and can hide
        what they use: it tells what a program that is trusted needs. A program that may not be recorded is not run.

        A missing program is exit status 127. A program that cannot be executed, arguments that are too long for the
        kernel, a ``cwd`` that cannot be entered and a user that does not exist are 126. In all these cases ``started``
        of the result is False.

        Raises ``InvalidCommand`` for an empty ``argv``, NUL characters and surrogates that stand for no byte, names of
        variables that are empty or have ``=``, a time-out or limit below 0, another user than the container's where
        this machine gives a container one user id, and a record of too many paths; ``RuntimeUnavailable`` where the
        kernel or the server's rights allow no record.
        """

    @abc.abstractmethod
    async def stat(self, path: str, *, follow: bool = False) -> FileStatus:
        """Describe an absolute ``path``, or with ``follow`` the target of a link. Raises ``FileError``."""

    @abc.abstractmethod
    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> tuple[bytes, int]:
        """Return the bytes of a regular file from ``offset`` on, and the file's size now.

        With ``length`` None, all of them. The last part of ``path`` is not a link. Raises ``FileError``.
        """

    @abc.abstractmethod
    async def digest(self, path: str) -> tuple[str, int]:
        """Return the SHA-256 of a regular file in hexadecimal digits, and its size. Raises ``FileError``."""

    @abc.abstractmethod
    async def write(
        self, path: str, content: bytes, *, offset: int = 0, truncate: bool = True, parents: bool = False
    ) -> int:
        """Write a regular file at ``offset``, made if it is missing; return its size.

        A file that is there keeps its mode. With ``truncate`` what the file held is removed first, with ``parents`` the
        directories above it are made. The last part of ``path`` is not a link. Raises ``FileError``, ``DiskFull`` among
        them.
        """

    @abc.abstractmethod
    async def rename(self, source: str, target: str) -> None:
        """Rename a file over another, in one step. Raises ``FileError``."""

    @abc.abstractmethod
    async def freeze(self, folder: Path) -> FrozenFiles:
        """End every process, and return what the container has written as a layer; the container is closed then.

        Owners are as inside, and there are no setuid bits, devices and sockets. Where the server is root the layer
        stays on the container's disk, and nothing is copied. Elsewhere it is copied below ``folder``, which exists, is
        empty, and is the caller's to remove. Raises ``StoreFailed``.
        """

    @abc.abstractmethod
    async def close(self) -> None:
        """End every process and free every resource, a disk soon afterwards. Never raises; may be called repeatedly."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
