"""A docker-like container in namespaces of its own, from its lease to its end.

Invariants: a lease names what a container holds before it holds it; ``close`` returns when its last process has ended;
a start that fails leaves no process, control group or lease.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ors_containers.container import Container, ContainerSettings, FrozenFiles, Network
from ors_containers.errors import StartFailed
from ors_containers.image import Image
from ors_containers.launcher.client import LauncherGone, OperationFailed
from ors_containers.launcher.messages import Enter, Entered, Program
from ors_containers.linux.limits.cgroups import remove_group
from ors_containers.linux.limits.open_files import limit_files
from ors_containers.runtimes.containers.command_arguments import checked_program
from ors_containers.runtimes.containers.container_commands import ContainerCommands
from ors_containers.runtimes.containers.container_files import ContainerFiles
from ors_containers.runtimes.containers.container_start import (
    container_limits,
    container_resources,
    start_namespaces,
)
from ors_containers.runtimes.containers.container_user import (
    container_program,
    container_user,
    find_account,
    user_of,
)
from ors_containers.runtimes.containers.frozen_files import freeze_files
from ors_containers.runtimes.containers.open_network import OpenNetwork
from ors_containers.runtimes.lifecycle import Lifecycle, State, start_whole
from ors_containers.runtimes.namespaces import Namespaces
from ors_containers.runtimes.opened_file import server_limits
from ors_containers.runtimes.runtime_state import RuntimeState
from ors_containers.sandbox import CommandResult, ExecutionResult, FileStatus, OutputStream

__all__ = ["NamespaceContainer"]


class NamespaceContainer(Container):
    """A container that the launcher starts and enters; ``start`` once, before anything else."""

    def __init__(
        self,
        runtime: RuntimeState,
        image: Image,
        settings: ContainerSettings,
        *,
        network: Network = "none",
        notes: Sequence[str] = (),
    ) -> None:
        self.id = secrets.token_hex(6)
        self.image = image
        self.settings = settings
        self.network = network
        self.notes = tuple(notes)
        self._runtime = runtime
        self._life = Lifecycle(self.id, None)
        self._parts: list[Namespaces] = []
        self._commands: ContainerCommands | None = None
        self._files: ContainerFiles | None = None
        self._program: Program | None = None
        self._open_network = OpenNetwork() if network == "open" else None
        self._closing: asyncio.Task[None] | None = None
        self._file_limit = limit_files(settings.pids, container=True)
        self._started = time.time()

    # ── start ──

    async def start(self) -> None:
        """Start the container and its sidecars.

        Raises ``StartFailed``, ``InvalidMount``, ``ProgramMissing`` and ``Overloaded``; after any of them no process or
        file of it is left.
        """
        self._life.start()
        self._runtime.containers[self.id] = self
        self._runtime.hold_files(self._file_limit.total)
        await start_whole(self._start(), self.close)

    async def _start(self) -> None:
        runtime, settings = self._runtime, self.settings
        async with runtime.starting:
            directories = runtime.groups.directories(self.id)
            processes: list[int] = []
            try:
                client = runtime.living_client()
                runtime.owner.lease(self.id, [], directories)
                group_files = runtime.groups.create(self.id, container_limits(settings, runtime))
                slot = runtime.next_slot()
                for image in (self.image, *(sidecar.image for sidecar in settings.sidecars)):
                    part = Namespaces(client)
                    self._parts.append(part)
                    main = self._parts[0] if part is not self._parts[0] else None
                    processes += await start_namespaces(
                        part, main, image, settings, runtime, group_files, slot, self.network
                    )
                    runtime.owner.lease(self.id, processes, directories)
                main = self._parts[0]
                if self._open_network is not None:
                    processes.append(await self._open_network.start(main.process))
                    runtime.owner.lease(self.id, processes, directories)
                resources = container_resources(settings, runtime)
                user = container_user(self.image, settings, runtime, self.network)
                self._program = container_program(self.image, user, settings.environment, resources)
                self._commands = ContainerCommands(
                    self.id,
                    main,
                    self._program,
                    group_files,
                    self._require_alive,
                    lambda what, seconds, starting: runtime.time_limit(what, seconds, self.id, starting=starting),
                )
                self._files = ContainerFiles(self.id, main, user, self._require_alive)
                self._life.state = State.RUNNING
                assert main.monitor is not None
                main.monitor.add_done_callback(lambda _: self._life.end(State.DEAD))
                for sidecar, part in zip(settings.sidecars, self._parts[1:], strict=True):
                    user = container_user(sidecar.image, None, runtime, self.network)
                    program = container_program(sidecar.image, user, sidecar.environment, resources)
                    request = Enter(program._replace(arguments=list(sidecar.arguments)), group_files, False, [])
                    entered = await client.request(request, (part.process_1,), Entered)
                    exited = client.exit_of(entered.process)
                    exited.add_done_callback(lambda _, process=entered.process: client.forget(process))
            except (OSError, OperationFailed, LauncherGone) as error:
                raise StartFailed(f"The container did not come up: {error}") from error

    # ── commands and files ──

    async def run(
        self,
        command: str,
        *,
        shell: str = "/bin/bash",
        timeout: float | None = None,
        max_bytes: int | None = None,
    ) -> CommandResult:
        self._life.require_running()
        assert self._commands is not None
        with server_limits():
            result = await self._commands.run(command, shell, timeout, max_bytes)
        self._life.require_running()
        return result

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
        files = self._open_files()
        assert self._commands is not None and self._program is not None
        program = self._program
        if user is not None:
            account = await find_account(files, user)
            if account is None:
                problem = f"unable to find user {user}: no such account in the container's /etc/passwd\n"
                return ExecutionResult(126, b"", problem.encode(errors="replace"), 0.0, started=False)
            resources = container_resources(self.settings, self._runtime)
            environment = self.settings.environment
            as_user = user_of(account, program.user)
            program = container_program(self.image, as_user, environment, resources, account)
        packed = checked_program(program, argv, cwd, env)
        with server_limits():
            result = await self._commands.execute(program, packed, stdin, timeout, max_bytes, on_output, record=record)
        self._life.require_running()
        return result

    async def stat(self, path: str, *, follow: bool = False) -> FileStatus:
        return await self._open_files().stat(path, follow=follow)

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> tuple[bytes, int]:
        return await self._open_files().read(path, offset, length)

    async def digest(self, path: str) -> tuple[str, int]:
        return await self._open_files().digest(path)

    async def write(
        self, path: str, content: bytes, *, offset: int = 0, truncate: bool = True, parents: bool = False
    ) -> int:
        return await self._open_files().write(path, content, offset=offset, truncate=truncate, parents=parents)

    async def rename(self, source: str, target: str) -> None:
        await self._open_files().rename(source, target)

    # ── the end ──

    async def freeze(self, folder: Path) -> FrozenFiles:
        self._life.require_running()
        disk = os.dup(self._parts[0].disk)
        try:
            await self.close()
        except BaseException:  # a cancelled call
            self._runtime.disks.free(disk)
            raise
        return await freeze_files(disk, folder, self._runtime, self._started)

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._life.stop()
        # The main container last: it has the network.
        for part in reversed(self._parts):
            await part.stop()
            if part.refused_names is not None:
                part.refused_names.close()
            if part.disk != -1:
                self._runtime.disks.free(part.disk)
                part.disk = -1
        if self._open_network is not None:
            await self._open_network.close()
        if self._commands is not None:
            await self._commands.close()
        # A group that cannot be removed now keeps its lease, and the runtime's next sweep removes it.
        if await remove_group(self._runtime.groups.directories(self.id)):
            self._runtime.owner.release(self.id)
        if self._runtime.containers.pop(self.id, None) is not None:
            self._runtime.hold_files(-self._file_limit.total)

    def _open_files(self) -> ContainerFiles:
        self._life.require_running()
        assert self._files is not None
        return self._files

    async def _require_alive(self, patience: float) -> None:
        """Raise the container's own error if it has ended; wait up to ``patience`` seconds for its end."""
        if patience:
            await self._parts[0].notice_end(patience)
        self._life.require_running()
