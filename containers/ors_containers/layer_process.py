"""Work on layers where their owners can be set: here, or in a process in the namespace that has them.

Long work, as unpacking an archive, is always done by a process of its own: it takes no time from a server's event loop,
and a caller that gives up ends it. Short work is done in a thread where no namespace is needed.

Invariant: the process ends when the server does; what it could not finish is in a folder that is not yet a layer.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from ors_containers import errors, system_calls
from ors_containers.errors import InvalidArchive, SandboxError, StoreFailed
from ors_containers.layers import Entry, clean_layer, remove_layer, too_large, write_layer
from ors_containers.prerequisites import IdMapping, find_mapping
from ors_containers.unpacking import Unpacked, copy_layer, decompressed, unpack_layer
from ors_containers.user_namespaces import join_mapped_namespace

__all__ = ["LayerOwners", "interpreter", "main"]

Progress = Callable[[int], None]

_SOURCES = Path(__file__).resolve().parent.parent
_REPORT_EVERY = 8 << 20


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

    async def clean(self, folder: Path, *, shift: int = 0) -> int:
        """``layers.clean_layer``."""
        if self.mapping.by != "helper":
            return await asyncio.to_thread(clean_layer, folder, shift=shift)
        return await self._ask("clean", folder=str(folder))

    async def remove(self, folder: Path) -> None:
        """``layers.remove_layer``."""
        if self.mapping.by != "helper":
            await asyncio.to_thread(remove_layer, folder)
        else:
            await self._ask("remove", folder=str(folder))

    async def _ask(self, operation: str, progress: Progress | None = None, /, **arguments: Any) -> Any:
        """Have a process do it. Raises what it raised; ``StoreFailed`` where it ended without a word."""
        process = await asyncio.create_subprocess_exec(
            *interpreter("layer_process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={},
            cwd="/",
            start_new_session=True,
        )
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        request = {
            "server": os.getpid(),
            "mapping": self.mapping.message(0),
            "operation": operation,
            "arguments": arguments,
        }
        try:
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
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGKILL)
            await process.wait()


def _error(answer: Mapping[str, Any]) -> Exception:
    if answer["error"] == "OSError":
        return OSError(answer["errno"], answer["cause"], answer["file"])
    kind: type[SandboxError] = getattr(errors, answer["error"])
    return kind(answer["cause"], answer["remedy"])


def main() -> NoReturn:
    """Do what standard input asks for, in the namespace it names, and answer on standard output in lines."""
    request = json.loads(sys.stdin.buffer.read())
    try:
        if request["mapping"]["by"] == "helper":
            join_mapped_namespace(request["mapping"], 0)
        system_calls.end_with_parent()
        if os.getppid() != request["server"]:
            os._exit(1)
        os.umask(0o022)
        _say({"result": _OPERATIONS[request["operation"]](**request["arguments"])})
    except SandboxError as error:
        _say({"error": type(error).__name__, "cause": error.cause, "remedy": error.remedy})
    except OSError as error:
        file = str(error.filename or "")
        _say({"error": "OSError", "errno": error.errno or 5, "cause": error.strerror or str(error), "file": file})
    sys.stdout.flush()
    os._exit(0)


def _say(answer: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


class _Reporter:
    """Tells how many bytes have been written, not too often."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, size: int) -> None:
        if size >= self._next:
            self._next = size + _REPORT_EVERY
            _say({"progress": size})


def _write(folder: str, entries: list[list[Any]], below: list[str], limit: int, defaults: Mapping[str, Any]) -> int:
    decoded = [
        Entry(path, kind, base64.b64decode(content), source, mode, user, group)
        for path, kind, content, source, mode, user, group in entries
    ]
    known = {path: (mode, user, group) for path, (mode, user, group) in defaults.items()}
    layers = [Path(layer) for layer in below]
    return write_layer(Path(folder), decoded, layers, owners=True, limit=limit, defaults=known)


def _unpack(archive: str, member: str, folder: str, below: list[str], limit: int, digest: str) -> list[int]:
    with contextlib.ExitStack() as open_files:
        stream: BinaryIO = open_files.enter_context(Path(archive).open("rb"))
        if member:
            outer = open_files.enter_context(tarfile.open(fileobj=stream, mode="r:"))
            try:
                found = outer.extractfile(member)
            except KeyError:
                found = None
            if found is None:
                raise InvalidArchive(f"{archive} lacks {member}, which its manifest names")
            stream = cast(BinaryIO, found)
        plain = open_files.enter_context(decompressed(stream))
        layers = [Path(layer) for layer in below]
        owners = os.geteuid() == 0
        done = unpack_layer(
            plain, Path(folder), layers, owners=owners, limit=limit, digest=digest, progress=_Reporter()
        )
    return [done.size, done.skipped]


def _copy(source: str, folder: str, limit: int, home: str, home_user: int, home_group: int) -> list[int]:
    # Of an ordinary user's folder everything is his, which is 0 in the mapped namespace as well.
    done = copy_layer(
        Path(source),
        Path(folder),
        owners=os.geteuid() == 0,
        limit=limit,
        own=Path(source).stat().st_uid if _is_mapped() else -1,
        home=home,
        home_user=home_user,
        home_group=home_group,
        progress=_Reporter(),
    )
    return [done.size, done.skipped]


def _unsquash(archive: str, folder: str, program: str, begin: int, limit: int) -> int:
    extracted = Path(folder, ".unsquashed")  # not a name that an image has: all in it moves up
    done = subprocess.run(
        [program, "-no-xattrs", "-no-progress", "-f", "-o", str(begin), "-d", str(extracted), archive],
        capture_output=True,
        check=False,
    )
    # 2: everything is there but what only the host's root can make, devices, which no layer has.
    said = (done.stderr or done.stdout).decode(errors="replace").strip()
    if done.returncode not in (0, 2) or not extracted.is_dir():
        last = said.splitlines()[-1] if said else f"{program} ended with {done.returncode}"
        raise InvalidArchive(f"{archive} cannot be unpacked: {last}")
    for inner in extracted.iterdir():
        inner.rename(Path(folder, inner.name))
    extracted.rmdir()
    size = clean_layer(Path(folder))
    if limit and size > limit:
        raise too_large(limit)
    return size


def _clean(folder: str) -> int:
    return clean_layer(Path(folder))


def _remove(folder: str) -> None:
    remove_layer(Path(folder))


def _is_mapped() -> bool:
    return Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "write": _write,
    "unpack": _unpack,
    "copy": _copy,
    "unsquash": _unsquash,
    "clean": _clean,
    "remove": _remove,
}
