"""Who can write layers so that their files have the right owners, and has it done.

Long work, as unpacking an archive, is always done by a process of its own (``layer_process``): it takes no time from a
server's event loop, and a caller that gives up ends it. Short work is done in a thread where no namespace is needed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ors_containers import errors
from ors_containers.errors import SandboxError, StoreFailed
from ors_containers.layers.tar import Unpacked
from ors_containers.layers.tree import remove_layer
from ors_containers.layers.writer import Entry, write_layer
from ors_containers.linux.host_support import IdMapping, find_mapping
from ors_containers.linux.subprocesses import child_process

__all__ = ["LayerOwners", "interpreter"]

Progress = Callable[[int], None]

_SOURCES = Path(__file__).resolve().parents[2]


def interpreter(module: str, *arguments: str) -> list[str]:
    """The command line of a process that calls ``main`` of a module of this package, with nothing else on its path."""
    script = (
        f"import sys; sys.path.insert(0, sys.argv[1]); from ors_containers.{module} import main; main(*sys.argv[2:])"
    )
    return [sys.executable, "-I", "-S", "-c", script, str(_SOURCES), *arguments]


class LayerOwners:
    """How the files of layers are owned on this machine, and who can write them."""

    def __init__(self, mapping: IdMapping | None = None) -> None:
        self.mapping = mapping or find_mapping()

    @property
    def one_id(self) -> bool:
        """Whether every file of a layer belongs to the one user there is."""
        return self.mapping.one_id

    @property
    def tag(self) -> str:
        """Layers of different tags are different layers: their owners would be wrong."""
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
        """``layers.write_layer``."""
        if self.mapping.by != "helper":
            return await asyncio.to_thread(
                write_layer, folder, entries, below, owners=not self.one_id, limit=limit, defaults=defaults
            )
        coded = [
            [
                entry.path,
                entry.kind,
                base64.b64encode(entry.content).decode(),
                entry.source,
                entry.mode,
                entry.user,
                entry.group,
            ]
            for entry in entries
        ]
        return await self._ask(
            "write",
            folder=str(folder),
            entries=coded,
            below=[str(layer) for layer in below],
            limit=limit,
            defaults=dict(defaults or {}),
        )

    async def unpack(
        self,
        archive: Path,
        folder: Path,
        below: Sequence[Path] = (),
        *,
        member: str = "",
        limit: int = 0,
        digest: str = "",
        progress: Progress | None = None,
    ) -> Unpacked:
        """``unpacking.unpack_layer`` of a tar archive, or of the one that is ``member`` of it, compressed or not."""
        said = await self._ask(
            "unpack",
            progress,
            archive=str(archive),
            member=member,
            folder=str(folder),
            below=[str(layer) for layer in below],
            limit=limit,
            digest=digest,
        )
        return Unpacked(*said)

    async def copy(
        self,
        source: Path,
        folder: Path,
        *,
        limit: int = 0,
        home: str = "",
        home_user: int = 0,
        home_group: int = 0,
        progress: Progress | None = None,
    ) -> Unpacked:
        """``unpacking.copy_layer``; what an ordinary user's folder holds belongs to root inside, or to its user."""
        said = await self._ask(
            "copy",
            progress,
            source=str(source),
            folder=str(folder),
            limit=limit,
            home=home.strip("/"),
            home_user=home_user,
            home_group=home_group,
        )
        return Unpacked(*said)

    async def unsquash(self, archive: Path, folder: Path, program: str, begin: int, *, limit: int = 0) -> int:
        """Unpack the squashfs that begins at byte ``begin`` of a file with ``unsquashfs``; the bytes of its files."""
        return await self._ask(
            "unsquash", archive=str(archive), folder=str(folder), program=program, begin=begin, limit=limit
        )

    async def remove(self, folder: Path) -> None:
        """``layers.remove_layer``."""
        try:
            await asyncio.to_thread(remove_layer, folder)
        except PermissionError:
            if self.mapping.by != "helper":
                raise
            await self._ask("remove", folder=str(folder))  # some of it is one of the mapped users'

    async def _ask(self, operation: str, progress: Progress | None = None, /, **arguments: Any) -> Any:
        """Have a process do it. Raises what it raised; ``StoreFailed`` where it ended without a word."""
        request = {
            "server": os.getpid(),
            "mapping": self.mapping.message(0),
            "operation": operation,
            "arguments": arguments,
        }
        pipe = asyncio.subprocess.PIPE
        command = interpreter("layers.worker")
        async with child_process(*command, stdin=pipe, stdout=pipe, stderr=pipe, env={}, cwd="/") as process:
            assert process.stdin is not None and process.stdout is not None and process.stderr is not None
            with contextlib.suppress(ConnectionError):
                process.stdin.write(json.dumps(request).encode())
                await process.stdin.drain()
                process.stdin.close()
            while line := await process.stdout.readline():
                answer = json.loads(line)
                if "progress" in answer:
                    if progress is not None:
                        progress(answer["progress"])
                elif "error" in answer:
                    raise _error(answer)
                else:
                    return answer["result"]
            said = (await process.stderr.read()).decode(errors="replace").strip()
            last = said.splitlines()[-1] if said else "it was killed"
            raise StoreFailed(f"The process that writes layers has failed: {last}")


def _error(answer: Mapping[str, Any]) -> Exception:
    if answer["error"] == "OSError":
        return OSError(answer["errno"], answer["cause"], answer["file"])
    kind: type[SandboxError] = getattr(errors, answer["error"])
    return kind(answer["cause"], answer["remedy"])
