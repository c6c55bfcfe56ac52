"""Our containers as a runtime of verifiers (v1): ``python -m ors_containers.plugins.verifiers vf-validate …``.

verifiers has a closed list of runtimes. So ``OrsRuntime`` takes the configuration of its ``docker`` runtime, and
``use`` puts it in that runtime's place, for every task that says ``type = "docker"``; the command above does so for
verifiers' own commands. In code, ``agent.run(task, runtime=box)`` takes a started ``OrsRuntime`` as well.

A container reaches no address of this machine. Refused by name: GPUs, lists of allowed or blocked hosts, a URL of this
machine (``host_url``), published ports (``expose``) and live processes.

Written for verifiers 0.4.
"""

from __future__ import annotations

import shlex
import sys
from importlib.metadata import entry_points
from pathlib import PurePosixPath
from typing import Any, ClassVar, NoReturn

from ors_containers.container import Container, ContainerSettings
from ors_containers.errors import SandboxError
from ors_containers.limits import MIB
from ors_containers.plugins.shared_runtime import SharedRuntime, import_runner
from ors_containers.sandbox import ExecutionResult

__all__ = ["OrsRuntime", "main", "use"]

_runtimes: Any = import_runner("verifiers.v1.runtimes", "verifiers")
_errors: Any = import_runner("verifiers.v1.errors", "verifiers")

#: Where commands run that name no folder, as with verifiers' own containers.
_WORKDIR = "/app"


class OrsRuntime(_runtimes.Runtime):
    """One container, with the configuration of verifiers' ``DockerRuntime``."""

    supports_user: ClassVar[bool] = True

    def __init__(self, config: Any, name: str | None = None) -> None:
        super().__init__(name)  # pyright: ignore[reportUnknownMemberType] - a class that it cannot see
        self.config = config
        self.info = _runtimes.DockerRuntimeInfo(**config.model_dump())
        self._workdir: str = config.workdir or _WORKDIR
        self._container: Container | None = None

    async def start(self) -> None:
        """Start the container. Raises verifiers' ``SandboxError``."""
        config = self.config
        if config.gpu is not None:
            raise _errors.SandboxError(f"gpu = {config.gpu!r}: a container of ors-server has no GPU")
        if config.network_restricted and config.allow:
            raise _errors.SandboxError(
                f"allow = {config.allow}, block = {config.block}: a container of ors-server has no network or all of it"
            )
        try:
            shared = await SharedRuntime.of_this_loop()
            settings = ContainerSettings(
                memory=round((config.memory or 2) * 1024 * MIB),
                cpus=config.cpu or 1.0,
                disk=round((config.disk or 10) * 1024 * MIB),
                network="none" if config.network_restricted else "open",
            )
            self._container = await shared.open(await shared.image(config.image), settings)
        except SandboxError as error:
            raise _errors.SandboxError(str(error)) from error
        self.info.id = self._container.id
        await self._execute(["mkdir", "-p", "--", self._workdir], user="root", cwd="/")

    async def teardown(self) -> None:
        """End the container. Where the event loop has ended, the container ends with this process."""
        if self._container is not None:
            await self._container.close()

    async def run(self, argv: list[str], env: dict[str, str]) -> Any:
        """Run a program in the working folder, as this view's user. Raises verifiers' ``SandboxError``."""
        result = await self._execute(argv, user=self.user, cwd=self._workdir, env=self.process_env(env))
        return _runtimes.ProgramResult(
            exit_code=result.exit_status,
            stdout=result.stdout.decode(errors="replace"),
            stderr=result.stderr.decode(errors="replace"),
        )

    async def run_background(self, argv: list[str], env: dict[str, str], log: str) -> None:
        """Start a program whose output goes to the file ``log``. Raises verifiers' ``SandboxError``."""
        script = f"{shlex.join(argv)} > {shlex.quote(log)} 2>&1 < /dev/null &"
        result = await self.run(["sh", "-c", script], env)
        if result.exit_code != 0:
            raise _errors.SandboxError(f"{argv[0]} cannot be started: {result.stderr.strip()}")

    async def _read(self, path: str, max_bytes: int | None = None) -> bytes:
        argv = ["cat"] if max_bytes is None else ["head", "-c", str(max_bytes)]
        result = await self._execute([*argv, "--", path], user=self.user, cwd=self._workdir)
        if result.exit_status != 0 or result.truncated:
            reason = result.stderr.decode(errors="replace").strip() or "the file is too large"
            raise _errors.SandboxError(f"read {path!r}: {reason}")
        return result.stdout

    async def write(self, path: str, data: bytes) -> None:
        """Write a file, with the folders above it, as this view's user. Raises verifiers' ``SandboxError``."""
        script = 'mkdir -p -- "$1" && cat > "$2"'
        argv = ["sh", "-c", script, "sh", str(PurePosixPath(path).parent), path]
        result = await self._execute(argv, user=self.user, cwd=self._workdir, stdin=data)
        if result.exit_status != 0:
            raise _errors.SandboxError(f"write {path!r}: {result.stderr.decode(errors='replace').strip()}")

    def host_url(self, url: str) -> NoReturn:
        """Refuse: no program of the container reaches this machine."""
        raise _errors.SandboxError(f"{url} cannot be reached from a container of ors-server")

    async def expose(self, port: int) -> NoReturn:
        """Refuse: no port of the container is published."""
        raise _errors.SandboxError(f"Port {port} of a container of ors-server cannot be published")

    async def _execute(self, argv: list[str], **more: Any) -> ExecutionResult:
        if self._container is None:
            raise _errors.SandboxError("The container is not started")
        try:
            return await self._container.execute(argv, **more)
        except SandboxError as error:
            raise _errors.SandboxError(str(error)) from error


def use() -> None:
    """Run every ``docker`` runtime of verifiers in this process on our containers."""
    _runtimes.DockerRuntime = OrsRuntime


def main() -> None:
    """Run one of verifiers' own commands with our containers in the place of Docker's."""
    commands = {
        entry.name: entry for entry in entry_points(group="console_scripts") if entry.value.startswith("verifiers.")
    }
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        sys.exit(f"Usage: python -m ors_containers.plugins.verifiers {{{','.join(sorted(commands))}}} ARGUMENTS")
    use()
    sys.argv = sys.argv[1:]
    sys.exit(commands[sys.argv[0]].load()())


if __name__ == "__main__":
    main()
