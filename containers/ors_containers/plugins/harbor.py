"""Our containers as an environment of Harbor: ``harbor run --env ors_containers.plugins.harbor:OrsEnvironment …``.

An environment is one docker-like container of the task's image: ``docker_image`` by the image map, else the task's
Dockerfile, whose built steps are kept and shared. Agent and verifier get what ``docker exec`` and ``docker cp`` give
them. What cannot be done as the task says is refused with its name before anything starts: compose files, GPUs, TPUs,
Windows, allow-lists, and mounts that a container could write.

Written for Harbor 0.24 (``harbor.environments.base``, with ``tar_transfer`` for folders).
"""

from __future__ import annotations

import asyncio
import codecs
import io
import posixpath
import tarfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ors_containers.container import Container, ContainerSettings, Mount
from ors_containers.errors import SandboxError
from ors_containers.limits import MIB
from ors_containers.plugins.shared_runtime import SharedRuntime, import_runner
from ors_containers.sandbox import ExecutionResult, OutputStream

__all__ = ["OrsEnvironment"]

_base: Any = import_runner("harbor.environments.base", "harbor")
_capabilities: Any = import_runner("harbor.environments.capabilities", "harbor")
_definition: Any = import_runner("harbor.environments.definition", "harbor")
_tar: Any = import_runner("harbor.environments.tar_transfer", "harbor")

#: Bytes of each output of a command, and of an archive of a folder.
_MOST_OUTPUT = 64 * MIB
_MOST_ARCHIVE = 256 * MIB
#: Seconds for a copy of files, by programs that the agent may have replaced.
_COPY_PATIENCE = 600.0


class OrsEnvironment(_base.BaseEnvironment):
    """A container of a Harbor task.

    ``build_network`` (``--ek build_network=true``) gives the ``RUN`` steps of a Dockerfile this machine's network.
    """

    def __init__(self, *args: Any, build_network: bool | str = False, **kwargs: Any) -> None:
        self._build_network = str(build_network).lower() in ("1", "true", "yes")
        self._container: Container | None = None
        #: The user of commands without one; None for the container's own, which is root.
        self._image_user: int | None = None
        super().__init__(*args, **kwargs)  # pyright: ignore[reportUnknownMemberType] - a class that it cannot see

    @staticmethod
    def type() -> str:
        """Return the name of this kind of environment."""
        return "ors"

    @property
    def capabilities(self) -> Any:
        """A container can be without a network; everything else that can be declared is refused."""
        return _capabilities.EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> Any:
        """Return that processors and memory can be limited; ``start`` refuses a limit that does not hold here."""
        return _capabilities.EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    def _validate_definition(self) -> None:
        folder = Path(self.environment_dir)
        _definition.require_agent_environment_definition(folder, docker_image=self.task_env_config.docker_image)
        if (folder / _definition.COMPOSE_FILE_NAME).exists():
            raise ValueError(f"{folder / _definition.COMPOSE_FILE_NAME}: the ors environment runs no compose files")
        self._read_only_mounts()

    def _read_only_mounts(self) -> tuple[Mount, ...]:
        """Return the mounts of the job. Raises ``ValueError`` for those that a container could write.

        Harbor's own, of the folders for logs, are left out: their files are copied when a phase has ended.
        """
        found: list[Mount] = []
        own = Path(self.trial_paths.trial_dir).resolve()
        for mount in self._mounts:
            source = Path(mount.get("source") or "/")
            if source.resolve().is_relative_to(own):
                continue
            if mount.get("type", "bind") != "bind" or not mount.get("read_only"):
                raise ValueError(f"{mount}: the ors environment mounts folders of this machine read-only")
            found.append(Mount(source, mount["target"]))
        return tuple(found)

    # ── start and stop ──

    async def start(self, force_build: bool) -> None:
        """Build or find the image and start the container. Raises ``SandboxBuildFailedError`` and ``SandboxError``."""
        shared = await SharedRuntime.of_this_loop()
        for each in shared.description.enforcements:
            wanted = each.limit in ("cpu", "memory") and self._resource_limit_value(each.limit, auto_mode=None)
            if wanted and not each.holds:
                raise ValueError(f"This machine does not limit {each.limit}: {each.remedy or each.by}")
        image = await self._find_image(shared, force_build)
        config = self.task_env_config
        settings = ContainerSettings(
            memory=(self._effective_memory_mb or 2048) * MIB,
            cpus=float(self._effective_cpus or 1),
            disk=(config.storage_mb or 10240) * MIB,
            environment=self._startup_env(),
            user=0,
            group=0,
            network="none" if self._network_disabled else "open",
            mounts=self._read_only_mounts(),
        )
        self._image_user = image.user if image.names_user and image.user else None
        self._container = await shared.open(image, settings)
        for note in self._container.notes:
            self.logger.warning(note)
        if config.workdir:
            await self._succeed(["mkdir", "-p", "--", config.workdir])
        await self.ensure_dirs(self._mount_targets(writable_only=True))
        await self._upload_environment_dir_after_start()

    async def _find_image(self, shared: SharedRuntime, force_build: bool) -> Any:
        folder, name = Path(self.environment_dir), self.task_env_config.docker_image
        if _definition.should_use_prebuilt_docker_image(folder, docker_image=name, force_build=force_build):
            return await shared.image(name)
        try:
            return await shared.build(
                folder / _definition.DOCKERFILE_NAME,
                f"harbor-{self.environment_id}",
                network=self._build_network,
                progress=lambda step: self.logger.debug(step.text),
            )
        except SandboxError as error:
            raise _base.SandboxBuildFailedError(str(error)) from error

    async def stop(self, delete: bool) -> None:
        """End the container, whose files are lost."""
        container, self._container = self._container, None
        if container is not None:
            if not delete:
                self.logger.warning("The ors environment keeps no container after a trial")
            await container.close()

    def _running(self) -> Container:
        if self._container is None:
            raise RuntimeError("The environment is not started")
        return self._container

    # ── commands ──

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> Any:
        """Run ``command`` in a new bash. Raises ``RuntimeError`` for a command that takes longer than its time-out."""
        wanted = self._resolve_user(user)
        streaming = _Streaming(self._output_callback())
        try:
            result = await self._running().execute(
                ["/bin/bash", "-c", command],
                user=self._image_user if wanted is None else wanted,
                cwd=cwd or self.task_env_config.workdir,
                env=self._merge_env(env),
                timeout=timeout_sec,
                max_bytes=_MOST_OUTPUT,
                on_output=streaming.on_output,
            )
        finally:
            await streaming.finish()
        if result.timed_out:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        return _base.ExecResult(
            stdout=result.stdout.decode(errors="replace"),
            stderr=result.stderr.decode(errors="replace"),
            return_code=result.exit_status,
        )

    # ── files, as root, as `docker cp` copies them ──

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file into the container. Raises ``FileError``."""
        content, mode = await asyncio.to_thread(_read_file, Path(source_path))
        path = posixpath.join("/", target_path)
        await self._running().write(path, content, parents=True)
        if mode & 0o111:
            await self._succeed(["chmod", f"{mode:o}", path])

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy what is in a folder into a folder of the container, with modes and links."""
        source = Path(source_dir)
        archive = await asyncio.to_thread(_pack, source)
        await self._succeed(["mkdir", "-p", "--", target_dir])
        await self._succeed(["tar", "-xf", "-", "-C", target_dir], stdin=archive)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a regular file out of the container. Raises ``FileError``."""
        content, _ = await self._running().read(posixpath.join("/", source_path), length=_MOST_ARCHIVE + 1)
        if len(content) > _MOST_ARCHIVE:
            raise RuntimeError(f"{source_path} has more than {_MOST_ARCHIVE} bytes")
        target = Path(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(target.write_bytes, content)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy what is in a folder of the container into a folder; links that lead out of it are left out."""
        result = await self._succeed(["tar", "-cf", "-", "-C", source_dir, "."])
        if result.truncated:
            raise RuntimeError(f"{source_dir} has more than {_MOST_ARCHIVE} bytes")
        await asyncio.to_thread(_tar.extract_dir_from_bytes, result.stdout, target_dir)

    async def _succeed(self, argv: list[str], stdin: bytes = b"") -> ExecutionResult:
        result = await self._running().execute(
            argv, stdin=stdin, cwd="/", timeout=_COPY_PATIENCE, max_bytes=_MOST_ARCHIVE
        )
        if result.exit_status != 0:
            said = result.stderr.decode(errors="replace").strip()[-500:]
            raise RuntimeError(f"{' '.join(argv)} failed with {result.exit_status}: {said}")
        return result


def _read_file(path: Path) -> tuple[bytes, int]:
    return path.read_bytes(), path.stat().st_mode & 0o777


def _pack(folder: Path) -> bytes:
    """Return a tar archive of what is in a folder, owned by root; the folder's own mode is not in it."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, arcname=path.name, filter=_owned_by_root)
    return packed.getvalue()


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


class _Streaming:
    """Passes output on to Harbor's callback, which is a coroutine, in order."""

    def __init__(self, callback: Callable[[str, str], Awaitable[None]] | None) -> None:
        self._pieces: asyncio.Queue[tuple[OutputStream, bytes] | None] = asyncio.Queue()
        self._task = None if callback is None else asyncio.create_task(self._pass_on(callback))
        #: For ``Container.execute``; None without a callback.
        self.on_output = None if callback is None else self._put

    def _put(self, name: OutputStream, piece: bytes) -> None:
        self._pieces.put_nowait((name, piece))

    async def finish(self) -> None:
        """Wait until everything is passed on. Raises the error of the callback."""
        if self._task is not None:
            self._pieces.put_nowait(None)
            await self._task

    async def _pass_on(self, callback: Callable[[str, str], Awaitable[None]]) -> None:
        decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        while (taken := await self._pieces.get()) is not None:
            name, piece = taken
            if text := decoders[name].decode(piece):
                await callback(text, name)
