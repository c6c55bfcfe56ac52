"""Servers that start at once: copies of a Python that has imported what a server imports.

These imports take a second of processor time, and the tests start hundreds of servers. A copy runs the same code with
the arguments, variables, folder and descriptors it is given, and is a child of this process: the kernel gives an orphan
to the nearest ancestor that asks for them, and the copy's parent ends at once. Its command line in ``/proc`` is that of
the prepared Python.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

__all__ = ["PreparedProgram", "can_be_prepared"]

#: What nearly every server has imported once it listens.
_IMPORTED = (
    "ors_cli.application",
    "ors_cli.serving.banner",
    "ors_cli.serving.serve",
    "ors_server.http.app",
    "ors_server.http.serving",
    "ors_server.http.uvicorn_protocol",
    "ors_server.rollouts.store",
    "ors_server.server",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
)
#: From linux/prctl.h.
_SET_CHILD_SUBREAPER = 36
_LARGEST_REQUEST = 1 << 17
_READ_AT_THE_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC")


def can_be_prepared(command: Sequence[str | Path], environment: Mapping[str, str]) -> bool:
    """Say whether a command is ``python -m MODULE ...`` or ``ors-server ...``, with Python itself set up as here."""
    return _module(command) is not None and _of_python(environment) == _of_python(os.environ)


def _module(command: Sequence[str | Path]) -> str | None:
    """Return the module that a command runs as the main one."""
    program, *arguments = map(str, command)
    if program == sys.executable and arguments[:1] == ["-m"]:
        return arguments[1]
    return "ors_cli" if program == str(Path(sys.executable).with_name("ors-server")) else None


def _of_python(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Python, its allocator and the dynamic linker read at their start."""
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_THE_START)}


class PreparedProgram(subprocess.Popen[bytes]):
    """A program of ``can_be_prepared``, as ``subprocess.Popen`` would start it."""

    def _execute_child(self, *given: Any) -> None:
        names = vars(subprocess.Popen)["_execute_child"].__code__.co_varnames[1:]
        options = dict(zip(names, given, strict=False))
        pipes = [options[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        standard = [number if pipe == -1 else pipe for number, pipe in enumerate((pipes[0], pipes[3], pipes[5]))]
        kept = sorted(options["pass_fds"])
        request = {
            "command": list(map(str, options["args"])),
            "environment": dict(options["env"]),
            "folder": str(options["cwd"] or Path.cwd()),
            "new_session": options["start_new_session"],
            "kept": kept,
        }
        self.pid = _prepared().start(request, [*standard, *kept])
        self._child_created = True
        super().__getattribute__("_close_pipe_fds")(*pipes)


class _Prepared:
    """The process that is copied, seen from the tests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST_REQUEST)
        surroundings = {name: value for name, value in os.environ.items() if not name.startswith("ORS_")}
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.prepared_python", str(its.fileno())],
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env=surroundings,
                pass_fds=[its.fileno()],
            )
        atexit.register(self._end)

    def start(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """Start a copy; return its process ID. It is this process's child."""
        with self._lock, _orphans_come_here():
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
            answer = self._socket.recv(64)
        assert answer, "the prepared Python has ended"
        return int(answer)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()


@functools.cache
def _prepared() -> _Prepared:
    return _Prepared()


@contextlib.contextmanager
def _orphans_come_here() -> Generator[None]:
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _serve_copies(connection: socket.socket) -> dict[str, Any] | None:
    """Answer requests; return in each copy, with its request, and at the end with None."""
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, _LARGEST_REQUEST, 64)
        if not message:
            return None
        told, tell = os.pipe()
        if parent := os.fork():
            # An orphan changes hands when its parent has ended, so the tests hear of the copy after that.
            os.waitpid(parent, 0)
            connection.send(os.read(told, 64))
            for descriptor in (told, tell, *descriptors):
                os.close(descriptor)
            continue
        if own := os.fork():
            os.write(tell, str(own).encode())
            os._exit(0)
        os.close(told)
        os.close(tell)
        signal.signal(signal.SIGINT, interrupt)
        connection.close()
        request = json.loads(message)
        _place(descriptors, [0, 1, 2, *request["kept"]])
        return request


def _place(descriptors: Sequence[int], wanted: Sequence[int]) -> None:
    """Give descriptors the numbers that a program expects."""
    above = max(*descriptors, *wanted) + 1
    moved = [os.dup2(old, above + index) for index, old in enumerate(descriptors)]
    for old in descriptors:
        os.close(old)
    for old, new in zip(moved, wanted, strict=True):
        os.dup2(old, new)
        os.close(old)


def _run(request: Mapping[str, Any]) -> None:
    command: list[str] = request["command"]
    if request["new_session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    importlib.invalidate_caches()
    gc.enable()
    is_module = command[1:2] == ["-m"] and command[0] == sys.executable
    sys.argv = command[2:] if is_module else command
    sys.path[0] = request["folder"] if is_module else str(Path(command[0]).parent)
    module = _module(command)
    assert module is not None
    if is_module:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        importlib.import_module(module).main()


if __name__ == "__main__":
    gc.disable()
    for _name in _IMPORTED:
        importlib.import_module(_name)
    gc.freeze()
    if (_request := _serve_copies(socket.socket(fileno=int(sys.argv[1])))) is not None:
        _run(_request)
