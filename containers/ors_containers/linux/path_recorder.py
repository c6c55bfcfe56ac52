"""The process that records which files the processes of one command execute, open and look for.

The kernel stops each such call (``seccomp.recording_filter``) and tells this process, which reads the path in the
caller's memory, looks it up in the caller's root, and lets the call go on. It records and guards nothing: a program
that changes its memory meanwhile opens another file.

Arguments: the descriptor of the kernel's notices; a pidfd of the container's process 1, whose user namespace is joined,
or -1. The record is written to standard output as JSON when standard input is closed, or when the last process of the
command has ended. Until then this process answers, or its processes would wait without end.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import select
import stat
import struct
from typing import NamedTuple

from ors_containers.linux.confinement.seccomp import RECORDED_CALLS

__all__ = ["KINDS", "PathRecord", "main"]

#: The kinds of recorded paths, as ``sandbox.RecordedPaths`` has them.
KINDS = ("executed", "opened", "listed", "missing")
_RECEIVE, _SEND, _SET_FLAGS = 0xC0502100, 0xC0182101, 0x40082104
_CONTINUE = 1
_WAKE_AT_ONCE = struct.pack("=Q", 1)
#: ``struct seccomp_notif``: id, thread, flags; number and architecture of the call, its place, six arguments.
_NOTICE = struct.Struct("=QII iIQ 6Q")
_ANSWER = struct.Struct("=QqiI")
_HERE = -100  # AT_FDCWD
_LONGEST = 4096
_MOST_LINKS, _MOST_INTERPRETERS = 40, 4
#: Last components of a path that are not the name of a file in the folder before them.
_NO_NAMES = ("", ".", "..")
#: Paths that are recorded; a command with more is not.
_MOST_PATHS = 500_000
#: File systems of the kernel: what a path in them means depends on who asks.
_KERNEL = ("/proc/", "/sys/", "/dev/")


class _Call(NamedTuple):
    """A call: its kind, the directory that its path is relative to, the path, and the flags of an ``open``."""

    kind: str
    directory: int
    path: str
    flags: int


class PathRecord:
    """The recorded paths of a root, given as an open directory; every path is absolute and inside of it."""

    def __init__(self, root: int) -> None:
        self._root = root
        self.paths: dict[str, set[str]] = {kind: set() for kind in KINDS}
        #: Directories without links, by the paths that led to them.
        self._folders: dict[str, str] = {"/": "/"}

    @property
    def is_full(self) -> bool:
        """Return whether there are more paths than one command may have."""
        return sum(map(len, self.paths.values())) > _MOST_PATHS

    def exists(self, path: str) -> bool:
        """Return whether there is something at a path, no link followed."""
        return self._status(path) is not None

    def execute(self, path: str, depth: int = 0) -> None:
        """Record a program, and the interpreter that the kernel starts for it."""
        found, status = self._find(path)
        if status is None:
            self.paths["missing"].add(found)
        elif stat.S_ISREG(status.st_mode):
            known = found in self.paths["executed"]
            self.paths["executed"].update((_normal(path), found))
            if not known and depth < _MOST_INTERPRETERS and (interpreter := self._interpreter(found)):
                self.execute(interpreter, depth + 1)

    def open(self, path: str, flags: int) -> None:
        """Record a file that is opened for reading, or a directory; a new file is not one."""
        if flags & os.O_ACCMODE == os.O_WRONLY:
            return
        found, status = self._find(path)
        if status is None:
            if not flags & os.O_CREAT:
                self.paths["missing"].add(found)
        elif stat.S_ISREG(status.st_mode):
            self.paths["opened"].update((_normal(path), found))
        elif stat.S_ISDIR(status.st_mode):
            self.paths["listed"].add(found)

    def look(self, path: str) -> None:
        """Record a path that is looked for in vain."""
        found, status = self._find(path)
        if status is None:
            self.paths["missing"].add(found)

    def _find(self, path: str) -> tuple[str, os.stat_result | None]:
        """Return a path without links, and the status of what is there; links on the way are recorded as opened."""
        folder, _, name = path.rpartition("/")
        waiting = [*reversed([part for part in path.split("/") if part])]
        done = "/"
        if name not in _NO_NAMES and (known := self._folders.get(folder or "/")) is not None:
            done, waiting = known, [name]
        status: os.stat_result | None = self._status("/") if not waiting else None
        links = 0
        while waiting:
            part = waiting.pop()
            if part in (".", ".."):
                done = done if part == "." else os.path.dirname(done)  # noqa: PTH120 - no Path is needed
                status = self._status(done)
                continue
            here = f"{done.rstrip('/')}/{part}"
            status = self._status(here)
            if status is None:
                return "/".join([here, *reversed(waiting)]), None
            if stat.S_ISLNK(status.st_mode):
                links += 1
                self.paths["opened"].add(here)
                target = self._link(here)
                if links > _MOST_LINKS or target is None:
                    return here, None
                if target.startswith("/"):
                    done = "/"
                waiting += [*reversed([piece for piece in target.split("/") if piece])]
                status = self._status(done)
                continue
            done = here
        above = os.path.dirname(done)  # noqa: PTH120 - no Path is needed
        if links == 0 and name not in _NO_NAMES and not self._folders.keys() >= {folder or "/"}:
            self._folders[folder or "/"] = above
        return done, status

    def _status(self, path: str) -> os.stat_result | None:
        try:
            return os.stat(path.lstrip("/") or ".", dir_fd=self._root, follow_symlinks=False)
        except (OSError, ValueError):
            return None

    def _link(self, path: str) -> str | None:
        try:
            return os.readlink(path.lstrip("/"), dir_fd=self._root)
        except OSError:
            return None

    def _interpreter(self, path: str) -> str:
        """Return the interpreter of a script, or the loader of an ELF program; empty for neither."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(path.lstrip("/"), flags, dir_fd=self._root)
        except OSError:
            return ""
        try:
            head = os.pread(descriptor, 256, 0)
            if head.startswith(b"#!"):
                words = head[2:].partition(b"\n")[0].split()
                return os.fsdecode(words[0]) if words and words[0].startswith(b"/") else ""
            return _loader(descriptor, head)
        except (OSError, struct.error):
            return ""
        finally:
            os.close(descriptor)


def _loader(descriptor: int, head: bytes) -> str:
    """Return the path of the program that loads a 64-bit ELF file; empty for another file."""
    if head[:6] != b"\x7fELF\x02\x01":
        return ""
    at, size, count = *struct.unpack_from("<Q", head, 32), *struct.unpack_from("<H", head, 54), head[56]
    for number in range(count):
        header = os.pread(descriptor, 56, at + number * size)
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", header)
        if kind == 3 and length <= _LONGEST:  # PT_INTERP
            return os.fsdecode(os.pread(descriptor, length, offset).partition(b"\0")[0])
    return ""


def _normal(path: str) -> str:
    return os.path.normpath(path)


class _Recorder:
    def __init__(self, notices: int) -> None:
        self._notices = notices
        self._calls = RECORDED_CALLS[platform.machine()]
        self.record: PathRecord | None = None
        self.recording = True
        self.written = False

    def answer(self) -> None:
        """Receive one notice, record it, and let the call go on."""
        buffer = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(self._notices, _RECEIVE, buffer, True)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):  # the caller has ended
                return
            raise
        identity, thread, _, number, _, _, *arguments = _NOTICE.unpack(buffer)
        if self.recording:
            # A caller that has ended, or one that may not be inspected: the launcher's child before it executes.
            with contextlib.suppress(OSError, ValueError):
                self._record(thread, number, arguments)
        with contextlib.suppress(OSError):  # the caller has ended meanwhile
            fcntl.ioctl(self._notices, _SEND, _ANSWER.pack(identity, 0, 0, _CONTINUE))

    def _record(self, thread: int, number: int, arguments: list[int]) -> None:
        memory = os.open(f"/proc/{thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            call = self._read(memory, number, arguments)
        finally:
            os.close(memory)
        path = call.path
        if not path.startswith("/"):
            if not path and call.kind != "execute":
                return
            directory = "cwd" if call.directory == _HERE else f"fd/{call.directory}"
            above = os.readlink(f"/proc/{thread}/{directory}")  # noqa: PTH115 - no Path is needed
            path = f"{above}/{path}" if path else above
        above = os.readlink(f"/proc/{thread}/root")  # noqa: PTH115 - no Path is needed
        if call.path.startswith("/") and above != "/":
            path = f"{above}{path}"
        if not path.startswith("/") or f"{path}/".startswith(_KERNEL):
            return
        if self.record is None:
            root = os.open(f"/proc/{thread}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self.record = PathRecord(root)
        if call.kind == "execute" and (call.path or self.record.exists(path)):
            self.record.execute(path)
        elif call.kind == "open":
            self.record.open(path, call.flags)
        elif call.kind == "look":
            self.record.look(path)

    def _read(self, memory: int, number: int, arguments: list[int]) -> _Call:
        """Return a call with its path from the caller's memory."""
        called = self._calls[number]
        directory = _HERE if called.directory is None else _signed(arguments[called.directory])
        flags = 0
        if called.kind == "open":
            flags = arguments[called.flags]
            if called.by_address:
                flags = struct.unpack("=Q", os.pread(memory, 8, flags))[0]
        text = os.pread(memory, _LONGEST, arguments[called.path])
        return _Call(called.kind, directory, os.fsdecode(text.partition(b"\0")[0]), flags)


def _signed(value: int) -> int:
    return struct.unpack("=i", struct.pack("=I", value & 0xFFFFFFFF))[0]


def _write(recorder: _Recorder) -> None:
    record = recorder.record
    if record is not None and record.is_full:
        result: dict[str, object] = {"problem": f"it used more than {_MOST_PATHS:,} paths"}
    else:
        paths = record.paths if record is not None else {}
        result = {kind: sorted(paths.get(kind, ())) for kind in KINDS}
    with contextlib.suppress(BrokenPipeError), os.fdopen(1, "w") as output:
        json.dump(result, output)
    recorder.recording, recorder.written = False, True


def main(notices: str, process_1: str) -> None:
    """Record until the last process of the command has ended."""
    listener = int(notices)
    if int(process_1) != -1:
        from ors_containers.linux import syscalls

        syscalls.setns(int(process_1), syscalls.CLONE_NEWUSER)
    with contextlib.suppress(OSError):  # Linux 6.6
        fcntl.ioctl(listener, _SET_FLAGS, _WAKE_AT_ONCE)
    recorder = _Recorder(listener)
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(0, select.POLLIN)
    while True:
        for descriptor, events in poll.poll():
            if descriptor == 0:
                poll.unregister(0)
                _write(recorder)
            elif events & select.POLLIN:
                recorder.answer()
                if recorder.record is not None and recorder.record.is_full:
                    recorder.recording = False
            else:
                if not recorder.written:
                    _write(recorder)
                return
