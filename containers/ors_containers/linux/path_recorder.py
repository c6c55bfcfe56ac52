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
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ors_containers.linux.confinement.seccomp import RECORDED_CALLS
from ors_containers.linux.path_record import KINDS, MOST_PATHS, PathRecord

__all__ = ["main"]

_RECEIVE, _SEND, _SET_FLAGS = 0xC0502100, 0xC0182101, 0x40082104
_CONTINUE = 1
_WAKE_AT_ONCE = struct.pack("=Q", 1)
#: ``struct seccomp_notif``: id, thread, flags; number and architecture of the call, its place, six arguments.
_NOTICE = struct.Struct("=QII iIQ 6Q")
_ANSWER = struct.Struct("=QqiI")
_HERE = -100  # AT_FDCWD
_LONGEST = 4096
#: Arguments and variables of a program that are read.
_MOST_TEXTS = 4096
_SEARCH_PATH = "PYTHONPATH="
#: File systems of the kernel: what a path in them means depends on who asks.
_KERNEL = ("/proc/", "/sys/", "/dev/")


class _Call(NamedTuple):
    """A call: its kind, the directory that its path is relative to, the path, and the flags of an ``open``."""

    kind: str
    directory: int
    path: str
    flags: int
    #: Of a program that is executed.
    arguments: Sequence[str] = ()
    #: Its variable ``PYTHONPATH``; None where it has none.
    search_path: str | None = None


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
            above = os.readlink(f"/proc/{thread}/{directory}")
            path = f"{above}/{path}" if path else above
        above = os.readlink(f"/proc/{thread}/root")
        if call.path.startswith("/") and above != "/":
            path = f"{above}{path}"
        if not path.startswith("/") or f"{path}/".startswith(_KERNEL):
            return
        if self.record is None:
            root = os.open(f"/proc/{thread}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self.record = PathRecord(root)
        if call.kind == "execute" and (call.path or self.record.exists(path)):
            self.record.execute(path)
            folder = os.readlink(f"/proc/{thread}/cwd")
            self.record.interpret(path, call.arguments, folder, call.search_path)
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
        call = _Call(called.kind, directory, _text(memory, arguments[called.path]), flags)
        if called.kind != "execute":
            return call
        variables = _texts(memory, arguments[called.arguments + 1])
        search_path = next((text for text in variables if text.startswith(_SEARCH_PATH)), None)
        return call._replace(
            arguments=[*_texts(memory, arguments[called.arguments])],
            search_path=search_path and search_path.removeprefix(_SEARCH_PATH),
        )


def _text(memory: int, address: int) -> str:
    return os.fsdecode(os.pread(memory, _LONGEST, address).partition(b"\0")[0])


def _texts(memory: int, address: int) -> Iterator[str]:
    """Yield the texts of a list in a caller's memory; no more where it cannot be read."""
    with contextlib.suppress(OSError, struct.error):
        for place in range(address, address + 8 * _MOST_TEXTS, 8) if address else ():
            (text,) = struct.unpack("=Q", os.pread(memory, 8, place))
            if not text:
                return
            yield _text(memory, text)


def _signed(value: int) -> int:
    return struct.unpack("=i", struct.pack("=I", value & 0xFFFFFFFF))[0]


def _write(recorder: _Recorder) -> None:
    record = recorder.record
    if record is not None and record.is_full:
        result: dict[str, object] = {"problem": f"it used more than {MOST_PATHS:,} paths"}
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
