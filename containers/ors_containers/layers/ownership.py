"""Ownership of the files of layers, and operations on layers that preserve it.

Long operations, such as unpacking an archive, run in a process of their own (``layers.worker``): they do not delay a
server's event loop, and cancelling the caller ends them. Short operations run in a thread where no namespace is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ors_containers.errors import StoreFailed
from ors_containers.layers.copying import CopySource, CopyTarget
from ors_containers.layers.leaving_out import LeftOut, leave_out
from ors_containers.layers.messages import (
    CopyFiles,
    CopyFolder,
    Failure,
    Keep,
    LeaveOut,
    Operation,
    Remove,
    Request,
    Result,
    Share,
    Unpack,
    Unsquash,
    Write,
    decode_answer,
)
from ors_containers.layers.tar import Unpacked
from ors_containers.layers.tree import remove_layer
from ors_containers.layers.writer import Entry, write_layer
from ors_containers.linux.host_support import IdMapping, find_mapping
from ors_containers.linux.subprocesses import child_process

__all__ = ["LayerOwners", "interpreter"]

ByteProgress = Callable[[int], None]

_SOURCES = Path(__file__).resolve().parents[2]


def interpreter(module: str, *arguments: str) -> list[str]:
    """Return the command line of a process that calls ``main`` of a module of this package and imports no other."""
    script = (
        f"import sys; sys.path.insert(0, sys.argv[1]); from ors_containers.{module} import main; main(*sys.argv[2:])"
    )
    return [sys.executable, "-I", "-S", "-c", script, str(_SOURCES), *arguments]


class LayerOwners:
    """The owners that files of layers have on this machine, and the operations that set them."""

    def __init__(self, mapping: IdMapping | None = None) -> None:
        self.mapping = mapping or find_mapping()

    @property
    def one_id(self) -> bool:
        """``True`` where every file of a layer belongs to the same user."""
        return self.mapping.one_id

    @property
    def tag(self) -> str:
        """Part of a layer's key: a layer made with other owners has another tag and is another layer."""
        mapping = self.mapping
        return f"helper:{mapping.users}:{mapping.groups}" if mapping.by == "helper" else mapping.by

    async def write(
        self,
        folder: Path,
        entries: Sequence[Entry],
        below: Sequence[Path],
        *,
        limit: int = 0,
        defaults: Mapping[str, tuple[int, int, int]] | None = None,
    ) -> int:
        """Write entries into a layer; see ``writer.write_layer``."""
        if self.mapping.by != "helper":
            return await asyncio.to_thread(
                write_layer, folder, entries, below, owners=not self.one_id, limit=limit, defaults=defaults
            )
        below_it = [str(layer) for layer in below]
        return (await self._run_worker(Write(str(folder), entries, below_it, limit, defaults or {}))).size

    async def unpack(
        self,
        archive: Path,
        folder: Path,
        below: Sequence[Path] = (),
        *,
        member: str = "",
        limit: int = 0,
        digest: str = "",
        progress: ByteProgress | None = None,
    ) -> Unpacked:
        """Unpack a tar archive, or its ``member``, compressed or not; see ``tar.unpack_layer``."""
        below_it = [str(layer) for layer in below]
        asked = Unpack(str(archive), member, str(folder), below_it, limit, digest)
        done = await self._run_worker(asked, progress)
        return Unpacked(done.size, done.skipped)

    async def copy(
        self,
        source: Path,
        folder: Path,
        *,
        limit: int = 0,
        home: str = "",
        home_user: int = 0,
        home_group: int = 0,
        progress: ByteProgress | None = None,
    ) -> Unpacked:
        """Copy a folder; see ``tar.copy_layer``. An unprivileged user's files become root's or the home's user's."""
        asked = CopyFolder(str(source), str(folder), limit, home.strip("/"), home_user, home_group)
        done = await self._run_worker(asked, progress)
        return Unpacked(done.size, done.skipped)

    async def copy_files(
        self, folder: Path, below: Sequence[Path], sources: Sequence[CopySource], target: CopyTarget, *, limit: int = 0
    ) -> int:
        """Copy files of a context or of other layers into a layer; see ``copying.write_copies``."""
        below_it = [str(layer) for layer in below]
        asked = CopyFiles(str(folder), below_it, sources, target, not self.one_id, limit)
        return (await self._run_worker(asked)).size

    async def unsquash(self, archive: Path, folder: Path, program: str, begin: int, *, limit: int = 0) -> int:
        """Unpack the squashfs at byte ``begin`` of a file with ``unsquashfs``; return the bytes of its files."""
        return (await self._run_worker(Unsquash(str(archive), str(folder), program, begin, limit))).size

    async def keep(self, source: str, folder: Path, *, directory: int = -1) -> int:
        """Copy the upper directory ``source`` of an ended container to the layer ``folder``; return its bytes.

        ``source`` is relative to the open ``directory``, if that is one. Raises ``StoreFailed`` and ``OSError``.
        """
        asked = Keep(directory, source, str(folder))
        return (await self._run_worker(asked, descriptors=() if directory == -1 else (directory,))).size

    async def leave_out(self, layer: Path, rules: LeftOut, below: Sequence[Path]) -> None:
        """Remove files of a layer that no container has; see ``leaving_out.leave_out``. Raises ``OSError``."""
        if self.mapping.by == "root":
            await asyncio.to_thread(leave_out, layer, rules, below)
        else:
            await self._run_worker(LeaveOut(str(layer), rules, [str(folder) for folder in below]))

    async def share(self, folder: Path, pool: Path, since: float) -> str:
        """Share the files of a layer, and return its digest; see ``sharing.share_layer``."""
        return (await self._run_worker(Share(str(folder), str(pool), since))).digest

    async def remove(self, folder: Path) -> None:
        """Remove a tree; see ``tree.remove_layer``."""
        try:
            await asyncio.to_thread(remove_layer, folder)
        except PermissionError:
            if self.mapping.by == "root":
                raise
            await self._run_worker(Remove(str(folder)))  # files of mapped users, or in folders that are closed

    async def _run_worker(
        self, operation: Operation, progress: ByteProgress | None = None, descriptors: Sequence[int] = ()
    ) -> Result:
        """Run an operation in a process. Raises its error, and ``StoreFailed`` where it ended without an answer."""
        request = Request(os.getpid(), self.mapping.of_sandbox(0), operation)
        pipe = asyncio.subprocess.PIPE
        command = interpreter("layers.worker")
        async with child_process(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, env={}, cwd="/", pass_fds=descriptors
        ) as process:
            assert process.stdin is not None and process.stdout is not None and process.stderr is not None
            with contextlib.suppress(ConnectionError):
                process.stdin.write(request.encode())
                await process.stdin.drain()
                process.stdin.close()
            while line := await process.stdout.readline():
                answer = decode_answer(line)
                if isinstance(answer, Failure):
                    raise answer.error()
                if isinstance(answer, Result):
                    return answer
                if progress is not None:
                    progress(answer.size)
            stderr = (await process.stderr.read()).decode(errors="replace").strip()
            last = stderr.splitlines()[-1] if stderr else "it was killed"
            raise StoreFailed(f"The process that writes layers has failed: {last}")
