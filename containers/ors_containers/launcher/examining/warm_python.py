"""The start of a warm Python, a process whose copies become the programs of examinations.

Starting the grader's Python and importing what it needs takes four fifths of the processor time of most examinations.
This process has done both. It sees the toolset where sandboxes see it, and besides only /proc and what it imports
first; so what a copy of it imports later is the toolset's in a sandbox, too.

Invariants: it never reads a request before it has forked, so no examination leaves anything to another. It is outside
of every sandbox; its copies enter one as other examinations do, with the rights of these. One that has not said that it
is ready, has ended, or was made for other files, is not used: then the program is executed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from ors_containers.launcher.examining.packed_files import unpack
from ors_containers.launcher.messages import Examine, WarmStart, seal
from ors_containers.launcher.privileges import open_groups, place
from ors_containers.linux import syscalls as system
from ors_containers.linux.sandbox_paths import EXAMINATION

__all__ = ["CONTROL_AT", "READY", "REQUESTS_AT", "SOURCES_AT", "WarmPythons"]

#: Examinations of one process: its copies have one seed of hashes and one layout of memory.
_MOST = 500
#: Processes at a time, each for its files and its locale; some 25 MB each.
_KINDS = 3
READY = b"ready"
#: Descriptors of the new process.
CONTROL_AT, REQUESTS_AT = 3, 4
#: Where it finds the modules of this package.
SOURCES_AT = "/.launcher"
_SOURCES = str(Path(__file__).resolve().parents[3])
_SCRIPT = (
    f"import sys; sys.path.insert(0, {SOURCES_AT!r}); from ors_containers.launcher.warm_process import main; "
    "main(sys.argv[1:])"
)
#: A mount point that each machine has, for the root of the new process. In a mount namespace of its own.
_STAGE = "/sys"
_SIZE = "size=64m,mode=755"
#: Variables by which Python chooses its encodings when it starts.
_LOCALE = ("LANG", "LC_ALL", "LC_CTYPE")


class _Running:
    """A process that takes requests."""

    def __init__(self, process: int, requests: socket.socket) -> None:
        self.process = process
        #: Ids of the requests that it was given.
        self.given: list[int] = []
        self.requests = requests
        self._ready = False

    def is_ready(self) -> bool:
        """Return whether it has said so."""
        if not self._ready:
            try:
                self._ready = self.requests.recv(len(READY), socket.MSG_DONTWAIT) == READY
            except OSError:  # not yet
                return False
        return self._ready


class WarmPythons:
    """The warm Pythons of a launcher."""

    def __init__(self, control: socket.socket, machine: str) -> None:
        self._control = control
        self._machine = machine
        #: By what they were made for; the least recently used first.
        self._running: dict[str, _Running] = {}
        #: The requests of those that take no more and may still have some.
        self._ending: dict[int, list[int]] = {}
        #: What no process could be made for; it has printed why.
        self._impossible: set[str] = set()

    def take(self, identity: int, request: Examine, descriptors: list[int]) -> bool:
        """Hand an examination to a warm Python. Return False where it has to be made in the cold way."""
        warm = request.warm
        if warm is None or os.geteuid() != 0 or request.program.user.one_id:
            return False
        key = f"{warm.key} {_locale_of(request)}"
        if key in self._impossible:
            return False
        running = self._running.pop(key, None) or _start(request, warm, descriptors[1], self._control, self._machine)
        self._running[key] = running
        if len(self._running) > _KINDS:
            self._end(next(iter(self._running)))
        if not running.is_ready():
            return False
        # It does not see the files of control groups.
        groups = open_groups(request.groups)
        try:
            socket.send_fds(running.requests, [seal(identity, request)], [*descriptors, *groups], socket.MSG_DONTWAIT)
        except OSError:  # it has ended, or its queue is full
            return False
        finally:
            for group in groups:
                os.close(group)
        running.given.append(identity)
        if len(running.given) >= _MOST:
            self._end(key)
        return True

    def ended(self, process: int) -> list[int]:
        """Return the requests to which a process that has ended may not have responded; none for other processes."""
        for key, running in list(self._running.items()):
            if running.process == process:
                if not running.is_ready():
                    self._impossible.add(key)
                self._end(key)
        return self._ending.pop(process, [])

    def _end(self, key: str) -> None:
        running = self._running.pop(key)
        running.requests.close()  # it ends when the requests before that have been responded to
        self._ending[running.process] = running.given


def _locale_of(request: Examine) -> dict[str, str]:
    return {name: value for name, value in request.program.environment.items() if name in _LOCALE}


def _start(request: Examine, warm: WarmStart, packed: int, control: socket.socket, machine: str) -> _Running:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    files = unpack(packed)
    process = os.fork()
    if process == 0:
        try:
            _become(request, warm, files, (control.fileno(), theirs.fileno()), machine)
        finally:
            os._exit(70)
    theirs.close()
    return _Running(process, ours)


def _become(
    request: Examine, warm: WarmStart, files: Mapping[str, bytes], sockets: tuple[int, int], machine: str
) -> NoReturn:
    system.unshare(system.CLONE_NEWNS)
    system.mount("", "/", "", system.MS_REC | system.MS_PRIVATE)
    system.mount("tmpfs", _STAGE, "tmpfs", system.MS_NOSUID | system.MS_NODEV, _SIZE)
    for source, target in ((warm.folder, warm.at), (_SOURCES, SOURCES_AT), ("/proc", "/proc")):
        point = f"{_STAGE}{target}"
        os.makedirs(point)  # noqa: PTH103 - a child imports nothing more
        system.mount(source, point, "", system.MS_BIND | system.MS_REC)
    for name, content in files.items():
        file = Path(f"{_STAGE}{EXAMINATION}", name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    system.pivot(_STAGE)
    place(zip(sockets, (CONTROL_AT, REQUESTS_AT), strict=True))
    command = request.program.arguments[:-1]
    arguments = [machine, warm.module, warm.packages, *warm.ahead]
    os.execve(command[0], [*command, "-c", _SCRIPT, *arguments], _locale_of(request))  # noqa: S606 - becoming it is the point
