"""The container of an agent, with the shell of the terminal environment's tools.

Each command is a process of its own. Its working directory and its variables are saved when it ends, and loaded by the
next: to the agent it is one shell. The saved text is the agent's own file, and only its shell reads it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ors_containers import CommandResult, Image, InvalidCommand
from ors_containers.container import Container

from ..folder import HarborTask
from ..record import Record
from ..templates import filled
from .shell_state import SHELL_STATE
from .verification import Containers, agent_image, container_settings

__all__ = ["AgentContainer", "open_agent"]

#: Readonly variables cannot be set again: bash says so, and goes on.
_SHELL = f"""
if [ -r {SHELL_STATE} ]; then . {SHELL_STATE} >/dev/null 2>&1; fi
trap '{{ declare -p; declare -f; printf "cd -- %q\\n" "$PWD"; }} >{SHELL_STATE} 2>/dev/null' EXIT
eval "$1"
"""
#: Bash may be missing; then commands do not share a directory and variables.
_PLAIN = 'eval "$1"'
#: Bytes of a command's output; its beginning and end are shown.
_MOST_OUTPUT = 8 << 20
#: Seconds for the search of a shell.
_PATIENCE = 30.0


class AgentContainer:
    """A container as the terminal environment's tools see it: ``run``, ``stop`` and ``image``."""

    def __init__(self, container: Container, user: str | int | None, shell: str) -> None:
        self.container = container
        self.image = container.image
        self._user = user
        self._shell = shell

    async def run(self, command: str, *, timeout: float) -> CommandResult:
        """Run a command, and end it after ``timeout`` seconds. Raises ``InvalidCommand``."""
        if "\0" in command:
            raise InvalidCommand("A command has no NUL characters")
        text = _SHELL if self._shell == "/bin/bash" else _PLAIN
        # One pipe, so that both outputs are in the order in which they came.
        argv = [self._shell, "-c", f"exec 2>&1\n{text}", "bash", command]
        done = await self.container.execute(argv, user=self._user, timeout=timeout, max_bytes=_MOST_OUTPUT)
        return CommandResult(done.exit_status, done.stdout + done.stderr, done.seconds, done.timed_out)

    async def stop(self) -> None:
        """End the container. Never raises."""
        await self.container.close()


async def open_agent(
    service: Containers, task: HarborTask, record: Record, variables: Mapping[str, str], *, network: bool
) -> AgentContainer:
    """Start the container of an agent; with ``network`` it has one if the task asks for it and the server allows it.

    Raises ``VariableMissing``, and what opening a container raises.
    """
    config = task.config
    image: Image = agent_image(service.store, record, config.environment.workdir)
    mode = config.agent.network_mode or config.environment.network_mode
    settings = container_settings(task, filled(config.environment.env, variables), network=network and mode == "public")
    container = await service.open_container(image, settings)
    found = await container.execute(["/bin/bash", "-c", ":"], timeout=_PATIENCE)
    return AgentContainer(container, config.agent.user, "/bin/bash" if found.exit_status == 0 else "/bin/sh")
