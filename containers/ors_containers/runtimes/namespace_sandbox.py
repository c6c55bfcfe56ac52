"""One sandbox of the bubblewrap runtime, from its lease to its end.

Process 1 comes up through the launcher and ``bwrap``; the shell enters it afterwards, as the image's user.

Invariants: a lease names what a sandbox holds before it holds it; ``stop`` returns when the last process of a sandbox
has ended; nothing of a sandbox is left when it could not be started.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import secrets
import select
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ors_containers.errors import (
    ExaminationFailed,
    FileTooLarge,
    InvalidCommand,
    ProcessesRemain,
    SandboxDied,
    SandboxExpired,
    SandboxStopped,
    ShellFailed,
    StartFailed,
    file_error,
)
from ors_containers.hidden_paths import hidden_in
from ors_containers.image import Image
from ors_containers.launcher.client import Answer, LauncherClient, LauncherGone, OperationFailed
from ors_containers.limits import Limits
from ors_containers.linux.cgroups import ControlGroups, remove_group
from ors_containers.linux.host_support import IDS, IdMapping
from ors_containers.linux.kernel_limits import RESOURCES
from ors_containers.linux.leases import Owner
from ors_containers.linux.proc_stat import process_status, read_status
from ors_containers.runtimes.shell import SHELL_ARGUMENTS, Ending, Shell
from ors_containers.runtimes.trusted_exec import check_examination, run_examination
from ors_containers.sandbox import CommandResult, FileKind, FileStatus, Sandbox

__all__ = ["BubblewrapSandbox", "Shared"]

#: Host ids given out to sandboxes as root: above those of users, of systemd's dynamic users and of its containers.
_FIRST_ID, _LAST_ID = 0x8000_0000, 0xFFFE_0000
_START_PATIENCE = 60.0
_STOP_PATIENCE = 10.0
_END_PATIENCE = 1.0
_DEATH_PATIENCE = 0.5
_OPEN_FILES = 4096
_HOST_NAME = "sandbox"
#: What ``preparation.shared_text`` writes.
_SHARED = re.compile(rb"\[shared (\[.*?\])\]")


def examination_of(sandbox: str) -> str:
    """The name of the control group of a sandbox's examination."""
    return f"{sandbox}-examination"


def _any_slot() -> int:
    return _FIRST_ID + secrets.randbelow((_LAST_ID - _FIRST_ID) // IDS) * IDS


@dataclass(slots=True)
class Shared:
    """What the sandboxes of one runtime share."""

    program: str
    state: Path
    mapping: IdMapping
    owner: Owner
    groups: ControlGroups
    client: LauncherClient
    #: Bounds how many are being started at a time.
    starting: asyncio.Semaphore
    sandboxes: dict[str, BubblewrapSandbox] = field(default_factory=dict[str, "BubblewrapSandbox"])
    #: Whether the kernel let what System V IPC holds be bounded, as far as was tried.
    ipc_bounded: bool = True
    #: Places whose inodes sandboxes have in common with the machine, as far as was seen.
    common: set[str] = field(default_factory=set[str])
    #: The ends of launchers that ended by themselves.
    retired: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _slot: int = field(default_factory=_any_slot)

    def living_client(self) -> LauncherClient:
        """The launcher, or a new one in place of one that has ended and has taken its sandboxes along."""
        if self.client.ended:
            self.retired.add(asyncio.create_task(self.client.close()))
            self.client = LauncherClient()
            self.client.start()
            self.owner.describe([self.client.process], self.groups.parents)
        return self.client

    def group_directories(self, sandbox: str) -> list[Path]:
        """Every control group a sandbox may have: its own, and that of its examination."""
        return [*self.groups.directories(sandbox), *self.groups.directories(examination_of(sandbox))]

    def next_slot(self) -> int:
        """The first host id of the next sandbox's range. Two servers may meet: that costs nothing but quotas by id."""
        self._slot = self._slot + IDS if self._slot + IDS < _LAST_ID else _FIRST_ID
        return self._slot


@dataclass(slots=True)
class _ShellProcess:
    inner: int
    exited: asyncio.Future[int]


class BubblewrapSandbox(Sandbox):
    """A sandbox of ``BubblewrapRuntime``."""

    def __init__(self, shared: Shared, image: Image, limits: Limits) -> None:
        self.id = secrets.token_hex(6)
        self.image = image
        self.limits = limits
        self._shared = shared
        self._client = shared.client
        self._mapping = shared.mapping
        self._shell = Shell(self, image.variables, image.directory or image.home)
        self._directories: list[Path] = []
        self._group_files: list[str] = []
        self._holder = -1  # a pidfd
        #: Where the child for the first shell waits for it.
        self._gate: socket.socket | None = None
        self._monitor: asyncio.Future[int] | None = None
        self._monitor_process = 0
        self._processes = -1  # /proc of the sandbox
        self._state = "new"  # new → running → stopped, or dead or expired on the way
        self._stopping: asyncio.Task[None] | None = None
        self._expiry: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """See ``Sandbox``."""
        if self._state != "new":
            raise SandboxStopped(self.id)
        self._state = "starting"
        self._shared.sandboxes[self.id] = self
        starting = asyncio.create_task(self._start())
        try:
            await asyncio.shield(starting)
        except BaseException:
            # Also when this call was cancelled: first it is known what was started, then it is ended.
            await asyncio.wait([starting])
            if not starting.cancelled():
                starting.exception()
            await self.stop()
            raise

    async def _start(self) -> None:
        shared = self._shared
        async with shared.starting:
            self._directories = shared.group_directories(self.id)
            shell: asyncio.Task[None] | None = None
            # The child for the first shell is made and joins the groups, which takes the kernel milliseconds, while
            # process 1 comes up. It waits for that at its end of a pair, and sees the other closed if it fails.
            pair: tuple[socket.socket, ...] = ()
            try:
                pair = opener, self._gate = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self._client = shared.living_client()
                shared.owner.lease(self.id, [], self._directories)
                self._group_files = shared.groups.create(self.id, self.limits)
                shell = asyncio.create_task(self._shell.start())
                holder, parent = await self._start_holder()
                self._holder = os.pidfd_open(holder)
                # Only its parent reaps it, so as long as it has this parent the number is not another's.
                if process_status(holder).parent != parent:
                    raise StartFailed("The sandbox ended as it started")
                shared.owner.lease(self.id, [self._monitor_process, holder], self._directories)
                self._processes = os.open(f"/proc/{holder}/root/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                self._state = "running"
                assert self._monitor is not None
                self._monitor.add_done_callback(self._ended)
                socket.send_fds(opener, [b"1"], [self._holder])
            except OSError as error:
                raise StartFailed(f"The sandbox did not come up: {error}") from error
            except (OperationFailed, LauncherGone) as error:
                raise StartFailed(f"The sandbox did not come up: {error}") from error
            finally:
                for end in pair:
                    end.close()
                self._gate = None
                if self._state != "running" and shell is not None:
                    await asyncio.wait([shell])
                    shell.exception()  # a consequence of what is being raised
            assert shell is not None
            await shell
            if self.limits.wall is not None:
                self._expiry = asyncio.get_running_loop().call_later(self.limits.wall, self._expire)

    async def _start_holder(self) -> tuple[int, int]:
        """Start bwrap; the host's process ids of process 1, once that runs, and of its parent."""
        text = await self._launch(
            "bubblewrap",
            b"}\n\n",
            groups=self._group_files,
            program=self._shared.program,
            arguments=self._arguments(),
        )
        found = re.search(rb'"child-pid": (\d+)', text)
        if found is None:
            raise StartFailed("bwrap did not tell the number of process 1")
        return int(found[1]), self._monitor_process

    async def _launch(self, container: str, ready_text: bytes, **message: Any) -> bytes:
        """Have the launcher start a container; what it wrote, up to ``ready_text``, which says that it is up."""
        layers = [str(layer) for layer in self.image.layers]
        binds = [(source, target, source.is_dir()) for source, target in self.image.binds]
        trees = [str(source if is_directory else source.parent) for source, _, is_directory in binds]
        hidden = await hidden_in((*layers, *trees))
        ready, ready_there = os.pipe()
        errors, errors_there = os.pipe()
        try:
            try:
                answer = await self._client.request(
                    "start",
                    (ready_there, errors_there),
                    container=container,
                    stage=str(self._shared.state / "stage"),
                    layers=layers,
                    binds=[[str(source), *others] for source, *others in binds],
                    hidden=hidden,
                    directories=[
                        [
                            directory.path,
                            directory.mode,
                            *(self._ids() if directory.owned else (0, 0)),
                        ]
                        for directory in self.image.directories
                    ],
                    mapping=self._mapping.message(self._shared.next_slot()),
                    disk=self.limits.disk,
                    inodes=self.limits.inodes,
                    **message,
                )
            finally:
                os.close(ready_there)
                os.close(errors_there)
            self._monitor_process = answer.message["process"]
            self._monitor = self._client.exit_of(self._monitor_process)
            text = await _until_ready(ready, ready_text)
            if not text.endswith(ready_text):
                await asyncio.wait([self._monitor], timeout=_STOP_PATIENCE)
                raise StartFailed(f"The sandbox did not come up: {_said(errors) or 'it ended at once'}")
            for places in _SHARED.findall(text):
                self._shared.common.update(json.loads(places))
            return text
        finally:
            os.close(ready)
            os.close(errors)

    def _ids(self) -> tuple[int, int]:
        """The sandbox's user as its outer namespace numbers it."""
        return (0, 0) if self._mapping.one_id else (self.image.user, self.image.group)

    def _arguments(self) -> list[str]:
        arguments = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
        if self._mapping.one_id:
            arguments += ["--unshare-user", "--disable-userns"]
            arguments += ["--uid", str(self.image.user), "--gid", str(self.image.group)]
        arguments += ["--hostname", _HOST_NAME, "--die-with-parent", "--as-pid-1", "--new-session"]
        return [*arguments, "--cap-drop", "ALL", "--clearenv", "--chdir", "/"]

    async def run(self, command: str, *, timeout: float, output_limit: int | None = None) -> CommandResult:
        """See ``Sandbox``."""
        self._require()
        limit = self.limits.output if output_limit is None else min(output_limit, self.limits.output)
        if limit < 2:
            raise InvalidCommand(f"An output limit of {limit} bytes leaves none for either end")
        try:
            result = await self._shell.run(command, timeout, limit)
        except (ShellFailed, OperationFailed, LauncherGone) as error:
            self._require()
            if isinstance(error, ShellFailed):
                raise
            raise SandboxDied(self.id, str(error)) from error
        # A sandbox that dies takes its shell along; the one must not pass for the other.
        self._require()
        return result

    async def examine(
        self,
        program: Sequence[str],
        *,
        files: Mapping[str, bytes] | None = None,
        input: bytes = b"",
        timeout: float,
        output_limit: int | None = None,
        keep_processes: bool = False,
    ) -> CommandResult:
        """See ``Sandbox``."""
        self._require()
        files = files or {}
        check_examination(program, files, timeout)
        limit = self.limits.output if output_limit is None else output_limit
        if limit < 2:
            raise InvalidCommand(f"An output limit of {limit} bytes leaves none for either end")
        groups = self._shared.groups
        async with self._shell.set_aside() as shell:
            try:
                # A group of its own: what the agent has used up or left running must not weigh on it.
                group_files = groups.create(examination_of(self.id), self.limits)
                result = await run_examination(
                    self._client,
                    self._holder,
                    files=files,
                    input=input,
                    timeout=timeout,
                    limit=limit,
                    groups=group_files,
                    arguments=list(program),
                    environment=self.image.variables,
                    directory=self.image.home,
                    user=self.image.user,
                    group=self.image.group,
                    one_id=self._mapping.one_id,
                    resources=self._resources(for_examination=True),
                    keep=keep_processes,
                    shell=shell,
                )
            except (OperationFailed, LauncherGone, OSError) as error:
                await self._settle(_END_PATIENCE)
                if isinstance(error, LauncherGone):
                    raise SandboxDied(self.id, str(error)) from error
                # What is there to be killed and goes on is the sandbox's own; the launcher waits for nothing else.
                remain = isinstance(error, OperationFailed) and error.number == errno.ETIMEDOUT
                failure = ProcessesRemain if remain else ExaminationFailed
                raise failure(f"Sandbox {self.id} could not be examined: {error}") from error
            finally:
                # What cannot be removed now is in the lease.
                await remove_group(groups.directories(examination_of(self.id)))
        if result.exit_status == 128 + signal.SIGKILL and self._monitor is not None:
            # A sandbox that dies takes the program along, and that is told first; the one must not pass for the other.
            await asyncio.wait([self._monitor], timeout=_DEATH_PATIENCE)
        self._require()
        return result

    async def read_file(self, path: str, *, limit: int = 100 * 2**20) -> bytes:
        """See ``Sandbox``."""
        descriptor, size = await self._open(path, os.O_RDONLY)
        try:
            if size > limit:
                raise FileTooLarge(path, errno.EFBIG, f"it has {size} bytes, more than {limit}")
            content = await asyncio.to_thread(_read_all, descriptor, limit + 1)
        finally:
            os.close(descriptor)
        if len(content) > limit:
            raise FileTooLarge(path, errno.EFBIG, f"it grew beyond {limit} bytes")
        return content

    async def write_file(self, path: str, content: bytes, *, mode: int = 0o644, parents: bool = True) -> None:
        """See ``Sandbox``."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        descriptor, _ = await self._open(path, flags, mode, parents)
        try:
            await asyncio.to_thread(_write_all, descriptor, content)
        except OSError as error:
            raise file_error(path, error.errno or errno.EIO) from error
        finally:
            os.close(descriptor)

    async def stat_file(self, path: str, *, follow: bool = True) -> FileStatus:
        """See ``Sandbox``."""
        found = (await self._visit("status", path, follow=follow)).message
        return FileStatus(
            kind=cast("FileKind", found["kind"]),
            size=found["size"],
            mode=found["mode"],
            user=found["user"],
            group=found["group"],
            modified=found["modified"],
            link=found["link"],
        )

    async def stop(self) -> None:
        """See ``Sandbox``."""
        if self._stopping is None:
            if self._state == "new":
                self._state = "stopped"
                return
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        if self._state in ("running", "starting"):
            self._state = "stopped"
        if self._expiry is not None:
            self._expiry.cancel()
        self._shell.close()
        if self._holder != -1:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._holder, signal.SIGKILL)
        elif self._monitor is not None and not self._monitor.done():
            os.kill(self._monitor_process, signal.SIGKILL)
        if self._monitor is not None:
            await asyncio.wait([self._monitor], timeout=_STOP_PATIENCE)
            if not self._monitor.done():
                os.kill(self._monitor_process, signal.SIGKILL)
                await asyncio.wait([self._monitor], timeout=_STOP_PATIENCE)
            self._client.forget(self._monitor_process)
        for descriptor in (self._holder, self._processes):
            if descriptor != -1:
                os.close(descriptor)
        self._holder = self._processes = -1
        # What cannot be removed now keeps its lease, and the janitor comes back to it.
        if await remove_group(self._directories):
            self._shared.owner.release(self.id)
        self._shared.sandboxes.pop(self.id, None)

    def _require(self) -> None:
        if self._state == "running":
            return
        if self._state == "dead":
            raise SandboxDied(self.id)
        if self._state == "expired":
            raise SandboxExpired(self.id, self.limits.wall or 0.0)
        raise SandboxStopped(self.id)

    def _ended(self, _: asyncio.Future[int]) -> None:
        if self._state == "running":
            self._state = "dead"

    def _expire(self) -> None:
        if self._state == "running":
            self._state = "expired"
            self._stopping = asyncio.create_task(self._stop())

    async def _open(self, path: str, flags: int, mode: int = 0, parents: bool = False) -> tuple[int, int]:
        answer = await self._visit("open", path, flags=flags, mode=mode, parents=parents)
        return answer.descriptor, answer.message["size"]

    async def _visit(self, operation: str, path: str, **message: Any) -> Answer:
        self._require()
        if not path or "\0" in path:
            raise file_error(path, errno.ENOENT)
        try:
            return await self._client.request(
                operation,
                (self._holder,),
                path=path,
                user=self.image.user,
                group=self.image.group,
                one_id=self._mapping.one_id,
                directory=self.image.home,
                **message,
            )
        except LauncherGone as error:
            raise SandboxDied(self.id, str(error)) from error
        except OperationFailed as error:
            await self._settle()
            raise file_error(path, error.number, str(error)) from error

    async def _settle(self, patience: float = 0.0) -> None:
        """After a failure: see whether the sandbox has died, which is told a moment later.

        ``patience`` is for failures that hardly anything else explains: process 1 takes a while to end.
        """
        deadline = time.monotonic() + patience
        while self._monitor is not None and self._holder != -1:
            if _has_ended(self._holder):
                await asyncio.wait([self._monitor], timeout=_STOP_PATIENCE)
                break
            if time.monotonic() >= deadline:
                break
            await asyncio.sleep(0.01)
        self._require()

    def _resources(self, *, for_examination: bool = False) -> dict[str, int]:
        """Limits of each process; of memory and processes where no control group holds them."""
        enforced = self._shared.groups.enforced
        resources = {"CORE": 0, "NOFILE": _OPEN_FILES, "FSIZE": self.limits.disk, **RESOURCES}
        if "memory" not in enforced:
            resources["DATA"] = self.limits.memory
        if "pids" not in enforced:
            # It counts all processes of the user: an examination's come on top of the agent's.
            resources["NPROC"] = self.limits.pids * (2 if for_examination else 1)
        return resources

    # ── what the shell asks of its sandbox ──

    async def start_shell(
        self, descriptors: Sequence[int], at: Sequence[int], environment: Mapping[str, str], directory: str
    ) -> _ShellProcess:
        """See ``ShellHost``."""
        gate, self._gate = self._gate, None
        try:
            answer = await self._client.request(
                "enter",
                (self._holder if gate is None else gate.fileno(), *descriptors),
                gate=gate is not None,
                at=list(at),
                groups=self._group_files,
                arguments=[self.image.shell, *SHELL_ARGUMENTS],
                environment=dict(environment),
                directory=directory,
                user=self.image.user,
                group=self.image.group,
                one_id=self._mapping.one_id,
                resources=self._resources(),
            )
        except OperationFailed as error:
            await self._settle(_END_PATIENCE)
            raise ShellFailed(f"No shell can be started in sandbox {self.id}: {error}") from error
        self._shared.ipc_bounded &= answer.message["ipc_bounded"]
        process = answer.message["process"]
        exited = self._client.exit_of(process)
        exited.add_done_callback(lambda _: self._client.forget(process))
        return _ShellProcess(answer.message["inner"], exited)

    def processes(self, shell: int) -> dict[int, int]:
        """See ``ShellHost``."""
        found: dict[int, int] = {}
        try:
            names = os.listdir(self._processes)  # noqa: PTH208 - of a descriptor
        except OSError:
            return found  # it has just ended
        for name in names:
            if name.isdigit() and int(name) not in (1, shell):
                with contextlib.suppress(OSError):
                    found[int(name)] = _start_time(name, self._processes)
        return found

    async def end_command(self, shell: int, spared: Mapping[int, int], how: Ending) -> None:
        """See ``ShellHost``."""
        with contextlib.suppress(OperationFailed):
            await self._client.request("interrupt", (self._holder,), shell=shell, spared=dict(spared), how=how)


async def _until_ready(descriptor: int, ready_text: bytes) -> bytes:
    """What bwrap and the holder tell, until the holder is up or either has ended."""
    loop = asyncio.get_running_loop()
    os.set_blocking(descriptor, False)
    text = b""
    deadline = time.monotonic() + _START_PATIENCE
    while not text.endswith(ready_text):
        readable = asyncio.Event()
        loop.add_reader(descriptor, readable.set)
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await readable.wait()
        except TimeoutError:
            break
        finally:
            loop.remove_reader(descriptor)
        piece = os.read(descriptor, 4096)
        if not piece:
            break
        text += piece
    return text


def _said(descriptor: int) -> str:
    os.set_blocking(descriptor, False)
    try:
        return os.read(descriptor, 4096).decode(errors="replace").strip()
    except BlockingIOError:
        return ""


def _has_ended(pidfd: int) -> bool:
    """Whether the process has ended, reaped by its parent or not."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _start_time(name: str, directory: int) -> int:
    descriptor = os.open(f"{name}/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        return read_status(os.read(descriptor, 4096)).started
    finally:
        os.close(descriptor)


def _read_all(descriptor: int, most: int) -> bytes:
    content = bytearray()
    while len(content) < most and (piece := os.read(descriptor, min(1 << 20, most - len(content)))):
        content += piece
    return bytes(content)


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
