"""The worker process: one operation on a layer, in the namespace in which its owners can be set.

Invariant: the process ends when the server does. An operation that was cut short leaves a folder that is not a layer
yet.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import BinaryIO, NoReturn, cast

from ors_containers.errors import InvalidArchive, SandboxError, StoreFailed
from ors_containers.layers.deep_folders import remove_deep_folders
from ors_containers.layers.leaving_out import leave_out
from ors_containers.layers.messages import (
    Answer,
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
    Written,
    encode_answer,
)
from ors_containers.layers.tree import clean_layer, remove_layer
from ors_containers.layers.writer import too_large, write_layer
from ors_containers.linux import syscalls
from ors_containers.linux.confinement.user_namespaces import join_mapped_namespace

__all__ = ["main"]

_REPORT_EVERY = 8 << 20
#: Operations on files that a container has written. It may have closed them, also to a server whose single id owns
#: them: root of a namespace with that id opens them.
_AS_ROOT = (Keep, LeaveOut, Remove, Share)


def main() -> NoReturn:
    """Read a request from standard input, run it in the namespace it names, and answer in lines of standard output."""
    request = Request.decode(sys.stdin.buffer.read())
    try:
        if request.mapping.by == "helper" or (request.mapping.by == "user" and isinstance(request.operation, _AS_ROOT)):
            join_mapped_namespace(request.mapping, 0)
        syscalls.end_with_parent()
        if os.getppid() != request.server:
            os._exit(1)
        os.umask(0o022)
        _answer(_done(request.operation))
    except SandboxError as error:
        _answer(Failure(type(error).__name__, error.cause, error.remedy))
    except OSError as error:
        _answer(Failure("OSError", error.strerror or str(error), "", error.errno or 5, str(error.filename or "")))
    sys.stdout.flush()
    os._exit(0)


def _answer(answer: Answer) -> None:
    sys.stdout.write(encode_answer(answer))
    sys.stdout.flush()


def _done(operation: Operation) -> Result:
    match operation:
        case Write():
            return _write(operation)
        case Unpack():
            return _unpack(operation)
        case CopyFolder():
            return _copy(operation)
        case CopyFiles():
            return _copy_files(operation)
        case Unsquash():
            return _unsquash(operation)
        case Remove():
            remove_layer(Path(operation.folder))
            return Result(0)
        case Keep():
            return _keep(operation)
        case LeaveOut():
            leave_out(Path(operation.folder), operation.rules, [Path(layer) for layer in operation.below])
            return Result(0)
        case Share():
            return _share(operation)


class _Reporter:
    """A progress callback that reports the bytes written once every ``_REPORT_EVERY`` bytes."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, size: int) -> None:
        if size >= self._next:
            self._next = size + _REPORT_EVERY
            _answer(Written(size))


def _write(asked: Write) -> Result:
    layers = [Path(layer) for layer in asked.below]
    return Result(
        write_layer(Path(asked.folder), asked.entries, layers, owners=True, limit=asked.limit, defaults=asked.defaults)
    )


def _unpack(asked: Unpack) -> Result:
    # Imported here: most workers do not read an archive, and these modules are slow to import.
    import tarfile

    from ors_containers.layers.tar import decompressed, unpack_layer

    with contextlib.ExitStack() as open_files:
        stream: BinaryIO = open_files.enter_context(Path(asked.archive).open("rb"))
        if asked.member:
            outer = open_files.enter_context(tarfile.open(fileobj=stream, mode="r:"))
            try:
                found = outer.extractfile(asked.member)
            except KeyError:
                found = None
            if found is None:
                raise InvalidArchive(f"{asked.archive} lacks {asked.member}, which its manifest names")
            stream = cast(BinaryIO, found)
        done = unpack_layer(
            open_files.enter_context(decompressed(stream)),
            Path(asked.folder),
            [Path(layer) for layer in asked.below],
            owners=os.geteuid() == 0,
            limit=asked.limit,
            digest=asked.digest,
            progress=_Reporter(),
        )
    return Result(done.size, done.skipped)


def _copy(asked: CopyFolder) -> Result:
    from ors_containers.layers.tar import copy_layer

    source = Path(asked.source)
    # All files in an unprivileged user's folder belong to that user, which is 0 in the mapped namespace as well.
    done = copy_layer(
        source,
        Path(asked.folder),
        owners=os.geteuid() == 0,
        limit=asked.limit,
        own=source.stat().st_uid if _is_mapped() else -1,
        home=asked.home,
        home_user=asked.home_user,
        home_group=asked.home_group,
        progress=_Reporter(),
    )
    return Result(done.size, done.skipped)


def _unsquash(asked: Unsquash) -> Result:
    import subprocess

    program, folder = asked.program, Path(asked.folder)
    done = subprocess.run(
        [program, "-no-xattrs", "-no-progress", "-f", "-o", str(asked.begin), "-d", folder, asked.archive],
        capture_output=True,
        check=False,
    )
    # 2: everything was unpacked except for devices, which only the host's root can create and no layer has.
    output = (done.stderr or done.stdout).decode(errors="replace").strip()
    if done.returncode not in (0, 2):
        last = output.splitlines()[-1] if output else f"{program} ended with {done.returncode}"
        raise InvalidArchive(f"{asked.archive} cannot be unpacked: {last}")
    folder.chmod(0o755)
    size = clean_layer(folder)
    if asked.limit and size > asked.limit:
        raise too_large(asked.limit)
    return Result(size)


def _copy_files(asked: CopyFiles) -> Result:
    from ors_containers.layers.copying import write_copies

    layers = [Path(layer) for layer in asked.below]
    size = write_copies(Path(asked.folder), layers, asked.sources, asked.target, owners=asked.owners, limit=asked.limit)
    return Result(size)


def _keep(asked: Keep) -> Result:
    import subprocess

    if asked.descriptor != -1:
        os.fchdir(asked.descriptor)
    remove_deep_folders(asked.source)
    command = ["cp", "-aT", "--", asked.source, asked.folder]
    done = subprocess.run(command, capture_output=True, env={"PATH": os.defpath, "LC_ALL": "C"}, check=False)
    if done.returncode:
        raise StoreFailed(f"A layer cannot be copied: {done.stderr.decode(errors='replace').strip()[-300:]}")
    return Result(clean_layer(Path(asked.folder)))


def _share(asked: Share) -> Result:
    from ors_containers.layers.sharing import share_layer

    return Result(0, digest=share_layer(Path(asked.folder), Path(asked.pool), asked.since))


def _is_mapped() -> bool:
    return Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]
