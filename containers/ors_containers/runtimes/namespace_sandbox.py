"""A sandbox in namespaces of its own, from its lease to its end.

Process 1 comes up through the launcher and the runtime's program; the shell enters its namespaces afterwards, as the
image's user.

Invariants: a lease names what a sandbox holds before it holds it; ``stop`` returns when the last process of a sandbox
has ended; a start that fails leaves no process, control group or lease.
"""

from __future__ import annotations

import abc
import asyncio
import errno
import os
import secrets
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import TypeVar

from ors_containers.errors import (
    ExaminationFailed,
    InvalidCommand,
    ProcessesRemain,
    SandboxDied,
    ServerExhausted,
    ShellFailed,
    StartFailed,
    file_error,
)
from ors_containers.image import Image
from ors_containers.launcher.client import LauncherGone, OperationFailed
from ors_containers.launcher.messages import (
    Examine,
    FileFound,
    Opened,
    OpenFile,
    Program,
    StartApptainer,
    StartBubblewrap,
    StatFile,
    User,
)
from ors_containers.limits import Limits
from ors_containers.linux.limits.cgroups import remove_group
from ors_containers.linux.limits.kernel_limits import RESOURCES
from ors_containers.linux.limits.open_files import limit_files
from ors_containers.runtimes.examination import (
    START_PATIENCE,
    ExaminationLimits,
    check_examination,
    run_examination,
    safe_variables,
    warm_start,
)
from ors_containers.runtimes.lifecycle import Lifecycle, State, start_whole
from ors_containers.runtimes.namespaces import Namespaces, shared_places
from ors_containers.runtimes.opened_file import read_content, server_limits, write_content
from ors_containers.runtimes.runtime_state import RuntimeState, examination_of
from ors_containers.runtimes.shell_host import ContainerShellHost
from ors_containers.runtimes.shells.shell import Shell
from ors_containers.sandbox import CommandResult, FileStatus, Sandbox, WarmProgram

__all__ = ["NamespaceSandbox"]

#: Seconds in which a failed operation may turn out to be the sandbox's own end.
_END_PATIENCE = 1.0
_DEATH_PATIENCE = 0.5


R = TypeVar("R", Opened, FileFound)


class NamespaceSandbox(Sandbox):
    """A sandbox whose process 1 was started in namespaces of its own; a subclass says how."""

    def __init__(self, runtime: RuntimeState, image: Image, limits: Limits) -> None:
        self.id = secrets.token_hex(6)
        self.image = image
        self.limits = limits
        self._runtime = runtime
        self._user = User(image.user, image.group, runtime.mapping.one_id)
        self._container = Namespaces(runtime.client)
        #: Made by the start.
        self._shell: Shell | None = None
        self._group_files: list[str] = []
        self._life = Lifecycle(self.id, limits.wall)
        self._stopping: asyncio.Task[None] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._files = limit_files(limits.pids)

    @abc.abstractmethod
    async def _start_container(self) -> tuple[int, int]:
        """Start the container; return the host's ids of process 1, once it runs, and of the process that reaps it.

        Raises ``StartFailed``, ``OperationFailed``, ``LauncherGone`` and ``OSError``.
        """

    # ── start ──

    async def start(self) -> None:
        self._life.start()
        self._runtime.sandboxes[self.id] = self
        self._runtime.hold_files(self._files.total)
        await start_whole(self._start(), self.stop)

    async def _start(self) -> None:
        runtime = self._runtime
        async with runtime.starting:
            directories = runtime.group_directories(self.id)
            starting: asyncio.Task[None] | None = None
            # The launcher forks the child for the first shell while process 1 comes up, since joining control groups
            # takes the kernel milliseconds. The child waits at its end of a pair of sockets for process 1's pidfd, and
            # sees the other end closed if the start fails.
            pair: tuple[socket.socket, ...] = ()
            try:
                pair = opener, gate = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                container = self._container = Namespaces(runtime.living_client())
                runtime.owner.lease(self.id, [], directories)
                self._group_files = runtime.groups.create(self.id, self.limits)
                shell = self._shell = self._new_shell(gate)
                starting = asyncio.create_task(shell.start())
                process_1, parent = await self._start_container()
                container.attach(process_1, parent)
                container.members = runtime.groups.members(self.id)
                runtime.owner.lease(self.id, [container.monitor_process, process_1], directories)
                self._life.state = State.RUNNING
                assert container.monitor is not None
                container.monitor.add_done_callback(lambda _: self._life.end(State.DEAD))
                socket.send_fds(opener, [b"1"], [container.process_1])
            except (OSError, OperationFailed, LauncherGone) as error:
                raise StartFailed(f"The sandbox did not come up: {error}") from error
            finally:
                for end in pair:
                    end.close()
                if self._life.state != State.RUNNING and starting is not None:
                    await asyncio.wait([starting])
                    starting.exception()  # a consequence of the error that is being raised
            assert starting is not None
            await starting
            if self.limits.wall is not None:
                self._expiry = asyncio.get_running_loop().call_later(self.limits.wall, self._expire)

    def _new_shell(self, gate: socket.socket) -> Shell:
        image = self.image
        program = self._program([image.shell], image.variables, image.home)
        host = ContainerShellHost(
            self.id,
            self._container,
            self._runtime,
            program,
            self._group_files,
            lambda: self._require_alive(_END_PATIENCE),
            gate,
        )
        return Shell(host, image.variables, image.directory or image.home)

    async def _launch(self, request: StartBubblewrap | StartApptainer, ready_text: bytes) -> bytes:
        """Start the container through the launcher; return its output up to ``ready_text``."""
        text = await self._container.launch(request, ready_text)
        self._runtime.common |= shared_places(text)
        return text

    # ── commands and examinations ──

    async def run(self, command: str, *, timeout: float, output_limit: int | None = None) -> CommandResult:
        shell = self._require()
        limit = self.limits.output if output_limit is None else min(output_limit, self.limits.output)
        if limit < 2:
            raise InvalidCommand(f"An output limit of {limit} bytes leaves none for either end")
        try:
            with server_limits():
                result = await shell.run(command, timeout, limit)
        except (ShellFailed, OperationFailed, LauncherGone) as error:
            self._require()
            if isinstance(error, ShellFailed):
                raise
            raise SandboxDied(self.id, str(error)) from error
        # A sandbox that dies ends its shell, too: then this raises ``SandboxDied`` instead of returning a result.
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
        private_output: bool = False,
        warm: WarmProgram | None = None,
    ) -> CommandResult:
        shell = self._require()
        files = files or {}
        check_examination(program, files, timeout)
        limit = self.limits.output if output_limit is None else output_limit
        if limit < 2:
            raise InvalidCommand(f"An output limit of {limit} bytes leaves none for either end")
        if warm is not None and (warm.folder, warm.at) not in self.image.binds:
            warm = None  # what the program imports later would be the agent's
        groups = self._runtime.groups
        async with shell.set_aside() as bash:
            try:
                # Its own group: what the agent has used up or left running must not count against its limits.
                variables = safe_variables(self.image.variables)
                request = Examine(
                    program=self._program(program, variables, self.image.home, for_examination=True),
                    groups=groups.create(examination_of(self.id), self.limits),
                    keep_processes=keep_processes,
                    shell=bash,
                    warm=None if warm is None else warm_start(warm, program, files),
                )
                limits = self._examination_limits(timeout)
                result = await run_examination(
                    self._container,
                    request,
                    files=files,
                    input=input,
                    is_private=private_output,
                    limits=limits,
                    limit=limit,
                )
            except (OperationFailed, LauncherGone, OSError) as error:
                if isinstance(error, OSError) and error.errno in ServerExhausted.NUMBERS:
                    raise ServerExhausted from error
                await self._require_alive(_END_PATIENCE)
                if isinstance(error, LauncherGone):
                    raise SandboxDied(self.id, str(error)) from error
                # ETIMEDOUT: processes of the sandbox were killed and did not end; the launcher waits for nothing else.
                remain = isinstance(error, OperationFailed) and error.number == errno.ETIMEDOUT
                failure = ProcessesRemain if remain else ExaminationFailed
                raise failure(f"Sandbox {self.id} could not be examined: {error}") from error
            finally:
                # A group that cannot be removed now is in the lease.
                await remove_group(groups.directories(examination_of(self.id)))
        if result.exit_status == 128 + signal.SIGKILL:
            # A sandbox that dies kills the program, too, and the program's end is reported first.
            await self._container.notice_end(_DEATH_PATIENCE)
        self._require()
        return result

    def _examination_limits(self, timeout: float) -> ExaminationLimits:
        runtime, group = self._runtime, examination_of(self.id)
        account = runtime.groups.account(group)
        return ExaminationLimits(
            on_start=lambda: runtime.time_limit(
                "The start of the examination", timeout + START_PATIENCE, self.id, group, starting=True
            ),
            on_program=lambda: runtime.time_limit("The examination", timeout, group, self.id),
            has_processes=lambda: account is None or bool(account.threads()),
        )

    def _program(
        self, arguments: Sequence[str], environment: Mapping[str, str], directory: str, *, for_examination: bool = False
    ) -> Program:
        resources = self._resources(for_examination)
        return Program(list(arguments), dict(environment), directory, self._user, resources)

    def _resources(self, for_examination: bool) -> dict[str, int]:
        """Return the rlimits of each process; of memory and processes only where no control group enforces them."""
        enforced = self._runtime.groups.enforced
        resources = {"CORE": 0, "NOFILE": self._files.each, "FSIZE": self.limits.disk, **RESOURCES}
        if "memory" not in enforced:
            resources["DATA"] = self.limits.memory
        if "pids" not in enforced:
            # It counts all processes of the user: an examination's are added to the agent's.
            resources["NPROC"] = self.limits.pids * (2 if for_examination else 1)
        return resources

    # ── files ──

    async def read_file(self, path: str, *, limit: int = 100 * 2**20) -> bytes:
        opened = await self._open(path, os.O_RDONLY)
        return await read_content(path, opened.descriptor, opened.size, limit)

    async def write_file(self, path: str, content: bytes, *, mode: int = 0o644, parents: bool = True) -> None:
        opened = await self._open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode, parents)
        await write_content(path, opened.descriptor, content)

    async def stat_file(self, path: str, *, follow: bool = True) -> FileStatus:
        found = await self._request_file(StatFile(path, follow, self._user, self.image.home), FileFound)
        return FileStatus(**found._asdict())

    async def _open(self, path: str, flags: int, mode: int = 0, parents: bool = False) -> Opened:
        return await self._request_file(OpenFile(path, flags, mode, parents, self._user, self.image.home), Opened)

    async def _request_file(self, request: OpenFile | StatFile, response: type[R]) -> R:
        self._require()
        path = request.path
        if not path or "\0" in path:
            raise file_error(path, errno.ENOENT)
        try:
            return await self._container.client.request(request, (self._container.process_1,), response)
        except LauncherGone as error:
            raise SandboxDied(self.id, str(error)) from error
        except OperationFailed as error:
            await self._require_alive(0.0)
            raise file_error(path, error.number, str(error)) from error

    # ── the end ──

    async def stop(self) -> None:
        if self._stopping is None:
            if self._life.state == State.NEW:
                self._life.stop()
                return
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        self._life.stop()
        if self._expiry is not None:
            self._expiry.cancel()
        if self._shell is not None:
            self._shell.close()
        await self._container.stop()
        # A group that cannot be removed now keeps its lease, and the runtime's next sweep removes it.
        if await remove_group(self._runtime.group_directories(self.id)):
            self._runtime.owner.release(self.id)
        if self._runtime.sandboxes.pop(self.id, None) is not None:
            self._runtime.hold_files(-self._files.total)

    def _expire(self) -> None:
        if self._life.end(State.EXPIRED):
            self._stopping = asyncio.create_task(self._stop())

    def _require(self) -> Shell:
        """Return the shell of a running sandbox; raise the error of one that does not run."""
        self._life.require_running()
        assert self._shell is not None
        return self._shell

    async def _require_alive(self, patience: float) -> None:
        """After a failure: raise the sandbox's own error if the sandbox has ended.

        ``patience`` is for failures that hardly anything but the sandbox's end explains: process 1 takes a while to
        end.
        """
        await self._container.notice_end(patience)
        self._require()
