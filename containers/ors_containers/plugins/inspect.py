"""Our containers as a sandbox of Inspect: ``Task(..., sandbox=("ors", "python:3.12"))``, or ``sandbox="ors"``.

A sample gets one docker-like container. The configuration is the name of an image of the image map, the path of a
Dockerfile, or an ``OrsSandboxConfig``; without one it is the ``Dockerfile`` beside the task, else the image ``host``.
Inspect finds this module by the entry point group ``inspect_ai``.

Written for Inspect 0.3.285.
"""

from __future__ import annotations

import asyncio
import errno
import posixpath
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ors_containers.container import Container, ContainerSettings
from ors_containers.errors import FileError, InfrastructureFailure, InvalidCommand, NotAFile, SandboxStopped
from ors_containers.image import Image
from ors_containers.limits import MIB
from ors_containers.plugins.shared_runtime import SharedRuntime, import_runner

__all__ = ["OrsSandboxConfig", "OrsSandboxEnvironment"]

_util: Any = import_runner("inspect_ai.util", "inspect")
_environment: Any = import_runner("inspect_ai.util._sandbox.environment", "inspect")


class OrsSandboxConfig(BaseModel, frozen=True, extra="forbid"):
    """The image and the limits of a sample's container."""

    #: A name of the image map; ``host`` for this machine's own programs.
    image: str = "host"
    #: A Dockerfile to build in its folder, instead of ``image``.
    dockerfile: str | None = None
    #: The Dockerfile's ``RUN`` steps have this machine's network.
    build_network: bool = False
    memory_mb: int = 2048
    cpus: float = 1.0
    disk_mb: int = 10240
    #: The id of the default user, instead of the image's.
    user: int | None = None
    #: Ask for an open network, which the operator has to allow.
    network: bool = False
    environment: dict[str, str] = {}


@_util.sandboxenv(name="ors")
class OrsSandboxEnvironment(_util.SandboxEnvironment):
    """The container of a sample."""

    def __init__(self, container: Container) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] - a class that it cannot see
        self._container = container

    # ── commands ──

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> Any:
        """Run a program; see Inspect's own documentation. A time-out is not retried: waiting for others does not count.

        Raises ``TimeoutError``, ``PermissionError``, ``OutputLimitExceededError``, ``SandboxUserUnsupportedError`` and
        ``SandboxUnavailableError``.
        """
        limits = _util.SandboxEnvironmentLimits
        try:
            result = await self._container.execute(
                cmd,
                stdin=input.encode() if isinstance(input, str) else input or b"",
                user=user,
                cwd=cwd,
                env=env,
                timeout=timeout,
                max_bytes=limits.MAX_EXEC_OUTPUT_SIZE,
            )
        except InvalidCommand as error:
            if user is not None and "user id" in error.cause:
                raise _util.SandboxUserUnsupportedError(str(error)) from error
            raise
        except (InfrastructureFailure, SandboxStopped) as error:
            raise _environment.SandboxUnavailableError(str(error)) from error
        if result.timed_out:
            raise TimeoutError(f"Command timed out after {timeout} seconds")
        stdout, stderr = (output.decode(errors="replace") for output in (result.stdout, result.stderr))
        if not result.started and "Permission denied" in stderr:
            raise PermissionError(errno.EACCES, stderr.strip())
        if result.truncated:
            raise _util.OutputLimitExceededError(limits.MAX_EXEC_OUTPUT_SIZE_STR, stdout)
        return _util.ExecResult(result.exit_status == 0, result.exit_status, stdout, stderr)

    # ── files, with the default user's rights ──

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file, with the folders above it. Raises ``PermissionError`` and ``IsADirectoryError``."""
        content = contents.encode() if isinstance(contents, str) else contents
        await self._on_file(file, lambda path: self._container.write(path, content, parents=True))

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Return the content of a file.

        Raises ``FileNotFoundError``, ``PermissionError``, ``IsADirectoryError``, ``UnicodeDecodeError`` and
        ``OutputLimitExceededError``.
        """
        limits = _util.SandboxEnvironmentLimits
        most = limits.MAX_READ_FILE_SIZE
        content, _ = await self._on_file(file, lambda path: self._container.read(path, length=most + 1))
        if len(content) > most:
            raise _util.OutputLimitExceededError(limits.MAX_READ_FILE_SIZE_STR, None)
        return content.decode() if text else content

    async def _on_file(self, file: str, operation: Callable[[str], Any]) -> Any:
        """Do ``operation`` with the path of a file, or of the file that a link leads to."""
        path = posixpath.join(self._container.image.directory or "/", file)
        try:
            try:
                return await operation(path)
            except FileError as error:
                if error.errno != errno.ELOOP:
                    raise
            found = await self._container.execute(["readlink", "-f", "--", path], timeout=60)
            return await operation(found.stdout.decode(errors="surrogateescape").removesuffix("\n") or path)
        except NotAFile as error:
            raise IsADirectoryError(
                errno.EISDIR, f"Is a directory or a special file, not a regular file: {file}"
            ) from error
        except (InfrastructureFailure, SandboxStopped) as error:
            raise _environment.SandboxUnavailableError(str(error)) from error

    # ── from the sample's start to its end ──

    @classmethod
    async def sample_init(
        cls, task_name: str, config: BaseModel | str | None, metadata: dict[str, str]
    ) -> dict[str, Any]:
        """Start the container of a sample. Raises ``SandboxError``."""
        shared = await SharedRuntime.of_this_loop()
        chosen = config if isinstance(config, OrsSandboxConfig) else _config(config)
        settings = ContainerSettings(
            memory=chosen.memory_mb * MIB,
            cpus=chosen.cpus,
            disk=chosen.disk_mb * MIB,
            environment=chosen.environment,
            user=chosen.user,
            network="open" if chosen.network else "none",
        )
        return {"default": cls(await shared.open(await _image(shared, chosen), settings))}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: BaseModel | str | None, environments: dict[str, Any], interrupted: bool
    ) -> None:
        """End the containers of a sample; none is kept, whatever ``--no-sandbox-cleanup`` says."""
        for environment in environments.values():
            await environment.as_type(cls)._container.close()

    @classmethod
    def config_files(cls) -> list[str]:
        """Return the name of the file beside a task that is its configuration."""
        return ["Dockerfile"]

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Read a configuration out of a log. Raises ``ValidationError``."""
        return OrsSandboxConfig(**config)


def _config(config: BaseModel | str | None) -> OrsSandboxConfig:
    """Return the configuration of an image's name or a Dockerfile's path. Raises ``ValueError``."""
    if config is None:
        return OrsSandboxConfig()
    if not isinstance(config, str):
        raise ValueError(f"The ors sandbox takes an OrsSandboxConfig, not {type(config).__name__}")
    name = Path(config).name
    if name.endswith((".yaml", ".yml")):
        raise ValueError(f"{config}: the ors sandbox runs no compose files; name an image or a Dockerfile")
    return OrsSandboxConfig(dockerfile=config) if "Dockerfile" in name else OrsSandboxConfig(image=config)


async def _image(shared: SharedRuntime, config: OrsSandboxConfig) -> Image:
    if config.dockerfile is None:
        return await shared.image(config.image)
    path = await asyncio.to_thread(Path(config.dockerfile).resolve)
    return await shared.build(path, f"inspect-{path.parent.name}", network=config.build_network)
