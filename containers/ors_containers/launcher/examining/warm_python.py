"""The start of a warm Python, a process whose copies become the programs of examinations.

Starting the grader's Python and importing what it needs takes four fifths of the processor time of most examinations.
This process has done both. It sees the toolset where sandboxes see it, and besides only /proc and what it imports
first; so what a copy of it imports later is the toolset's in a sandbox, too.

Invariants: it never reads a request, only its copies do, so no examination leaves anything to another. No copy has a
path or a name of this machine. It is outside of every sandbox but while it makes a copy for a frozen examination there
(``visits``); the program has the rights of one that is executed. One that has not said that it is ready, has ended, or
was made for other files, is not used: then the program is executed.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from ors_containers.launcher.examining.packed_files import unpack
from ors_containers.launcher.messages import Examine, ExamineHere, WarmStart, seal
from ors_containers.launcher.privileges import open_groups, place
from ors_containers.linux import syscalls as system
from ors_containers.linux.sandbox_paths import EXAMINATION

__all__ = ["CONTROL_AT", "NAME", "READY", "REQUESTS_AT", "SOURCES_AT", "WarmPythons"]

#: Examinations of one process: its copies have one seed of hashes and one layout of memory.
_MOST = 500
#: Processes at a time, each for its files and its locale; some 25 MB each.
_KINDS = 6
#: Seconds without an examination after which one gives way to another kind: more kinds would end each other's at once.
_REST = 60.0
READY = b"ready"
#: Of the process, and of the machine that it sees: a copy must not have the host's.
NAME = "warm-python"
#: Descriptors of the new process.
CONTROL_AT, REQUESTS_AT = 3, 4
#: Where it finds the modules of this package.
SOURCES_AT = "/.launcher"
_SOURCES = str(Path(__file__).resolve().parents[3])
#: The program's stack is as deep as if Python had been started with it. The standard library is not to be replaced.
_SCRIPT = (
    f"import os, sys; sys.path.append({SOURCES_AT!r}); from ors_containers.launcher.warm_process import main; "
    "program = main(sys.argv[1:]); program and os._exit(program())"
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
        self.used = 0.0
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
        now = time.monotonic()
        running = self._running.pop(key, None)
        if running is None:
            if len(self._running) == _KINDS:
                oldest, other = next(iter(self._running.items()))
                if now - other.used < _REST:
                    return False
                self._end(oldest)
            running = _start(request, warm, descriptors[1], self._control, self._machine)
        self._running[key] = running
        running.used = now
        if not running.is_ready():
            return False
        # It does not see the files of control groups.
        groups = open_groups(request.groups)
        sending, receiving = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        message = seal(identity, request._replace(groups=[], warm=None))
        with sending, receiving:
            try:
                socket.send_fds(sending, [message], [*descriptors, *groups], socket.MSG_DONTWAIT)
                handed = [seal(identity, ExamineHere(is_frozen=not request.keep_processes))]
                socket.send_fds(running.requests, handed, [receiving.fileno(), descriptors[0]], socket.MSG_DONTWAIT)
            except OSError:  # it has ended, or its queue is full
                return False
            finally:
                for group in groups:
                    os.close(group)
        running.given.append(identity)
        if len(running.given) >= _MOST:
            self._end(key)
        return True

    def ended(self, process: int, code: int) -> list[int]:
        """Return the requests to which a process that has ended may not have responded; none for other processes.

        ``code`` is its exit status, or below 0 for a signal: what was killed as it started, for memory, is tried again.
        """
        for key, running in list(self._running.items()):
            if running.process == process:
                if code >= 0 and not running.is_ready():
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
        except OSError as error:
            os.write(2, f"No Python can be kept warm: {error}\n".encode())
        finally:
            os._exit(70)
    theirs.close()
    return _Running(process, ours)


def _become(
    request: Examine, warm: WarmStart, files: Mapping[str, bytes], sockets: tuple[int, int], machine: str
) -> NoReturn:
    system.unshare(system.CLONE_NEWNS | system.CLONE_NEWUTS)
    socket.sethostname(NAME)
    system.mount("", "/", "", system.MS_REC | system.MS_PRIVATE)
    system.mount("tmpfs", _STAGE, "tmpfs", system.MS_NOSUID | system.MS_NODEV, _SIZE)
    for source, target in ((warm.folder, warm.at), (_SOURCES, SOURCES_AT), ("/proc", "/proc")):
        point = f"{_STAGE}{target}"
        os.makedirs(point)
        system.attach(source, point)
    for name, content in files.items():
        file = Path(f"{_STAGE}{EXAMINATION}", name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    system.pivot(_STAGE)
    # Python looks at its input and output when it starts: an examination's are pipes, ours may be a terminal.
    pairs = zip((*os.pipe(), *sockets), (0, 1, CONTROL_AT, REQUESTS_AT), strict=True)
    place(pairs)
    command = request.program.arguments[:-1]
    arguments = [machine, warm.module, warm.packages, *warm.ahead]
    os.execve(command[0], [*command, "-c", _SCRIPT, *arguments], _locale_of(request))  # noqa: S606 - becoming it is the point
