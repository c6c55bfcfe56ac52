"""The side of a container that its shell uses: start bash in it, list its processes, end those of a command."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from ors_containers.errors import ShellFailed
from ors_containers.launcher.client import OperationFailed
from ors_containers.launcher.messages import Done, EndCommand, Enter, Entered, Program
from ors_containers.runtimes.namespaces import Namespaces
from ors_containers.runtimes.runtime_state import RuntimeState
from ors_containers.runtimes.shells.shell import Ending
from ors_containers.runtimes.shells.shell_protocol import SHELL_ARGUMENTS
from ors_containers.runtimes.shells.time_limit import TimeLimit

__all__ = ["ContainerShellHost"]


@dataclass(slots=True)
class _ShellProcess:
    inner: int
    exited: asyncio.Future[int]


@dataclass(slots=True)
class ContainerShellHost:
    """The ``ShellHost`` of a container."""

    sandbox: str
    container: Namespaces
    runtime: RuntimeState
    #: Bash without arguments, as the image has it.
    program: Program
    #: Files by which a process joins its control groups.
    group_files: list[str]
    #: Raises the sandbox's own error if the sandbox has ended.
    require_alive: Callable[[], Awaitable[None]]
    #: Where the launcher's child for the first shell waits for process 1; None once the container runs.
    gate: socket.socket | None

    async def start_shell(
        self, descriptors: Sequence[int], at: Sequence[int], environment: Mapping[str, str], directory: str
    ) -> _ShellProcess:
        gate, self.gate = self.gate, None
        client = self.container.client
        program = self.program._replace(
            arguments=[*self.program.arguments, *SHELL_ARGUMENTS], environment=dict(environment), directory=directory
        )
        entry = self.container.process_1 if gate is None else gate.fileno()
        try:
            hidden = self.container.hides_processes
            request = Enter(program, self.group_files, gate is not None, list(at), show_processes=hidden)
            entered = await client.request(request, (entry, *descriptors), Entered)
        except OperationFailed as error:
            await self.require_alive()
            raise ShellFailed(f"No shell can be started in sandbox {self.sandbox}: {error}") from error
        self.runtime.ipc_bounded &= entered.ipc_bounded
        self.container.shell_process = entered.process
        self.container.hides_processes = False
        exited = client.exit_of(entered.process)
        exited.add_done_callback(lambda _: client.forget(entered.process))
        return _ShellProcess(entered.inner, exited)

    def processes(self, shell: int) -> dict[int, int]:
        return self.container.processes(shell)

    async def end_command(self, shell: int, keep_pids: Mapping[int, int], how: Ending) -> None:
        request = EndCommand(shell, {str(process): start for process, start in keep_pids.items()}, how)
        with contextlib.suppress(OperationFailed):
            await self.container.client.request(request, (self.container.process_1,), Done)

    def time_limit(self, what: str, seconds: float, *, starting: bool = False) -> TimeLimit:
        return self.runtime.time_limit(what, seconds, self.sandbox, starting=starting)
